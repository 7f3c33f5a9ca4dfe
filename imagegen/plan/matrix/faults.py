"""A fault that pydantic found in a YAML document -> one sentence with the place where it was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from imagegen.core.errors import ErrorList, MatrixError
from imagegen.core.text import did_you_mean
from imagegen.core.types import explain_mismatch
from imagegen.plan.matrix import document as documents

_MODELS = ("model_type", "model_attributes_type", "dataclass_type")
_SHAPES = {
    **dict.fromkeys((*_MODELS, "dict_type"), "a mapping (`name: ...` lines)"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list (lines that begin with `- `)"),
}


def explain(
    document: documents.Document, details: Iterable[ErrorDetails], schema: type[BaseModel]
) -> ErrorList[MatrixError]:
    """Return pydantic's errors for a document as messages with lines, without those that the parser has reported."""
    found: ErrorList[MatrixError] = ErrorList()
    for detail in details:
        if tuple(detail["loc"]) in document.broken:
            continue  # the parser has already said that it needs quotes
        if found.is_full:
            found.omitted += 1
        else:
            found.append(_explain(document, detail, schema))
    return found


def _explain(document: documents.Document, detail: ErrorDetails, schema: type[BaseModel]) -> MatrixError:
    path, kind = tuple(detail["loc"]), detail["type"]
    key = bool(path) and path[-1] == "[key]"
    path = path[:-1] if key else path
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _known_keys(schema, path)
        fix = did_you_mean(str(path[-1]), known) or f"known here: {', '.join(known)}"
        return MatrixError(
            f'unknown key "{path[-1]}"', code="matrix-unknown-key", where=document.where(path, key=True), fix=fix
        )
    if kind == "missing":
        return MatrixError(
            f'the key "{path[-1]}" is missing', code="matrix-missing-key", where=document.where(path[:-1], key=True)
        )
    name = ".".join(str(part) for part in path) or "the file"
    known_there = None
    what = detail["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        what = explain_mismatch(detail["ctx"])
    elif kind == "literal_error":
        what = f"{detail['input']!r} is not one of {detail['ctx']['expected']}"
    elif kind == "string_type" and isinstance(detail["input"], bool):
        what = "must be text: put it in quotes"
    elif kind in _SHAPES:
        what = f"must be {_SHAPES[kind]}, and {_describe(detail['input'])}"
        if kind in _MODELS:
            known_there = f"known here: {', '.join(_known_keys(schema, (*path, '')))}"
    key = key or isinstance(detail["input"], dict)  # a block mapping begins on the line after its name
    return MatrixError(
        f"{name}: {what}", code="matrix-invalid-value", where=document.where(path, key=key), fix=known_there
    )


def _describe(found: Any) -> str:
    """Return a value of the wrong type in words."""
    if found is None:
        return "is empty"
    if isinstance(found, dict):
        return "is a mapping"
    return "is a list" if isinstance(found, list) else f"is {found!r}"


def _known_keys(schema: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the schema allows at `path`."""
    model: Any = schema
    parts = iter([part for part in path[:-1] if isinstance(part, str)])  # what is in a list has its place there
    for part in parts:
        annotation = _fields(model)[part]
        model = _inner(annotation)
        if get_origin(annotation) in (dict, Mapping):
            next(parts, None)  # the entry's own name
    return list(_fields(model))


def _fields(model: Any) -> dict[str, Any]:
    """Return the annotations of a model, or of a dataclass, by field."""
    if is_dataclass(model):
        return get_type_hints(model)
    return {name: field.annotation for name, field in model.model_fields.items()}


def _inner(annotation: Any) -> Any:
    """The model inside dict[str, Model], Model | None and the like."""
    if hasattr(annotation, "model_fields") or is_dataclass(annotation):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _inner(part))), None)
