"""The names that a package uses of others: in import statements, as attributes of imported names, and in calls.

A use that the code can do without is `guarded`. It stands in `try` with a handler of ImportError, AttributeError or
TypeError, below a test of versions or of installed packages, or in a branch that only type checkers read.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from imagegen.audit.api.source import absolute, dotted, is_package, module_name, parse, walk

_HANDLED = {"ImportError", "ModuleNotFoundError", "AttributeError", "TypeError", "Exception", "BaseException"}
# Tests of versions, or of installed packages: `vllm_version >= ...`, `hasattr(...)`, `is_flash_attn_available()`.
_TEST = re.compile(
    r"(?i)version|hasattr|getattr|find_spec|available|installed|import|type_checking|support|^_?is_|^_?has_"
)
_PRESENCE = "_?is_{}_(?:available|installed)"
_IMPORT = re.compile(rb"\b(?:import|from)\b")
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)

_Key = tuple[str, int, str, str, bool]  # name, modules, keyword, function of the module, below a condition


@dataclass(frozen=True, slots=True, order=True)
class NameUse:
    """A use of a dotted name; the first `modules` parts of it must be modules, since an import statement names them.

    With `keyword`, a call of it that passes this keyword argument.
    """

    name: str  # "vllm.v1.engine.utils.CoreEngine"
    modules: int
    path: str  # relative to site-packages
    line: int
    lazy: bool  # inside a function, and not in one that normal use is certain to call
    guarded: bool
    keyword: str = ""


def uses(path: str, source: bytes, tops: Collection[str], called: Collection[str] = ()) -> list[NameUse]:
    """Return the uses, in the Python file at `path` below site-packages, of modules below the top-level names `tops`.

    If several uses are equal, one that is certain to run is returned, else the first one. Attributes of modules of the
    file's own package are not read. `called` are functions of the module that normal use calls.
    """
    name = module_name(path)
    if name is None or not path.endswith(".py") or (tree := parse(source)) is None:
        return []
    own_top = name.partition(".")[0]
    foreign = any(top != own_top and top.encode() in source for top in tops)
    reader = _Reader(path, name, tops, tree, None if foreign else _import_lines(source))
    reader.read(tree.body, _Context())
    return sorted(reader.uses(called))


@dataclass(frozen=True, slots=True)
class _Context:
    """The functions, guards and conditions around a statement."""

    function: str = ""
    lazy: bool = False
    guarded: bool = False
    conditional: bool = False  # a call of the function may leave it out
    base: str = ""  # the dotted name of the imported class that is the only base of the class around it


class _Reader:
    """Reads the statements of one file, from the outside in."""

    def __init__(
        self, path: str, module: str, tops: Collection[str], tree: ast.Module, lines: Sequence[int] | None
    ) -> None:
        """Read attributes too if `lines` is None; else only the statements on these lines."""
        self._path, self._module, self._tops, self._tree, self._lines = path, module, tops, tree, lines
        self._package = is_package(path)
        self._bound: dict[str, str] = {}  # local name -> the dotted name that an import bound to it
        self._rebound = (
            set(_assigned(tree)) if lines is None else set()
        )  # local names that are bound to anything else too
        self._doubtful: set[str] = set()  # local names of guarded imports
        self._uses: dict[_Key, NameUse] = {}
        self._referred: dict[str, list[_Context]] = {}  # name -> the contexts in which it is read

    def uses(self, called: Collection[str]) -> Iterator[NameUse]:
        """Yield the best use of each name; functions that only guarded code refers to count as guarded."""
        running = self._running_functions(called)
        guarded = self._guarded_functions(running)
        best: dict[tuple[str, int, str], NameUse] = {}
        for (name, modules, keyword, function, conditional), candidate in self._uses.items():
            lazy = candidate.lazy and (conditional or function not in running)
            use = replace(candidate, lazy=lazy, guarded=candidate.guarded or function in guarded)
            previous = best.get((name, modules, keyword))
            if previous is None or (use.guarded, use.lazy) < (previous.guarded, previous.lazy):
                best[name, modules, keyword] = use
        yield from best.values()

    def _running_functions(self, called: Collection[str]) -> set[str]:
        """Return the called functions, and functions of the module that they refer to below no condition."""
        running = set(called)
        while (
            reached := {
                name
                for name, references in self._referred.items()
                if any(
                    reference.function in running and not reference.guarded and not reference.conditional
                    for reference in references
                )
            }
            - running
        ):
            running |= reached
        return running

    @cached_property
    def _tests(self) -> set[str]:
        return _test_names(self._tree)

    def _guarded_functions(self, running: Collection[str]) -> set[str]:
        functions = {function for _, _, _, function, _ in self._uses}
        functions |= {context.function for references in self._referred.values() for context in references}
        guarded: set[str] = set()
        while newly_guarded := {
            name
            for name in functions.difference(guarded, running)
            if (readers := [reference for reference in self._referred.get(name, ()) if reference.function != name])
            and all(reference.guarded or reference.function in guarded for reference in readers)
        }:
            guarded |= newly_guarded
        return guarded

    def read(self, body: Iterable[ast.stmt], context: _Context) -> None:
        """Read statements of one block; those behind a test that leaves the block are below a guard."""
        for node in filter(self._is_read, body):
            self._statement(node, context)
            if isinstance(node, ast.If) and isinstance(node.body[-1], _LEAVES) and not _refuses_absence(node):
                guarded = context.guarded or self._is_guard(node.test)
                conditional = context.conditional or not isinstance(node.body[-1], ast.Raise)
                context = replace(context, guarded=guarded, conditional=conditional)

    def _is_read(self, node: ast.stmt) -> bool:
        """Return whether the statement holds one of the lines to read, or is a test that leaves its block."""
        if self._lines is None or isinstance(node, ast.If):
            return True
        index = bisect_left(self._lines, node.lineno)
        return index < len(self._lines) and self._lines[index] <= (node.end_lineno or node.lineno)

    def _statement(self, node: ast.stmt, context: _Context) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    self._import(alias, context, node.lineno)
            case ast.ImportFrom():
                self._import_from(node, context)
            case ast.If():
                self._if(node, context)
            case ast.Try() | ast.TryStar():
                self._try(node, context)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                outside = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
                self._expressions(outside, context)
                function = context.function if context.lazy else node.name
                self.read(node.body, replace(context, function=function, lazy=True, conditional=context.lazy))
            case ast.ClassDef():
                self._expressions([*node.bases, *node.decorator_list], context)
                self.read(node.body, replace(context, base=self._base(node)))
            case ast.With() | ast.AsyncWith():
                self._expressions([item.context_expr for item in node.items], context)
                calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
                suppressed = any((dotted(call.func) or [""])[-1] == "suppress" for call in calls)
                self.read(node.body, replace(context, guarded=context.guarded or suppressed))
            case ast.For() | ast.AsyncFor() | ast.While() | ast.Match():
                self._block(node, context)
            case _:
                self._expressions([node], context)

    def _block(self, node: ast.For | ast.AsyncFor | ast.While | ast.Match, context: _Context) -> None:
        if isinstance(node, ast.Match):
            self._expressions([node.subject], context)
            for case in node.cases:
                self.read(case.body, replace(context, conditional=True))
            return
        self._expressions([node.test if isinstance(node, ast.While) else node.iter], context)
        self.read([*node.body, *node.orelse], context)

    # --- guards ---------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If, context: _Context) -> None:
        """At module level, every condition but the presence of the used package is a guard."""
        below = replace(context, guarded=True, conditional=True)
        if (dotted(node.test) or [""])[-1] == "TYPE_CHECKING":
            self.read(node.orelse, context)
        elif self._is_presence(node.test):
            self.read(node.body, context)
            self.read(node.orelse, below)
        else:
            chosen = below if self._is_guard(node.test) or not context.lazy else replace(context, conditional=True)
            self._expressions([node.test], replace(chosen, conditional=context.conditional))
            self.read(node.body, chosen)
            self.read(node.orelse, chosen)

    def _is_presence(self, test: ast.expr) -> bool:
        """Return whether the test is `is_vllm_available()` or `find_spec("vllm") is not None`, which hold with vllm."""
        match test:
            case ast.Call(func=function, args=[], keywords=[]):
                name = (dotted(function) or [""])[-1]
                return any(re.fullmatch(_PRESENCE.format(top), name) for top in self._tops)
            case ast.Compare(left=ast.Call(func=function, args=[ast.Constant(value=top)]), ops=[ast.IsNot()]):
                return (dotted(function) or [""])[-1] == "find_spec" and top in self._tops
            case _:
                return False

    def _is_guard(self, test: ast.AST) -> bool:
        """Return whether the test may be one of versions or of installed packages."""
        return any(_TEST.search(name) or name in self._tests for name in _identifiers(test))

    def _try(self, node: ast.Try | ast.TryStar, context: _Context) -> None:
        below = replace(context, guarded=True, conditional=True)
        catching = [handler for handler in node.handlers if handles(handler.type)]
        forgiven = any(not isinstance(catcher.body[-1], ast.Raise) or len(catcher.body) > 2 for catcher in catching)
        self.read(node.body, below if forgiven else context)
        for caught in node.handlers:
            self.read(caught.body, below)
        self.read(node.orelse, below if forgiven else context)
        self.read(node.finalbody, context)

    # --- imports --------------------------------------------------------------------------------------------------

    def _import(self, alias: ast.alias, context: _Context, line: int) -> None:
        if self._is_used(alias.name):
            self._add(alias.name, alias.name.count(".") + 1, context, line)
            local = alias.asname or alias.name.partition(".")[0]
            self._bind(local, alias.name if alias.asname else local, context)
        else:
            self._rebound.add(alias.asname or alias.name.partition(".")[0])

    def _import_from(self, node: ast.ImportFrom, context: _Context) -> None:
        target = absolute(node, self._module, package=self._package)
        if target is None or not self._is_used(target):
            self._rebound.update(alias.asname or alias.name for alias in node.names)
            return
        depth = target.count(".") + 1
        for alias in node.names:
            if alias.name == "*":
                self._add(target, depth, context, node.lineno)
            else:
                self._add(f"{target}.{alias.name}", depth, context, node.lineno)
                self._bind(alias.asname or alias.name, f"{target}.{alias.name}", context)

    def _bind(self, local: str, name: str, context: _Context) -> None:
        if context.guarded:
            self._doubtful.add(local)
        if self._bound.setdefault(local, name) != name:
            self._rebound.add(local)

    # --- attributes and calls -------------------------------------------------------------------------------------

    def _expressions(self, nodes: Iterable[ast.AST], context: _Context) -> None:
        """Read the attributes and calls of imported names; a guard anywhere in a statement covers all of it."""
        if self._lines is not None:
            return
        for expression in (expression for node in nodes for expression in walk(node)):
            if isinstance(expression, ast.IfExp | ast.BoolOp):
                context = replace(context, guarded=True, conditional=True)
            elif isinstance(expression, ast.Lambda):
                context = replace(context, conditional=True)
            elif isinstance(expression, ast.Name) and isinstance(expression.ctx, ast.Load):
                self._referred.setdefault(expression.id, []).append(context)
            elif isinstance(expression, ast.Attribute) and isinstance(expression.ctx, ast.Load):
                if name := self._imported(expression):
                    self._add(name, 1, self._guarded_by_import(expression, context), expression.lineno)
            elif isinstance(expression, ast.Call) and expression.keywords:
                self._call(expression, context)

    def _call(self, node: ast.Call, context: _Context) -> None:
        """Read the keywords of a call; none if it also passes `**` arguments."""
        keywords = [argument.arg for argument in node.keywords if argument.arg]
        if len(keywords) < len(node.keywords):
            return
        name = (context.base if context.lazy else "") if is_super_init(node.func) else self._imported(node.func)
        for keyword in keywords if name else ():
            self._add(name or "", 1, self._guarded_by_import(node.func, context), node.lineno, keyword)

    def _base(self, node: ast.ClassDef) -> str:
        """Return the dotted name of the only base, if an import that is certain binds it; else an empty text."""
        certain = len(node.bases) == 1 and not self._guarded_by_import(node.bases[0], _Context()).guarded
        return (self._imported(node.bases[0]) or "") if certain else ""

    def _imported(self, node: ast.expr) -> str | None:
        """Return the dotted name that an import statement gives `a.b.c`; None where another statement may bind `a`."""
        names = dotted(node)
        bound = self._bound.get(names[0]) if names and names[0] not in self._rebound else None
        return ".".join([bound, *names[1:]]) if names and bound else None

    def _guarded_by_import(self, node: ast.expr, context: _Context) -> _Context:
        return replace(context, guarded=context.guarded or (dotted(node) or [""])[0] in self._doubtful)

    def _is_used(self, module: str) -> bool:
        return module.partition(".")[0] in self._tops

    def _add(self, name: str, modules: int, context: _Context, line: int, keyword: str = "") -> None:
        use = NameUse(name, modules, self._path, line, context.lazy, context.guarded, keyword)
        key = (name, modules, keyword, context.function, context.conditional)
        previous = self._uses.get(key)
        if previous is None or (use.guarded, use.lazy) < (previous.guarded, previous.lazy):
            self._uses[key] = use


def _refuses_absence(node: ast.If) -> bool:
    """Return whether the statement is `if not is_vllm_available(): raise ...`. Statements after it need the package."""
    match node:
        case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=function, args=[], keywords=[]))):
            name = (dotted(function) or [""])[-1]
            return isinstance(node.body[-1], ast.Raise) and re.fullmatch(_PRESENCE.format(r"\w+"), name) is not None
        case _:
            return False


def _import_lines(source: bytes) -> list[int]:
    """Return the numbers of the lines on which import statements may begin, sorted."""
    return [number for number, line in enumerate(source.splitlines(), 1) if _IMPORT.search(line)]


def _test_names(tree: ast.Module) -> set[str]:
    """Return the names that assignments bind to a test of versions or installed packages: `NEW = version >= ...`."""
    return {
        name
        for node in walk(tree)
        if isinstance(node, ast.Assign) and any(map(_TEST.search, _identifiers(node.value)))
        for target in node.targets
        for name in _identifiers(target)
    }


def _assigned(tree: ast.Module) -> Iterator[str]:
    """Yield the names that statements other than imports bind anywhere in the file, and names of parameters."""
    for node in walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def _identifiers(node: ast.AST) -> Iterator[str]:
    for child in walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr


def is_super_init(node: ast.expr) -> bool:
    """Return whether the expression is `super().__init__`."""
    match node:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"), args=[]), attr="__init__"):
            return True
        case _:
            return False


def handles(kind: ast.expr | None) -> bool:
    """Return whether a handler of this kind catches that a name does not exist."""
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(error_type is None or (dotted(error_type) or [""])[-1] in _HANDLED for error_type in kinds)
