"""The names that a module's `__getattr__` answers, as PEP 562 defines it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping


def answered_names(function: ast.FunctionDef, tree: ast.Module) -> set[str] | None:
    """Return the names that a module's `__getattr__` answers; None where its code does not show them.

    They show where each of its conditions compares the name with texts, or looks it up in a table of the module, and
    everything else raises.
    """
    if not function.args.args:
        return None
    return _cases(function.body, function.args.args[0].arg, _tables(tree))


def attached_names(tree: ast.Module) -> dict[str, str] | None:
    """Return the names that `__getattr__, ... = attach(__name__, submodules, submod_attrs)` answers.

    The value of a name is the module below this one that defines it, the name itself for a module. None where no such
    statement shows them. Source: Scientific Python's SPEC 1, lazy_loader, of which huggingface-hub has a copy.
    """
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id="__getattr__"), *_])], value=ast.Call() as call):
                break
    else:
        return None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name.lstrip("_") != "attach":
        return None
    tables, names = _tables(tree), dict[str, str]()
    arguments = dict(zip(("package_name", "submodules", "submod_attrs"), call.args, strict=False))
    arguments |= {word.arg: word.value for word in call.keywords if word.arg}
    for key in ("submodules", "submod_attrs"):
        argument = arguments.get(key)
        table = tables.get(argument.id) if isinstance(argument, ast.Name) else argument
        if table is None:
            continue
        try:
            values = ast.literal_eval(table)
            pairs = values.items() if key == "submod_attrs" else ((value, [value]) for value in values)
            names |= {attribute: module for module, attributes in pairs for attribute in attributes}
        except (ValueError, TypeError, AttributeError):
            return None
    return names or None


def _tables(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values of assignments at module level, by name."""
    statements, blocks = list[ast.stmt](), list(tree.body)
    for node in blocks:  # the list grows
        statements.append(node)
        if isinstance(node, ast.If | ast.Try):
            blocks += [*node.body, *node.orelse]
    return {
        target.id: node.value
        for node in statements
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _cases(body: list[ast.stmt], name: str, tables: Mapping[str, ast.expr]) -> set[str] | None:
    names: set[str] = set()
    pending = list(body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Raise):
            return names
        if isinstance(node, ast.If):
            texts = set() if _raises(node.body) else _compared(node.test, name, tables)
            if texts is None:
                return None
            names |= texts
            pending = [*node.orelse, *pending]
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
            return None
    return None


def _raises(body: list[ast.stmt]) -> bool:
    """Return whether the statements of a block answer no name."""
    returns = any(isinstance(node, ast.Return) for statement in body for node in ast.walk(statement))
    return isinstance(body[-1], ast.Raise) and not returns


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
