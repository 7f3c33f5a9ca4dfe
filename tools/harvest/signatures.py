"""The keyword arguments that the functions and classes of a package take, as its sources show them.

A keyword is refused only where that is certain: one statement of the module binds the name, its decorators pass on all
arguments, and `**` parameters are forwarded to functions and classes that refuse it too. Sources: The Python
Language Reference, "Calls" and "Function definitions"; the documentation of dataclasses and of msgspec.Struct.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from imagegen.audit.api.source import absolute, dotted, parse
from imagegen.audit.api.uses import is_super_init

_DEEPEST = 12  # names that lead from one to the next
_PLAIN = {"object", "ABC", "Generic", "Protocol"}  # bases without a constructor of their own
_WRAPS = "wraps"  # functools.wraps

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """The source of a module; `package` says whether it is an `__init__.py`."""

    text: bytes
    package: bool


@dataclass(frozen=True)
class _Module:
    """The parsed module, and the statements that bind its names; a name that code may bind in two ways is not there."""

    name: str
    package: bool
    bindings: dict[str, ast.stmt]


class Signatures:
    """The signatures of the functions and classes of a package. `source` returns the source of a module, if any."""

    def __init__(self, source: Callable[[str], Source | None]) -> None:
        self._source = source
        self._modules: dict[str, _Module | None] = {}

    def refuses(self, name: str, keyword: str) -> bool:
        """Return whether a call of the dotted name with the keyword argument is certain to raise TypeError."""
        accepted = self._accepted_by_name(name, _DEEPEST)
        return accepted is not None and keyword not in accepted

    # --- names ----------------------------------------------------------------------------------------------------

    def _accepted_by_name(self, name: str, depth: int) -> frozenset[str] | None:
        """Return the keywords that the function or class takes; None where any may be taken."""
        definition = self._definition(name, depth)
        if definition is None:
            return None
        module, node = definition
        if isinstance(node, ast.ClassDef):
            return self._constructor(module, node, depth - 1)
        return self._function(module, node, depth - 1, None)

    def _definition(self, name: str, depth: int) -> tuple[_Module, _Function | ast.ClassDef] | None:
        """Return the definition of a dotted name of the package and the module that holds it."""
        above, _, last = name.rpartition(".")
        module = self._module(above) if above and depth else None
        statement = module.bindings.get(last) if module else None
        if module is None or statement is None:
            return None
        if isinstance(statement, _Function | ast.ClassDef):
            return module, statement
        if isinstance(statement, ast.ImportFrom) and (
            target := absolute(statement, module.name, package=module.package)
        ):
            imported = next(alias.name for alias in statement.names if (alias.asname or alias.name) == last)
            return self._definition(f"{target}.{imported}", depth - 1)
        return None

    def _local(self, module: _Module, node: ast.expr, depth: int) -> tuple[_Module, _Function | ast.ClassDef] | None:
        """Return the definition of a name as the module writes it."""
        return self._definition(f"{module.name}.{node.id}", depth) if isinstance(node, ast.Name) else None

    def _module(self, name: str) -> _Module | None:
        if name not in self._modules:
            source = self._source(name)
            tree = parse(source.text) if source else None
            parsed = _Module(name, source.package, _bindings(tree)) if source and tree else None
            self._modules[name] = parsed
        return self._modules[name]

    # --- functions ------------------------------------------------------------------------------------------------

    def _function(
        self, module: _Module, node: _Function, depth: int, owner: ast.ClassDef | None
    ) -> frozenset[str] | None:
        """Return the keywords of a function, or of the method of `owner`; None where any may be taken."""
        if not all(self._passes_on(module, decorator, depth) for decorator in node.decorator_list):
            return None
        parameters = frozenset(arg.arg for arg in (*node.args.args, *node.args.kwonlyargs))
        if node.args.kwarg is None:
            return parameters
        forwarded = self._forwarded(module, node, node.args.kwarg.arg, depth, owner)
        return None if forwarded is None else parameters | forwarded

    def _forwarded(
        self, module: _Module, node: _Function, kwargs: str, depth: int, owner: ast.ClassDef | None
    ) -> frozenset[str] | None:
        """Return the keywords that a function takes by its `**` parameter, from how its body uses that."""
        used = _uses_of(node, kwargs)
        always = {id(child) for child in _always(node.body)}
        if used is None or not any(id(call) in always for call in used.calls):
            return None
        keywords = set(used.keys)
        local = _bound_inside(node)
        for call in used.calls:
            accepted = self._callee(module, call.func, local, depth, owner)
            if accepted is None:
                return None
            keywords |= accepted
        return frozenset(keywords)

    def _callee(
        self, module: _Module, node: ast.expr, local: set[str], depth: int, owner: ast.ClassDef | None
    ) -> frozenset[str] | None:
        if is_super_init(node):
            return self._inherited(module, owner, depth - 1) if owner and depth else None
        if isinstance(node, ast.Name) and node.id not in local:
            return self._accepted_by_name(f"{module.name}.{node.id}", depth)
        return None

    def _passes_on(self, module: _Module, decorator: ast.expr, depth: int) -> bool:
        """Return whether the decorator is of the package, and gives a function the arguments that it was called with.

        It does where the function that it makes wraps another one (`functools.wraps`), and only reads its arguments.
        """
        definition = self._local(module, decorator.func if isinstance(decorator, ast.Call) else decorator, depth)
        if definition is None or isinstance(definition[1], ast.ClassDef):
            return False
        wrappers = [
            function
            for function in ast.walk(definition[1])
            if isinstance(function, _Function) and any(_is_named(name, _WRAPS) for name in function.decorator_list)
        ]
        return bool(wrappers) and all(_forwards_all(wrapper) for wrapper in wrappers)

    # --- classes --------------------------------------------------------------------------------------------------

    def _constructor(self, module: _Module, node: ast.ClassDef, depth: int) -> frozenset[str] | None:
        """Return the keywords that a call of the class takes; None where any may be taken."""
        if depth <= 0 or not _shows_constructor(node):
            return None
        constructors = [
            statement for statement in node.body if isinstance(statement, _Function) and statement.name == "__init__"
        ]
        if constructors:
            return self._function(module, constructors[0], depth, node) if len(constructors) == 1 else None
        inherited = self._inherited(module, node, depth - 1)
        return None if inherited is None else inherited | frozenset(_fields(node))  # also of a Struct's subclass

    def _inherited(self, module: _Module, node: ast.ClassDef, depth: int) -> frozenset[str] | None:
        """Return the keywords that the constructors of the bases take; None where any may be taken."""
        keywords: set[str] = set()
        for base in node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            if any(_is_named(name, plain) for plain in (*_PLAIN, "Struct")):
                continue
            definition = self._local(module, name, depth)
            if definition is None or not isinstance(definition[1], ast.ClassDef):
                return None
            accepted = self._constructor(definition[0], definition[1], depth - 1)
            if accepted is None:
                return None
            keywords |= accepted
        return frozenset(keywords)


_MEMBERS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.AnnAssign, ast.Assign, ast.Expr, ast.Pass)


def _shows_constructor(node: ast.ClassDef) -> bool:
    """Return whether nothing but `__init__` or annotated names in its body decides what a call of the class takes."""
    names = [statement.name for statement in node.body if isinstance(statement, _Function)]
    return (
        all(_is_dataclass(decorator) for decorator in node.decorator_list)
        and all(keyword.arg != "metaclass" for keyword in node.keywords)
        and "__new__" not in names
        and ("__init__" in names or all(isinstance(statement, _MEMBERS) for statement in node.body))
    )


@dataclass(frozen=True)
class _Uses:
    """The uses of a `**` parameter: calls that forward it, and keys that the function reads or removes."""

    calls: tuple[ast.Call, ...]
    keys: frozenset[str]


def _uses_of(node: _Function, name: str) -> _Uses | None:
    """Return how the function uses its `**` parameter; None where it does anything else with it."""
    if any(
        isinstance(child, ast.arg) and child.arg == name and child is not node.args.kwarg for child in ast.walk(node)
    ):
        return None  # a function inside it has such a parameter too
    calls: list[ast.Call] = []
    keys: set[str] = set()
    read: set[int] = set()
    for descendant in ast.walk(node):
        if isinstance(descendant, ast.Call) and (passed := _unpacked(descendant, name)):
            calls.append(descendant)
            read.update(map(id, passed))
        elif access := _key(descendant):
            if access[0].id == name:
                keys.add(access[1])
            read.add(id(access[0]))
    return _Uses(tuple(calls), frozenset(keys)) if _read_names(node, name) <= read else None


def _unpacked(call: ast.Call, name: str) -> list[ast.expr]:
    """Return the arguments `**name` of a call."""
    return [word.value for word in call.keywords if word.arg is None and _is(word.value, name)]


def _key(node: ast.AST) -> tuple[ast.Name, str] | None:
    """Return the name and the key of `name["key"]`, `"key" in name`, `name.get("key")` and `name.pop("key")`."""
    match node:
        case ast.Subscript(value=ast.Name() as value, slice=ast.Constant(value=str(key))):
            return value, key
        case ast.Compare(
            left=ast.Constant(value=str(key)), ops=[ast.In() | ast.NotIn()], comparators=[ast.Name() as value]
        ):
            return value, key
        case ast.Call(
            func=ast.Attribute(value=ast.Name() as value, attr="get" | "pop"), args=[ast.Constant(value=str(key)), *_]
        ):
            return value, key
        case _:
            return None


def _read_names(node: ast.AST, name: str) -> set[int]:
    """Return the identities of the expressions that are this name."""
    return {id(child) for child in ast.walk(node) if isinstance(child, ast.Name) and child.id == name}


def _always(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of statements that each call of a function with this body runs, if nothing raises."""
    for node in body:
        if isinstance(node, ast.With):
            yield from _always(node.body)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return):
            if not any(isinstance(child, ast.Lambda | ast.IfExp | ast.BoolOp) for child in ast.walk(node)):
                yield from ast.walk(node)
        elif any(isinstance(child, ast.Return | ast.Yield | ast.YieldFrom) for child in ast.walk(node)):
            return


def _forwards_all(node: _Function) -> bool:
    """Return whether a function only reads its `*` and `**` parameters and passes them to each callee."""
    if node.args.vararg is None or node.args.kwarg is None or node.args.args or node.args.kwonlyargs:
        return False
    name = node.args.kwarg.arg
    read: set[int] = set()
    for child in ast.walk(node):
        match child:
            case ast.Attribute(value=value, attr="keys" | "items" | "values" | "get"):
                read.add(id(value))
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[value]):
                read.add(id(value))
            case ast.Call():
                read.update(map(id, _unpacked(child, name)))
    returned_values = [statement.value for statement in ast.walk(node) if isinstance(statement, ast.Return)]
    calls = [
        returned_value.value if isinstance(returned_value, ast.Await) else returned_value
        for returned_value in returned_values
    ]
    forwards = bool(calls) and all(isinstance(call, ast.Call) and _unpacked(call, name) for call in calls)
    return forwards and _read_names(node, name) <= read


def _bindings(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return the statement that binds each name at module level, or for type checkers; none of a name with two."""
    statements: dict[str, list[ast.stmt]] = {}
    for node, names in _binding_statements(tree.body):
        for name in names:
            statements.setdefault(name, []).append(node)
    return {name: nodes[0] for name, nodes in statements.items() if len(nodes) == 1}


def _binding_statements(body: Iterable[ast.stmt]) -> Iterator[tuple[ast.stmt, list[str]]]:
    for node in body:
        if isinstance(node, ast.If) and (dotted(node.test) or [""])[-1] == "TYPE_CHECKING":
            yield from _binding_statements(node.body)
        elif isinstance(node, _Function | ast.ClassDef):
            yield node, [node.name]
        elif isinstance(node, ast.ImportFrom):
            yield node, [name.asname or name.name for name in node.names]
        else:
            yield node, list(_stored(node)) * 2  # by code that decides: not one definition


def _stored(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds, whatever is below it."""
    for child in ast.walk(node):
        match child:
            case ast.Name(ctx=ast.Store() | ast.Del()):
                yield child.id
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield child.name
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in child.names)


def _bound_inside(node: _Function) -> set[str]:
    """Return the names that are local to a function."""
    arguments = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
    return arguments.union(*(_stored(statement) for statement in node.body))


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the annotated names of a class body."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_dataclass(decorator: ast.expr) -> bool:
    """Return whether the decorator is `dataclasses.dataclass`, and makes a constructor."""
    arguments = [keyword.arg for keyword in decorator.keywords] if isinstance(decorator, ast.Call) else []
    return _is_named(decorator, "dataclass") and "init" not in arguments and None not in arguments


def _is_named(node: ast.expr, name: str) -> bool:
    """Return whether the expression is `name`, `a.name`, or a call of one."""
    return (dotted(node.func if isinstance(node, ast.Call) else node) or [""])[-1] == name
