"""Find the ids of findings in the audit's source: the second argument of each Finding, followed to its texts.

A function's result is not followed: in it, an id stands behind its severity, (Severity.ERROR, "missing-library").
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_Function = ast.FunctionDef | ast.Module


def of(path: Path) -> set[str]:
    """The ids of a module. A Finding whose id cannot be followed is an error: an id stands as a text in its module."""
    module = _Module(ast.parse(path.read_text()))
    found = paired = set(module.paired())
    for call, around in module.calls("Finding"):
        ids = module.texts(_argument(call, 1, "id"), around, frozenset())
        assert ids | paired, f"{path.name}:{call.lineno}: which id has this finding?"
        found = found | ids
    return found


class _Module:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.around: dict[ast.AST, _Function] = {}
        for function in ast.walk(tree):  # outer ones come first
            if isinstance(function, _Function):
                self.around |= {each: function for each in ast.walk(function) if each is not function}

    def calls(self, name: str) -> Iterator[tuple[ast.Call, _Function]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called == name:
                    yield node, self.around[node]

    def paired(self) -> Iterator[str]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Tuple) and len(node.elts) > 1 and isinstance(node.elts[0], ast.Attribute):
                severity, name = node.elts[:2]
                about = severity.value if isinstance(severity, ast.Attribute) else None
                if getattr(about, "id", "") == "Severity" and isinstance(name, ast.Constant):
                    yield from [name.value] if _ID.fullmatch(str(name.value)) else []

    def texts(self, value: ast.AST | None, around: _Function, seen: frozenset[tuple[str, str]]) -> set[str]:
        """All texts that may be what `value`, an expression in a function, is."""
        if value is None:
            return set()
        found = {each.value for each in ast.walk(value) if isinstance(each, ast.Constant)}
        found = {each for each in found if isinstance(each, str) and _ID.fullmatch(each)}
        for name in {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}:
            if isinstance(value, ast.Name) and isinstance(around, ast.FunctionDef):
                found |= self._bound(name, around, seen)
        return found

    def _bound(self, name: str, function: ast.FunctionDef, seen: frozenset[tuple[str, str]]) -> set[str]:
        """Return the texts that a name in a function may have: those assigned to it, and callers' arguments."""
        found: set[str] = set()
        if (function.name, name) in seen:
            return found
        seen |= {(function.name, name)}
        for node in ast.walk(function):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = {each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)}
            if name in names:
                found |= self.texts(getattr(node, "value", getattr(node, "iter", None)), function, seen)
        parameters = [each.arg for each in function.args.args if each.arg != "self"]
        if name in parameters:
            for call, around in self.calls(function.name):
                found |= self.texts(_argument(call, parameters.index(name), name), around, seen)
        return found


def _argument(call: ast.Call, place: int, name: str) -> ast.AST | None:
    named = [each.value for each in call.keywords if each.arg == name]
    return named[0] if named else call.args[place] if len(call.args) > place else None
