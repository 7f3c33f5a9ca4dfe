"""The names that a Python module needs of other modules while it is imported.

Bodies of functions do not run then and are not read. A statement that the module can do without is left out: one in
`try` with a handler of ImportError, or below a condition that the source does not decide. Comparisons of versions are
kept as data, to be decided by the releases that are installed. Source of the rules: The Python Language Reference,
"The import system" and "Execution model".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from imagegen.audit.api.conditions import (
    COMPARISONS,
    MIRRORED,
    PARSERS,
    PYTHON,
    REQUIRING,
    Decision,
    Tests,
    VersionTest,
    all_of,
    asked_version,
    is_version,
    of_platform,
    opposite,
    required_tests,
)
from imagegen.audit.api.exports import (
    CREATES,
    GETATTR,
    HOOK,
    OPEN,
    Module,
    computes_names,
    is_dynamic,
    module_of_tree,
    parents,
)
from imagegen.audit.api.getattrs import attached_names
from imagegen.audit.api.source import absolute, children, dotted, is_package, module_name, outline, parse, texts, walk
from imagegen.audit.api.uses import handles
from imagegen.audit.catalogue import data

_MAJOR = {"==": "major", "!=": "not major"}  # comparisons of the first digit
_ASKING = {"version", "get_version", "get_pkg_version", "distribution", "get_distribution", "find_spec"}
_LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)
_STANDARD = sys.stdlib_module_names
# Source: numpy/__multiarray_api.h of NumPy 1.21 to 2.3, _import_array
_NUMPY_ABI = b"module compiled against "
# Code that protoc before 3.19 generated creates descriptors, which protobuf refuses from 4 on. Source: protobuf 4.21,
# message.cc, "Descriptors cannot be created directly".
_OLD_PROTOC = re.compile(rb"^\w+ = _descriptor\.(?:File|Enum)?Descriptor\(", re.MULTILINE)
# Code of a newer protoc asks for its own release, or a newer one of at most the next major. Source: protobuf's
# google/protobuf/runtime_version.py.
_NEW_PROTOC = re.compile(rb"\.ValidateProtobufRuntimeVersion\(\s*[\w.]+\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+),")
_ANNOTATED = VersionTest(PYTHON, "<", "3.14")  # Pythons that evaluate annotations at once (PEP 649)
_CREATING = re.compile(rb"\bmodules\[(?!__name__\]|[\"'])[^\n=\[\]]++\] = ")
_SUFFIXES = re.compile(rb"\bname\.endswith\([\"'](\w+)[\"']\)")
_LAZY = (b"__getattr__", b"_LazyModule")  # PEP 562, and the class of transformers that diffusers and others copy


class ImportedName(NamedTuple):
    """A dotted name that an import needs if all `tests` hold; the first `modules` parts of it must be modules."""

    name: str  # "huggingface_hub.HfFolder"
    modules: int
    line: int
    tests: Tests = ()


class Refusal(NamedTuple):
    """A statement that raises if all `tests` hold."""

    line: int
    tests: Tests


class RequiredRows(NamedTuple):
    """A statement that raises if the requirement of one of `keys` in a table of a module is not satisfied."""

    line: int
    table: str  # "transformers.dependency_versions_table.deps"
    keys: tuple[str, ...]


@dataclass(frozen=True)
class ImportTime:
    """A module as its import sees it. `lazy` maps names that it imports on demand to the modules that define them.

    `tables` are its dictionaries of requirements (PEP 508) by name.
    """

    defined: Module = OPEN
    names: tuple[ImportedName, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    lazy: Mapping[str, str] = field(default_factory=dict)
    required: tuple[RequiredRows, ...] = ()
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Removed(NamedTuple):
    """A module, or a name of one, that some releases do not have; packages of `unless` have it nevertheless."""

    name: str
    lacks: VersionTest
    unless: str


@cache
def _removed() -> dict[str, Removed]:
    return {
        name: Removed(name, VersionTest(*row["lacks"]), row.get("unless", ""))
        for row in data("removed")
        for name in row["names"]
    }


def removed_modules() -> set[str]:
    """Return the top-level modules that some releases of Python or of a package do not have."""
    return {name.partition(".")[0] for name in _removed()}


def removed_name(name: str) -> Removed | None:
    """Return the part of a dotted name that some releases of Python, or of its package, do not have."""
    return next((_removed()[part] for part in (*parents(name), name) if part in _removed()), None)


def import_time(path: str, source: bytes) -> ImportTime:
    """Return the needs and definitions of the source or compiled module at `path`, relative to site-packages."""
    name = module_name(path)
    if name is None or not path.endswith(".py"):
        return compiled_time(source) if name else ImportTime()
    package = is_package(path)
    tree = parse(source) if is_dynamic(source) else outline(source)
    if tree is None:
        return ImportTime()
    defined = module_of_tree(tree, source, name, package=package)
    reader = _Reader(name, package=package, tree=tree)
    reader.read(tree.body, _Context())
    lazy = reader.lazy() if any(mark in source for mark in _LAZY) else {}
    above = name if package else name.rpartition(".")[0]
    lazy |= {attribute: f"{above}.{below}" for attribute, below in (attached_names(tree) or {}).items()}
    defined = replace(
        defined, names=(defined.names | _declared(tree)) - reader.submodules() | _marks(defined, tree, source)
    )
    first = {imported._replace(line=0): imported for imported in reversed(reader.names)}
    tables = _tables(reader.values) if b">=" in source else {}
    refusals = (*reader.refusals, *_refused_protobuf(source))
    return ImportTime(defined, tuple(sorted(first.values())), refusals, lazy, tuple(reader.required), tables)


def _refused_protobuf(source: bytes) -> Iterator[Refusal]:
    """Yield the releases of protobuf that generated code refuses."""
    if old := _OLD_PROTOC.search(source):
        yield Refusal(_line(source, old), (VersionTest("protobuf", ">=", "4"),))
    if new := _NEW_PROTOC.search(source):
        major, minor, patch = map(int, new.groups())
        yield Refusal(_line(source, new), (VersionTest("protobuf", "<", f"{major}.{minor}.{patch}"),))
        yield Refusal(_line(source, new), (VersionTest("protobuf", ">=", f"{major + 2}"),))


def _line(source: bytes, match: re.Match[bytes]) -> int:
    return source.count(b"\n", 0, match.start()) + 1


def _tables(values: Mapping[str, ast.expr]) -> dict[str, dict[str, str]]:
    """Return the dictionaries of requirements among the values of names."""
    tables = {name: dict(zip(texts(value.keys), texts(value.values), strict=False))
              for name, value in values.items() if isinstance(value, ast.Dict)}  # fmt: skip
    return {
        name: table
        for name, table in tables.items()
        if table and all(text.startswith(key) for key, text in table.items())
    }


def _declared(tree: ast.Module) -> set[str]:
    """Return the names that the module lists in `__all__`; compiled code may bind those that no statement binds."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value, ast.List | ast.Tuple) and any(
                dotted(target) == ["__all__"] for target in targets
            ):
                names.update(texts(node.value.elts))
    return names


def _marks(defined: Module, tree: ast.Module, source: bytes) -> frozenset[str]:
    """Return `GETATTR` if only attribute lookups of the module answer more names than it defines, not imports.

    Return `HOOK` if the module changes how Python finds modules, and `CREATES` if it creates modules under computed
    names, as transformers 5 does for modules that it renamed; and "*Fast" if lazy modules answer names with an ending.
    """
    is_lazy = defined.open and b"__path__" not in source and not computes_names(tree, source)
    lazy_class = source.partition(b"\nclass _LazyModule(")[2]
    suffixes = {f"*{suffix.decode()}": True for suffix in _SUFFIXES.findall(lazy_class)}
    marks = suffixes | {GETATTR: is_lazy, HOOK: b"sys.meta_path" in source, CREATES: bool(_CREATING.search(source))}
    return frozenset(mark for mark, is_set in marks.items() if is_set)


def compiled_time(binary: bytes) -> ImportTime:
    """Return the needs of a compiled module. It may define any name.

    `import_array`, which the headers of NumPy 1 define, ends the import with NumPy 2. The headers of NumPy 2 look for
    `numpy._core` first.
    """
    is_of_numpy_1 = _NUMPY_ABI in binary and b"numpy.core.multiarray" in binary and b"numpy._core" not in binary
    return ImportTime(refusals=(Refusal(0, (VersionTest("numpy", ">=", "2"),)),) if is_of_numpy_1 else ())


@dataclass(frozen=True, slots=True)
class _Context:
    """The conditions of a statement; `guarded` if the source does not decide them, or the module survives a failure."""

    tests: Tests = ()
    guarded: bool = False
    typing: bool = False  # only type checkers read it
    trying: bool = False  # in a block of `try`


class _Reader:
    """Reads the statements of one module that run when it is imported."""

    def __init__(self, name: str, *, package: bool, tree: ast.Module) -> None:
        self._module, self._package = name, package
        self.names: list[ImportedName] = []
        self.refusals: list[Refusal] = []
        self.required: list[RequiredRows] = []
        self._typed: dict[str, str] = {}  # name -> the module from which type checkers import it
        self._bound: dict[str, str] = {}  # local name -> the dotted name that a certain import gives it
        self._assigned = list(_assignments(tree.body))
        self._rebound = {bound for bound, _ in self._assigned}
        self.values = _single_values(self._assigned)
        self._annotations_stay_texts = any(
            alias.name == "annotations"
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module == "__future__"
            for alias in node.names
        )

    def lazy(self) -> dict[str, str]:
        """Return the names that only type checkers see imported, with their modules."""
        return {name: target for name, target in self._typed.items() if name not in self._bound.keys() | self._rebound}

    def submodules(self) -> set[str]:
        """Return the names that a package binds only by importing modules of its own, which keep their names."""
        bound = {name for name, target in self._bound.items() if target == f"{self._module}.{name}"}
        return bound - self._rebound if self._package else set()

    def read(self, body: Iterable[ast.stmt], context: _Context) -> _Context:
        """Read the statements of a block; return the context after its last one."""
        for node in body:
            context = self._statement(node, context)
        return context

    def _statement(self, node: ast.stmt, context: _Context) -> _Context:
        match node:
            case ast.If():
                return self._if(node, context)
            case ast.Import():
                self._import(node, context)
            case ast.ImportFrom():
                self._import_from(node, context)
            case ast.Raise() if context.tests and not context.guarded and not context.trying:
                self.refusals.append(Refusal(node.lineno, context.tests))
            case ast.Assert():
                decision = self._decision(node.test)
                if isinstance(decision, tuple) and len(decision) == 1:
                    self._refuse(node.lineno, decision[0].opposite(), context)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
                self._expressions([*node.decorator_list, *defaults], context)
                self._annotations([*_annotations(node.args), *filter(None, [node.returns])], context)
            case ast.Try() | ast.TryStar() | ast.With() | ast.AsyncWith() | ast.ClassDef():
                self._block(node, context)
            case ast.For() | ast.AsyncFor() | ast.While() | ast.Match():
                self._loop(node, context)
            case _:
                self._expressions([node], context)
                self._annotations([node.annotation] if isinstance(node, ast.AnnAssign) else [], context)
        return context

    def _block(self, node: ast.Try | ast.TryStar | ast.With | ast.AsyncWith | ast.ClassDef, context: _Context) -> None:
        if isinstance(node, ast.ClassDef):
            self._expressions([*node.bases, *node.keywords, *node.decorator_list], context)
            self.read(node.body, context)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self._with(node, context)
        else:
            self._try(node, context)

    # Conditions

    def _if(self, node: ast.If, context: _Context) -> _Context:
        if (dotted(node.test) or [""])[-1] == "TYPE_CHECKING":
            self.read(node.body, replace(context, typing=True))
            return self.read(node.orelse, context)
        decision = self._decision(node.test)
        self._expressions([node.test], context)
        if isinstance(decision, bool):
            return self.read(node.body if decision else node.orelse, context)
        unknown = replace(context, guarded=True)
        if decision is None:
            self.read(node.body, unknown)
            self.read(node.orelse, unknown)
            return unknown if _leaves(node.body, context) else context
        otherwise_tests = opposite(decision)
        otherwise = (
            replace(context, tests=(*context.tests, *otherwise_tests))
            if isinstance(otherwise_tests, tuple)
            else unknown
        )
        self.read(node.body, replace(context, tests=(*context.tests, *decision)))
        self.read(node.orelse, otherwise)
        return otherwise if isinstance(node.body[-1], _LEAVES) else context

    def _decision(self, test: ast.expr) -> Decision:
        """Return whether a condition holds on Linux, or the tests of versions that it consists of."""
        match test:
            case ast.Name(id=name) if name in self.values:
                return self._decision(self.values[name])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return opposite(self._decision(operand))
            case ast.BoolOp(op=ast.And(), values=values):
                return all_of([self._decision(value) for value in values])
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
                return self._comparison(left, COMPARISONS[type(op)], right)
            case ast.Call(keywords=[]) if asked := asked_version(test):
                return (asked,)
            case _:
                return of_platform(test)

    def _comparison(self, left: ast.expr, comparison: str, right: ast.expr) -> Decision:
        on_linux = of_platform(ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))
        if on_linux is not None and comparison in {"==", "!="}:
            return on_linux == (comparison == "==")
        name, version = self._installed(left), self._literal(right)
        if name is None and version is not None and comparison in _MAJOR:
            name, comparison = self._major(left), _MAJOR[comparison]
        if name is None or version is None:
            name, version, comparison = self._installed(right), self._literal(left), MIRRORED.get(comparison, "")
        if name is None or version is None:
            return None
        return (VersionTest(name, comparison, version),)

    def _major(self, node: ast.expr) -> str | None:
        """Return the distribution in `hub.__version__[0]`, or the top-level module."""
        match self.values.get(node.id, node) if isinstance(node, ast.Name) else node:
            case ast.Subscript(value=value, slice=ast.Constant(value=0) | ast.Slice(upper=ast.Constant(value=1))):
                return self._installed(value)
            case _:
                return None

    def _installed(self, node: ast.expr) -> str | None:
        """Return the distribution, or the top-level module, whose installed version the expression is."""
        installed: str | None = None
        match node:
            case ast.Name(id=name) if name in self.values:
                installed = self._installed(self.values[name])
            case ast.Call(func=function, args=[argument], keywords=[]):
                called = (dotted(function) or [""])[-1]
                if called in PARSERS:
                    installed = self._installed(argument)
                elif called == "version":
                    installed = next(iter(texts([argument])), None)
            case ast.Attribute(attr="base_version" | "public" | "release", value=value):
                installed = self._installed(value)
            case ast.Attribute(attr="__version__", value=value):
                installed = self._imported(value)
            case (
                ast.Attribute(attr="version_info")
                | ast.Subscript(value=ast.Attribute(attr="version_info"), slice=ast.Slice(lower=None, step=None))
            ):
                installed = PYTHON
        return installed

    def _literal(self, node: ast.expr) -> str | None:
        """Return the version that the expression writes."""
        match node:
            case ast.Name(id=name) if name in self.values:
                return self._literal(self.values[name])
            case ast.Call(func=function, args=[argument]) if (dotted(function) or [""])[-1] in PARSERS:
                return self._literal(argument)
            case ast.Constant(value=str(text)):
                return text if is_version(text) else None
            case ast.Tuple(elts=elements):
                numbers = [element.value for element in elements if isinstance(element, ast.Constant)]
                whole = (
                    bool(numbers) and len(numbers) == len(elements) and all(type(number) is int for number in numbers)
                )
                return ".".join(map(str, numbers)) if whole else None
            case _:
                return None

    def _refuse(self, line: int, test: VersionTest, context: _Context) -> None:
        if not context.guarded and not context.typing:
            self.refusals.append(Refusal(line, (*context.tests, test)))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While | ast.Match, context: _Context) -> None:
        if isinstance(node, ast.For) and not context.guarded and not context.typing and not context.tests:
            self._require_rows(node)
        self._expressions([child for child in children(node) if isinstance(child, ast.expr)], context)
        self.read(_nested(node), replace(context, guarded=True))

    def _require_rows(self, loop: ast.For) -> None:
        """Read `for key in [texts]: require_version_core(TABLE[key])`."""
        keys = self.values.get(loop.iter.id) if isinstance(loop.iter, ast.Name) else loop.iter
        required = texts(keys.elts) if isinstance(keys, ast.List | ast.Tuple) else []
        for call in walk(loop):
            match call:
                case ast.Call(func=function, args=[ast.Subscript(value=table, slice=key), *_]):
                    name = self._imported(table)
                    is_required = (dotted(function) or [""])[-1] in REQUIRING
                    if required and name and is_required and dotted(key) == dotted(loop.target):
                        self.required.append(RequiredRows(call.lineno, name, tuple(required)))

    def _try(self, node: ast.Try | ast.TryStar, context: _Context) -> None:
        guarded = replace(context, guarded=True)
        catching = [handler for handler in node.handlers if handles(handler.type)]
        survives = any(not isinstance(handler.body[-1], ast.Raise) for handler in catching)
        survives = survives or any(map(_asks_for_distribution, node.body))
        after = self.read(node.body, guarded if survives else replace(context, trying=True))
        for handler in node.handlers:
            self.read(handler.body, guarded)
        self.read(node.orelse, replace(after, trying=context.trying))
        self.read(node.finalbody, context)

    def _with(self, node: ast.With | ast.AsyncWith, context: _Context) -> None:
        managers = [item.context_expr for item in node.items]
        self._expressions(managers, context)
        calls = [manager for manager in managers if isinstance(manager, ast.Call)]
        suppressed = any((dotted(call.func) or [""])[-1] in {"suppress", "try_import"} for call in calls)
        self.read(node.body, replace(context, guarded=context.guarded or suppressed))

    # Imports, attributes and calls

    def _import(self, node: ast.Import, context: _Context) -> None:
        for alias in node.names:
            self._add(alias.name, alias.name.count(".") + 1, node.lineno, context)
            local = alias.asname or alias.name.partition(".")[0]
            self._bind(local, alias.name if alias.asname else local, context)

    def _import_from(self, node: ast.ImportFrom, context: _Context) -> None:
        target = absolute(node, self._module, package=self._package)
        if target is None or target == "__future__":
            return
        depth = target.count(".") + 1
        for alias in node.names:
            name = target if alias.name == "*" else f"{target}.{alias.name}"
            if context.typing:
                self._typed[alias.asname or alias.name] = target
                continue
            self._add(name, depth, node.lineno, context)
            self._bind(alias.asname or alias.name, name, context)

    def _bind(self, local: str, name: str, context: _Context) -> None:
        is_certain = not (context.guarded or context.tests or context.typing)
        if not is_certain or self._bound.setdefault(local, name) != name:
            self._rebound.add(local)

    def _imported(self, node: ast.expr) -> str | None:
        """Return the dotted name that an import gives `a.b.c`; None where another statement may bind `a`."""
        names = dotted(node)
        bound = self._bound.get(names[0]) if names and names[0] not in self._rebound else None
        return ".".join([bound, *names[1:]]) if names and bound else None

    def _expressions(self, nodes: Iterable[ast.AST], context: _Context) -> None:
        """Read attributes of imported modules and calls in expressions that run; lambdas and branches may not."""
        if context.guarded or context.typing:
            return
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Lambda | ast.IfExp | ast.BoolOp):
                continue
            if isinstance(node, ast.AnnAssign):
                pending += [child for child in (node.target, node.value) if child]
                continue
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                if name := self._imported(node):
                    self._add(name, 1, node.lineno, context)
                    continue
            elif isinstance(node, ast.Call):
                self._call(node, context)
            pending += children(node)

    def _annotations(self, nodes: Iterable[ast.AST], context: _Context) -> None:
        if not self._annotations_stay_texts:
            self._expressions(nodes, replace(context, tests=(*context.tests, _ANNOTATED)))

    def _call(self, node: ast.Call, context: _Context) -> None:
        name = self._imported(node.func)
        if name is None:
            return
        first = node.args[0] if node.args else None
        if name.rpartition(".")[2] in REQUIRING and isinstance(first, ast.Constant) and isinstance(first.value, str):
            for test in required_tests(first.value):
                self._refuse(node.lineno, test.opposite(), context)

    def _add(self, name: str, modules: int, line: int, context: _Context) -> None:
        is_read = name.partition(".")[0] not in _STANDARD or removed_name(name)
        if is_read and not context.guarded and not context.typing:
            self.names.append(ImportedName(name, modules, line, context.tests))


def _asks_for_distribution(node: ast.stmt) -> bool:
    """Return whether a statement calls a function such as importlib.metadata.version, which raises if one is absent."""
    called = ((dotted(call.func) or [""])[-1] for call in walk(node) if isinstance(call, ast.Call))
    return not _ASKING.isdisjoint(called)


def _annotations(arguments: ast.arguments) -> Iterator[ast.expr]:
    """Yield the annotations of parameters."""
    keyword_names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters = [*keyword_names, arguments.vararg, arguments.kwarg]
    yield from (argument.annotation for argument in parameters if argument and argument.annotation)


def _assignments(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that statements other than imports bind, with the value of a plain assignment."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                yield from _targets(targets)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield from _targets([target])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, None
            case ast.For(target=target) | ast.AsyncFor(target=target):
                yield from _targets([target])
            case ast.With(items=items) | ast.AsyncWith(items=items):
                yield from _targets(item.optional_vars for item in items if item.optional_vars)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.Expr):
            yield from _assignments(_nested(node))


def _nested(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements in the blocks of a statement."""
    for child in children(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from child.body


def _targets(targets: Iterable[ast.expr]) -> Iterator[tuple[str, None]]:
    for node in (node for target in targets for node in walk(target)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, None


def _single_values(assignments: Iterable[tuple[str, ast.expr | None]]) -> dict[str, ast.expr]:
    """Return the value of each name that is assigned once, if it reads only names that are assigned before."""
    values: dict[str, list[ast.expr | None]] = {}
    for name, value in assignments:
        values.setdefault(name, []).append(value)
    single = {name: value for name, [value, *others] in values.items() if value and not others}
    return {
        name: value
        for name, value in single.items()
        if all(
            single[node.id].lineno < value.lineno
            for node in walk(value)
            if isinstance(node, ast.Name) and node.id in single
        )
    }


def _leaves(body: list[ast.stmt], context: _Context) -> bool:
    """Return whether statements after the block may not run although the import succeeds."""
    return isinstance(body[-1], _LEAVES if context.trying else _LEAVES[1:])
