"""The names that a module's `__getattr__` answers, as PEP 562 defines it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping


def answered_names(function: ast.FunctionDef, tree: ast.Module) -> set[str] | None:
    """Return the names that a module's `__getattr__` answers; None where its code does not show them.

    They show where each of its conditions compares the name with texts, or looks it up in a table of the module, and
    everything else raises.
    """
    tables = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    if not function.args.args:
        return None
    return _cases(function.body, function.args.args[0].arg, tables)


def _cases(body: list[ast.stmt], name: str, tables: Mapping[str, ast.expr]) -> set[str] | None:
    names: set[str] = set()
    pending = list(body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Raise):
            return names
        if isinstance(node, ast.If):
            texts = _compared(node.test, name, tables)
            if texts is None:
                return None
            names |= texts
            pending = [*node.orelse, *pending]
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
            return None
    return None


def _compared(test: ast.expr, name: str, tables: Mapping[str, ast.expr]) -> set[str] | None:
    """Return the texts for which the test may hold of `name`; None where they do not show."""
    match test:
        case ast.Compare(left=ast.Name(id=left), ops=[ast.Eq() | ast.In()], comparators=[right]) if left == name:
            table = tables.get(right.id) if isinstance(right, ast.Name) else right
            texts = list(_listed(table))
            return None if None in texts else {text for text in texts if text is not None}
        case _:
            return None


def _listed(table: ast.expr | None) -> Iterator[str | None]:
    """Yield the texts of a literal table, None for anything else in it."""
    items: Iterable[ast.expr | None] = [table]
    if isinstance(table, ast.Dict):
        items = table.keys
    elif isinstance(table, ast.Set | ast.List | ast.Tuple):
        items = table.elts
    for item in items:
        text = item.value if isinstance(item, ast.Constant) else None
        yield text if isinstance(text, str) else None
