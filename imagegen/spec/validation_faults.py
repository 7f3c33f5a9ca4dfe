"""A fault that pydantic found in a YAML document -> one sentence with the place where it was written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from imagegen.core.errors import ErrorList, MatrixError
from imagegen.core.text import did_you_mean
from imagegen.core.validation import explain_mismatch
from imagegen.spec.document import YamlDocument

_MODELS = ("model_type", "model_attributes_type", "dataclass_type")
_SHAPES = {
    **dict.fromkeys((*_MODELS, "dict_type"), "a mapping (`name: ...` lines)"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list (lines that begin with `- `)"),
}


def explain(document: YamlDocument, details: Iterable[ErrorDetails], schema: type[BaseModel]) -> ErrorList[MatrixError]:
    """Return pydantic's errors for a document as messages with lines, without those that the parser has reported."""
    errors: ErrorList[MatrixError] = ErrorList()
    for detail in details:
        if tuple(detail["loc"]) in document.broken:
            continue  # the parser has already said that it needs quotes
        if errors.is_full:
            errors.omitted += 1
        else:
            errors.append(_explain(document, detail, schema))
    return errors


def _explain(document: YamlDocument, detail: ErrorDetails, schema: type[BaseModel]) -> MatrixError:
    path, kind = tuple(detail["loc"]), detail["type"]
    key = bool(path) and path[-1] == "[key]"
    path = path[:-1] if key else path
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known_keys = _known_keys(schema, path)
        fix = did_you_mean(str(path[-1]), known_keys) or f"known here: {', '.join(known_keys)}"
        return MatrixError(
            f'unknown key "{path[-1]}"', code="matrix-unknown-key", where=document.where(path, key=True), fix=fix
        )
    if kind == "missing":
        return MatrixError(
            f'the key "{path[-1]}" is missing', code="matrix-missing-key", where=document.where(path[:-1], key=True)
        )
    name = ".".join(str(part) for part in path) or "the file"
    known_there = None
    message = detail["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        message = explain_mismatch(detail["ctx"])
    elif kind == "literal_error":
        message = f"{detail['input']!r} is not one of {detail['ctx']['expected']}"
    elif kind == "string_type" and isinstance(detail["input"], bool):
        message = "must be text: put it in quotes"
    elif kind in _SHAPES:
        message = f"must be {_SHAPES[kind]}, and {_describe(detail['input'])}"
        if kind in _MODELS:
            known_there = f"known here: {', '.join(_known_keys(schema, (*path, '')))}"
    key = key or isinstance(detail["input"], dict)  # a block mapping begins on the line after its name
    return MatrixError(
        f"{name}: {message}", code="matrix-invalid-value", where=document.where(path, key=key), fix=known_there
    )


def _describe(value: Any) -> str:
    """Return a value of the wrong type in words."""
    if value is None:
        return "is empty"
    if isinstance(value, dict):
        return "is a mapping"
    return "is a list" if isinstance(value, list) else f"is {value!r}"


def _known_keys(schema: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the schema allows at `path`."""
    root = schema.model_json_schema()
    node = root
    for part in path[:-1]:
        node = _resolve(root, node)
        if isinstance(part, int):
            node = node["items"]
        elif "properties" in node:
            node = node["properties"][part]
        else:  # a mapping, whose keys may have a pattern
            (node,) = (
                node["patternProperties"].values() if "patternProperties" in node else (node["additionalProperties"],)
            )
    return list(_resolve(root, node)["properties"])


def _resolve(root: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return the definition that a node of a JSON schema refers to; of an optional value, the one that is not null."""
    node = next((choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"), node)
    return root["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
