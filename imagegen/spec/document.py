"""YAML to plain data that remembers where each key and value stands. A small, strict subset: no anchors, no tags."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from imagegen.core import data
from imagegen.core.errors import ErrorList, Location, MatrixError

_MAX_DEPTH = 20
_STRING, _BOOL, _NULL = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "bool", "null"))

Path_ = tuple[str | int, ...]  # of keys and list positions, as pydantic's error locations are


@dataclass
class YamlDocument:
    """A parsed YAML file. `data` is None when `errors` holds a syntax error.

    Otherwise it is plain: dict, list, str, bool, None.
    """

    file: Path
    data: Any = None
    keys: dict[Path_, tuple[int, int]] = field(default_factory=dict)
    values: dict[Path_, tuple[int, int]] = field(default_factory=dict)
    errors: ErrorList[MatrixError] = field(default_factory=ErrorList)
    broken: set[Path_] = field(default_factory=set)  # values that already have an error here

    def where(self, path: Path_, *, key: bool = False) -> Location:
        """The place of the value at `path` (of its key with `key`), or of the nearest thing around it."""
        for end in range(len(path), -1, -1):
            prefix = path[:end]
            marks: tuple[Mapping[Path_, tuple[int, int]], ...] = (self.values, self.keys)
            for mark in reversed(marks) if key or end < len(path) else marks:
                if prefix in mark:
                    return Location(self.file, *mark[prefix])
        return Location(self.file)


def key_location(file: Path, path: Path_) -> Location | None:
    """Return the location of a key in a file; None if the file does not have it."""
    with suppress(OSError):
        document = parse(file, data.read(file))
        if path in document.keys:
            return document.where(path, key=True)
    return None


def parse(file: Path, raw: bytes) -> YamlDocument:
    """Read one document. Never raises for bad content: every fault is in `Document.errors`."""
    document = YamlDocument(file)
    try:
        text = raw.decode("utf-8")
        node = _compose(document, text)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        _fail(document, (line, None), "the file is not UTF-8", fix="save it as UTF-8")
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, text.index(chr(error.character))) + 1
        _fail(document, (line, None), f"the file holds the control character #x{error.character:04x}")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(part for part in (error.context, error.problem) if part)
        _fail(document, (mark.line + 1, mark.column + 1) if mark else (None, None), "this is not valid YAML", why=why)
    else:
        document.data = {} if node is None else _plain(document, node, ())
    return document


def _compose(document: YamlDocument, text: str) -> yaml.Node | None:
    """The node tree; None when the file is empty or a refused construct was reported."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        at = _at(event)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if getattr(event, "anchor", None):
            _fail(document, at, "anchors and aliases are not used here", fix="write the value where it belongs")
        elif getattr(event, "tag", None):
            _fail(document, at, "tags are not used here", fix="write the plain value, quoted if it is text")
        elif documents > 1:
            _fail(document, at, "a file holds one document", fix="split the file")
        elif depth > _MAX_DEPTH:
            _fail(document, at, f"nested deeper than {_MAX_DEPTH} levels")
        if document.errors and (documents > 1 or depth > _MAX_DEPTH):
            return None
    return None if document.errors else yaml.compose(text, Loader=yaml.CSafeLoader)


def _plain(document: YamlDocument, node: yaml.Node, path: Path_) -> Any:
    document.values[path] = at = _at(node)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(document, item, (*path, position)) for position, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(document, node, path)
    if node.tag == _STRING:
        return node.value
    if node.tag == _BOOL and node.value in {"true", "false"}:
        return node.value == "true"
    if node.tag == _NULL:
        return None
    kind = node.tag.rpartition(":")[2]
    why = f"without quotes, YAML reads {node.value} as {'a ' + kind if kind != 'int' else 'an integer'}"
    _fail(document, at, f"{node.value} needs quotes", why=why, fix=f'write "{node.value}"')
    document.broken.add(path)
    return node.value


def _mapping(document: YamlDocument, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        at = _at(key_node)
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            _fail(document, at, "a key must be a plain name")
            continue
        if key_node.tag != _STRING:
            _fail(document, at, f"the key {key_node.value} needs quotes", fix=f'write "{key_node.value}"')
        key = str(key_node.value)
        if key in result:
            first = Location(document.file, *document.keys[*path, key])
            _fail(document, at, f'the key "{key}" is given twice', why=f"first at {first}", fix="keep one of them")
            continue
        document.keys[*path, key] = at
        result[key] = _plain(document, value_node, (*path, key))
    return result


def _at(thing: yaml.Event | yaml.Node) -> tuple[int, int]:
    mark = thing.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _fail(
    document: YamlDocument,
    at: tuple[int | None, int | None],
    message: str,
    why: str | None = None,
    fix: str | None = None,
) -> None:
    document.errors.append(MatrixError(message, where=Location(document.file, *at), why=why, fix=fix))
