"""The names that a package uses of others: by import statements, and as attributes of what these bind.

A use that the code can do without is `guarded`: in `try` with a handler of ImportError or AttributeError, below a test
of versions or of what is installed, in a branch that only type checkers read.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property

from imagegen.audit.api.exports import (
    absolute,
    dotted,
    is_package,
    module_name,
    parents,
    parse,
)

_HANDLED = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}
# Tests of versions, or of what is installed: `vllm_version >= ...`, `hasattr(...)`, `is_flash_attn_available()`.
_TEST = re.compile(
    r"(?i)version|hasattr|getattr|find_spec|available|installed|import|type_checking|support|^_?is_|^_?has_"
)
_IMPORT = re.compile(rb"\b(?:import|from)\b")
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True, slots=True, order=True)
class NameUse:
    """A use of a dotted name; the first `modules` parts of it must be modules, since an import statement names them."""

    name: str  # "vllm.v1.engine.utils.CoreEngine"
    modules: int
    path: str  # relative to site-packages
    line: int
    lazy: bool  # inside a function
    guarded: bool


def uses(path: str, source: bytes, tops: Collection[str]) -> list[NameUse]:
    """Return the uses, in the Python file at `path` below site-packages, of modules below the top-level names `tops`.

    Of several equal ones, one that is certain to run is returned, else the first one. Attributes are not read of
    modules of the file's own package.
    """
    name = module_name(path)
    if name is None or not path.endswith(".py") or (tree := parse(source)) is None:
        return []
    own = name.partition(".")[0]
    foreign = any(top != own and top.encode() in source for top in tops)
    reader = _Reader(path, name, tops, tree, None if foreign else _import_lines(source))
    reader.read(tree.body, _Where())
    return sorted(reader.uses())


@dataclass(frozen=True, slots=True)
class _Where:
    """The surroundings of a statement: the function of the module around it, any function, and a guard."""

    function: str = ""
    lazy: bool = False
    guarded: bool = False


class _Reader:
    """Reads the statements of one file, from the outside in."""

    def __init__(
        self, path: str, module: str, tops: Collection[str], tree: ast.Module, lines: Sequence[int] | None
    ) -> None:
        """Read attributes too where `lines` is None; else only the statements on these lines."""
        self._path, self._module, self._tops, self._tree, self._lines = path, module, tops, tree, lines
        self._package = is_package(path)
        self._bound: dict[str, str] = {}  # local name -> the dotted name that an import bound to it
        self._lost = set(_assigned(tree)) if lines is None else set()  # local names that are bound to anything else too
        self._doubtful: set[str] = set()  # local names of guarded imports
        self._found: dict[tuple[str, int, str], NameUse] = {}  # by name, and by function of the module
        self._referred: dict[str, list[_Where]] = {}  # name -> where it is read

    def uses(self) -> Iterator[NameUse]:
        """Yield the best use of each name; functions that only guarded code refers to count as guarded."""
        guarded = self._guarded_functions()
        best: dict[tuple[str, int], NameUse] = {}
        for (name, modules, function), found in self._found.items():
            use = replace(found, guarded=found.guarded or function in guarded)
            known = best.get((name, modules))
            if known is None or (use.guarded, use.lazy) < (known.guarded, known.lazy):
                best[name, modules] = use
        yield from best.values()

    @cached_property
    def _tests(self) -> set[str]:
        return _test_names(self._tree)

    def _guarded_functions(self) -> set[str]:
        functions = {function for _, _, function in self._found}
        functions |= {where.function for places in self._referred.values() for where in places}
        guarded: set[str] = set()
        while more := {
            name
            for name in functions - guarded
            if (places := [each for each in self._referred.get(name, ()) if each.function != name])
            and all(each.guarded or each.function in guarded for each in places)
        }:
            guarded |= more
        return guarded

    def read(self, body: Iterable[ast.stmt], where: _Where) -> None:
        """Read statements of one block; those behind a test that leaves the block are below a guard."""
        for node in filter(self._is_read, body):
            self._statement(node, where)
            if isinstance(node, ast.If) and self._is_guard(node.test) and isinstance(node.body[-1], _LEAVES):
                where = replace(where, guarded=True)

    def _is_read(self, node: ast.stmt) -> bool:
        """Return whether the statement holds one of the lines to read, or is a test that leaves its block."""
        if self._lines is None or isinstance(node, ast.If):
            return True
        place = bisect_left(self._lines, node.lineno)
        return place < len(self._lines) and self._lines[place] <= (node.end_lineno or node.lineno)

    def _statement(self, node: ast.stmt, where: _Where) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    self._import(alias, where, node.lineno)
            case ast.ImportFrom():
                self._import_from(node, where)
            case ast.If():
                self._if(node, where)
            case ast.Try() | ast.TryStar():
                self._try(node, where)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                outside = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
                self._expressions(outside, where)
                function = where.function if where.lazy else node.name
                self.read(node.body, replace(where, function=function, lazy=True))
            case ast.ClassDef():
                self._expressions([*node.bases, *node.decorator_list], where)
                self.read(node.body, where)
            case ast.With() | ast.AsyncWith():
                self._expressions([item.context_expr for item in node.items], where)
                calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
                suppressed = any((dotted(call.func) or [""])[-1] == "suppress" for call in calls)
                self.read(node.body, replace(where, guarded=where.guarded or suppressed))
            case ast.For() | ast.AsyncFor() | ast.While() | ast.Match():
                self._block(node, where)
            case _:
                self._expressions([node], where)

    def _block(self, node: ast.For | ast.AsyncFor | ast.While | ast.Match, where: _Where) -> None:
        if isinstance(node, ast.Match):
            self._expressions([node.subject], where)
            for case in node.cases:
                self.read(case.body, where)
            return
        self._expressions([node.test if isinstance(node, ast.While) else node.iter], where)
        self.read([*node.body, *node.orelse], where)

    # --- guards ---------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If, where: _Where) -> None:
        """At module level, every condition but the presence of the used package is a guard."""
        below = replace(where, guarded=True)
        if (dotted(node.test) or [""])[-1] == "TYPE_CHECKING":
            self.read(node.orelse, where)
        elif self._is_presence(node.test):
            self.read(node.body, where)
            self.read(node.orelse, below)
        else:
            chosen = below if self._is_guard(node.test) or not where.lazy else where
            self._expressions([node.test], chosen)
            self.read(node.body, chosen)
            self.read(node.orelse, chosen)

    def _is_presence(self, test: ast.expr) -> bool:
        """Return whether the test is `is_vllm_available()` or `find_spec("vllm") is not None`, which hold with vllm."""
        match test:
            case ast.Call(func=function, args=[], keywords=[]):
                name = (dotted(function) or [""])[-1]
                return any(re.fullmatch(rf"_?is_{top}_(?:available|installed)", name) for top in self._tops)
            case ast.Compare(left=ast.Call(func=function, args=[ast.Constant(value=top)]), ops=[ast.IsNot()]):
                return (dotted(function) or [""])[-1] == "find_spec" and top in self._tops
            case _:
                return False

    def _is_guard(self, test: ast.AST) -> bool:
        """Return whether the test may be one of versions or of what is installed."""
        return any(_TEST.search(name) or name in self._tests for name in _identifiers(test))

    def _try(self, node: ast.Try | ast.TryStar, where: _Where) -> None:
        below = replace(where, guarded=True)
        catching = [each for each in node.handlers if _handles(each.type)]
        forgiven = any(not isinstance(each.body[-1], ast.Raise) or len(each.body) > 2 for each in catching)
        self.read(node.body, below if forgiven else where)
        for each in node.handlers:
            self.read(each.body, below)
        self.read(node.orelse, below if forgiven else where)
        self.read(node.finalbody, where)

    # --- imports --------------------------------------------------------------------------------------------------

    def _import(self, alias: ast.alias, where: _Where, line: int) -> None:
        if self._is_used(alias.name):
            self._add(alias.name, alias.name.count(".") + 1, where, line)
            local = alias.asname or alias.name.partition(".")[0]
            self._bind(local, alias.name if alias.asname else local, where)
        else:
            self._lost.add(alias.asname or alias.name.partition(".")[0])

    def _import_from(self, node: ast.ImportFrom, where: _Where) -> None:
        target = absolute(node, self._module, package=self._package)
        if target is None or not self._is_used(target):
            self._lost.update(alias.asname or alias.name for alias in node.names)
            return
        depth = target.count(".") + 1
        for alias in node.names:
            if alias.name == "*":
                self._add(target, depth, where, node.lineno)
            else:
                self._add(f"{target}.{alias.name}", depth, where, node.lineno)
                self._bind(alias.asname or alias.name, f"{target}.{alias.name}", where)

    def _bind(self, local: str, name: str, where: _Where) -> None:
        if where.guarded:
            self._doubtful.add(local)
        if self._bound.setdefault(local, name) != name:
            self._lost.add(local)

    # --- attributes -----------------------------------------------------------------------------------------------

    def _expressions(self, nodes: Iterable[ast.AST], where: _Where) -> None:
        """Read the attributes of imported names; a guard anywhere in a statement covers all of it."""
        if self._lines is not None:
            return
        for each in (each for node in nodes for each in ast.walk(node)):
            if isinstance(each, ast.IfExp | ast.BoolOp):
                where = replace(where, guarded=True)
            elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                self._referred.setdefault(each.id, []).append(where)
            elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load) and (names := dotted(each)):
                bound = self._bound.get(names[0])
                if bound and names[0] not in self._lost:
                    guarded = where.guarded or names[0] in self._doubtful
                    self._add(".".join([bound, *names[1:]]), 1, replace(where, guarded=guarded), each.lineno)

    def _is_used(self, module: str) -> bool:
        return module.partition(".")[0] in self._tops

    def _add(self, name: str, modules: int, where: _Where, line: int) -> None:
        made = NameUse(name, modules, self._path, line, where.lazy, where.guarded)
        key = (name, modules, where.function)
        known = self._found.get(key)
        if known is None or (made.guarded, made.lazy) < (known.guarded, known.lazy):
            self._found[key] = made


def _import_lines(source: bytes) -> list[int]:
    """Return the numbers of the lines on which import statements may begin, sorted."""
    return [number for number, line in enumerate(source.splitlines(), 1) if _IMPORT.search(line)]


def _test_names(tree: ast.Module) -> set[str]:
    """Return the names that assignments bind to a test of versions or of what is installed: `NEW = version >= ...`."""
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(map(_TEST.search, _identifiers(node.value)))
        for target in node.targets
        for name in _identifiers(target)
    }


def _assigned(tree: ast.Module) -> Iterator[str]:
    """Yield the names that statements other than imports bind anywhere in the file, and names of parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def _identifiers(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr


def _handles(kind: ast.expr | None) -> bool:
    """Return whether a handler of this kind catches that a name does not exist."""
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or (dotted(each) or [""])[-1] in _HANDLED for each in kinds)


# The names of other packages that a package requires: those it uses in modules that run, with no guard before them.

_Edges = Mapping[str, Collection[str]]  # path -> paths of the files that it imports


@dataclass(frozen=True, slots=True, order=True)
class RequiredName:
    """A dotted name of another package; the first `modules` parts of it must be modules.

    `certain`: its file is imported in normal use, and the name is used there at module level. Otherwise it is used in a
    function, or in a file that only functions import.
    """

    name: str  # "vllm.v1.engine.utils.CoreEngine"
    modules: int
    path: str  # relative to site-packages
    line: int
    certain: bool


def requirements(files: Mapping[str, bytes], starts: Mapping[str, Sequence[str]]) -> tuple[RequiredName, ...]:
    """Return what the sources of a package require of others, sorted; equal names once for each file.

    Args:
        files: paths below site-packages -> sources.
        starts: the top-level name of another package ("vllm") -> the modules, as globs, that those import first who use
            the package with that one. A module that only guarded imports lead to must be named in full.
    """
    tops = tops_of(files, starts)
    return required(files, [use for path, source in files.items() for use in uses(path, source, tops)], starts)


def tops_of(paths: Iterable[str], starts: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the top-level names whose uses decide what a package requires: those of others, and its own."""
    return frozenset({*starts, *(name.partition(".")[0] for path in paths if (name := module_name(path)))})


def required(
    files: Iterable[str], used: Sequence[NameUse], starts: Mapping[str, Sequence[str]]
) -> tuple[RequiredName, ...]:
    """Return the same as `requirements`, from the paths of the files and the uses in them."""
    paths = {name: path for path in sorted(files) if path.endswith(".py") and (name := module_name(path))}
    graph = _Graph(paths, used)
    found: set[RequiredName] = set()
    for top, globs in starts.items():
        roots = graph.roots(globs)
        at_import, ever = graph.reached(roots, lazy=False), graph.reached(roots, lazy=True)
        for use in used:
            if use.name.partition(".")[0] == top and not use.guarded and use.path in ever:
                certain = use.path in at_import and not use.lazy
                found.add(RequiredName(use.name, use.modules, use.path, use.line, certain))
    return tuple(sorted(found))


class _Graph:
    """A package's files and which of them import which. `paths` maps modules to files."""

    def __init__(self, paths: Mapping[str, str], used: Iterable[NameUse]) -> None:
        self._paths = paths
        self._names = {path: name for name, path in paths.items()}
        self._at_import: dict[str, set[str]] = {}
        self._ever: dict[str, set[str]] = {}
        guarded: set[str] = set()
        for each in used:
            targets = {paths[name] for name in (*parents(each.name), each.name) if name in paths} - {each.path}
            if each.guarded:
                guarded |= targets
                continue
            self._ever.setdefault(each.path, set()).update(targets)
            if not each.lazy:
                self._at_import.setdefault(each.path, set()).update(targets)
        self._guarded = guarded - set[str]().union(*self._ever.values())

    def roots(self, globs: Iterable[str]) -> set[str]:
        """Return the files of the modules that fit a glob, without those behind a guard that are not named in full."""
        found = set(globs) & self._paths.keys()
        fitting = {name for name in self._paths if any(fnmatchcase(name, glob) for glob in globs)}
        return {self._paths[name] for name in fitting if name in found or not self._is_behind_guard(name)}

    def _is_behind_guard(self, name: str) -> bool:
        return any(self._paths.get(each) in self._guarded for each in (*parents(name), name))

    def reached(self, roots: Iterable[str], *, lazy: bool) -> set[str]:
        """Return the files that run when the roots are imported, with `lazy` also those that their functions import."""
        edges = self._ever if lazy else self._at_import
        pending, found = list(roots), set[str]()
        while pending:
            if (path := pending.pop()) not in found:
                found.add(path)
                pending += edges.get(path, ())
                pending += (self._paths[above] for above in parents(self._names[path]) if above in self._paths)
        return found
