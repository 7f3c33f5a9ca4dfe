"""Parse the sources of untrusted packages."""

from __future__ import annotations

import ast
import posixpath
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from functools import cache

LONGEST = 2 << 20  # bytes of a source; the longest of vllm and transformers have 0.5 MB
_FILES = re.compile(r"((?:\w+/)*)(\w+)(?:\.py|\.(?:abi3|cpython-\w+(?:-\w+)*)\.so|\.so)")
# `catch_warnings` replaces the filters of the whole process.
_FILTERS = threading.Lock()


def parse(source: bytes) -> ast.Module | None:
    """Return the syntax tree; None for a source that is too long, too deep, or not Python of this interpreter."""
    if len(source) > LONGEST:
        return None
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def module_name(path: str) -> str | None:
    """Return the module that a file below site-packages is: "vllm.v1" for vllm/v1/__init__.py; None for no module."""
    match = _FILES.fullmatch(path)
    if not match:
        return None
    names = [*match[1].rstrip("/").split("/"), match[2]] if match[1] else [match[2]]
    return ".".join(names[:-1] if names[-1] == "__init__" and len(names) > 1 else names)


def is_package(path: str) -> bool:
    return posixpath.basename(path).partition(".")[0] == "__init__"


def absolute(node: ast.ImportFrom, module: str, *, package: bool) -> str | None:
    """Return the module that `from ... import` names in `module`; None for a relative name beyond the top."""
    if not node.level:
        return node.module
    components = module.split(".")
    depth = len(components) - node.level + package
    if depth < 1:
        return None
    return ".".join([*components[:depth], *([node.module] if node.module else [])])


def dotted(node: ast.expr) -> list[str] | None:
    """Return the names of `a.b.c`; None for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None


def texts(nodes: Iterable[ast.expr | None]) -> list[str]:
    """Return the texts of constants, none if a node is not a text."""
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return texts if len(texts) == len(list(nodes)) else []


# Statements that import a module by its whole name, in any block.
_IMPORTS = re.compile(rb"^[ \t]*(?:from[ \t]+(\w[\w.]*)[ \t]+import\b|import[ \t]+(\w[\w., \t]*))", re.MULTILINE)


def imported_tops(source: bytes) -> frozenset[str]:
    """Return the top-level modules that a source names in import statements, in the time of a search.

    Texts that look like statements count. Relative imports do not.
    """
    names = (name for one, several in _IMPORTS.findall(source) for name in (one or several).split(b","))
    return frozenset(top.decode() for name in names if (top := name.strip().partition(b".")[0].partition(b" ")[0]))


_SKIPPED = {"ctx", "op", "ops", "names"}  # contexts, operators, names of import statements: nothing is below them
_TEXTS = {"arg", "attr", "id", "kind"}  # fields that are never nodes, of the most frequent nodes


# Kind of node -> the fields in which there may be nodes.
_INNER = {
    kind: tuple(name for name in kind._fields if kind is not ast.Constant and name not in _SKIPPED | _TEXTS)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and the nodes below it in the order of `ast.walk`, in 0.6 of the time.

    Operators, contexts and the names of import statements are left out.
    """
    nodes = [node]
    for current in nodes:  # the list grows
        yield current
        nodes += children(current)


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below a node, without those that `walk` leaves out."""
    values: list[object] = []
    for name in _INNER[type(node)]:
        value = getattr(node, name, None)
        if type(value) is list:
            values += value
        else:
            values.append(value)
    return [child for child in values if isinstance(child, ast.AST)]


_FUNCTION = re.compile(rb"^([ \t]*+)(?:async[ \t]++)?def[ \t]", re.MULTILINE)
_QUOTES = (b'"""', b"'''")


def outline(source: bytes) -> ast.Module | None:
    """Return the syntax tree, without the bodies of functions unless a text may begin in one and end in another.

    Lines keep their numbers.
    """
    pieces: list[bytes] = []
    end = 0
    for function in _FUNCTION.finditer(source):
        if function.start() < end:
            continue
        body = _header_end(source, function.start())
        next_statement = _statement_at(len(function[1])).search(source, body)
        pieces.append(source[end:body].rstrip())
        end = next_statement.start() if next_statement else len(source)
        inside = source[body:end]
        if any(inside.count(quotes) % 2 for quotes in _QUOTES):
            return parse(source)
        pieces += [b" pass\n" if pieces[-1].endswith(b":") else b"\n", b"\n" * inside.count(b"\n")]
    return parse(b"".join([*pieces, source[end:]])) or parse(source)


def _header_end(source: bytes, start: int) -> int:
    """Return where the line ends that closes all brackets of a function's first line."""
    balance = 0
    while True:
        end = source.find(b"\n", start) + 1 or len(source)
        line = source[start:end]
        balance += sum(map(line.count, (b"(", b"[", b"{"))) - sum(map(line.count, (b")", b"]", b"}")))
        if balance <= 0 or end == len(source):
            return end
        start = end


@cache
def _statement_at(indent: int) -> re.Pattern[bytes]:
    """Return the pattern of a line that begins a statement with at most this indent."""
    expression = rb"^[ \t]{0,%d}+[^ \t\f\r\n)\]}#]" % indent
    return re.compile(expression, re.MULTILINE)
