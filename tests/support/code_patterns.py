"""The regular expressions of a package, with the methods that apply them."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_METHODS = frozenset({"search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"})
_APPLIES = re.compile(rf"\.(?:compile|{'|'.join(_METHODS)})\b")
_SAMPLE = "a b"  # the value of a variable that only a run can know, in an expression that builds a pattern of it


@dataclass(frozen=True)
class Pattern:
    """A pattern, its flags, the method that applies it, and its file and line."""

    text: str | bytes
    flags: int
    method: str
    where: str


@dataclass(frozen=True)
class Unknown:
    """A pattern whose text is in none of the modules: it is read from a file or handed over."""

    file: str
    expression: str
    pattern: Pattern

    def with_text(self, text: str) -> Pattern:
        return replace(self.pattern, text=text)


def collect(package: Path) -> Iterator[Pattern | Unknown]:
    """Yield each regular expression of the package once for each method that applies it."""
    texts = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
    nodes = {path: list(ast.walk(ast.parse(text))) for path, text in texts.items() if _APPLIES.search(text)}
    methods: dict[tuple[Path | None, str], set[str]] = defaultdict(set)
    for path, inside in nodes.items():
        for node in inside:
            if isinstance(node, ast.Attribute) and node.attr in _METHODS and (name := _last_name(node.value)):
                methods[path, name].add(node.attr)
                methods[None, name].add(node.attr)
    for path, inside in nodes.items():
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        targets = {id(node.value): _last_name(node.targets[0]) for node in inside if isinstance(node, ast.Assign)}
        for node in inside:
            if not (isinstance(node, ast.Call) and (function := _function_of_re(node.func))):
                continue
            name = targets.get(id(node))
            applied = {function} - {"compile"} or (
                methods[None if name.isupper() and not name.startswith("_") else path, name] if name else set()
            )
            file = str(path.relative_to(package.parent))
            text = _value(node.args[0], module)
            for method in sorted(applied or {"search"}):
                pattern = Pattern(text or "", _flags(node), method, f"{file}:{node.lineno}")
                yield pattern if text is not None else Unknown(file, ast.unparse(node.args[0]), pattern)


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _function_of_re(node: ast.expr) -> str:
    """Return the name of a function of `re` that takes a pattern, "" for anything else."""
    if isinstance(node, ast.Attribute) and _last_name(node.value) == "re" and node.attr in (*_METHODS, "compile"):
        return node.attr
    return ""


def _flags(call: ast.Call) -> int:
    """Return the flags of a call: names of `re` that stand anywhere in its arguments."""
    names = {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute) and node.attr.isupper()}
    flags = 0
    for name in names:
        value = getattr(re, name, 0)
        flags |= value if isinstance(value, re.RegexFlag) else 0
    return flags


def _value(expression: ast.expr, module: str) -> str | bytes | None:
    """Return the text of a pattern; variables of functions count as `_SAMPLE` in an expression that builds a text."""
    if isinstance(expression, ast.Constant):
        return expression.value  # type: ignore[return-value]
    try:
        names = vars(importlib.import_module(module))
    except ImportError:
        return None
    builds = isinstance(expression, (ast.JoinedStr, ast.BinOp)) or (
        isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute)
    )
    code = compile(ast.Expression(expression), module, "eval")
    variables = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)} if builds else set[str]()
    for sample in (_SAMPLE, _SAMPLE.encode()):
        try:
            value: str | bytes = eval(code, dict.fromkeys(variables, sample) | vars(builtins) | names)
        except (NameError, TypeError):
            continue
        return value
    return None
