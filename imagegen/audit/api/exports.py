"""The names that the modules of a package define, as their sources show them.

A name counts as defined if a statement at module level may bind it, in any branch. If code computes names, the source
does not show them; the module is then `open`, which means that any name may exist in it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from imagegen.audit.api.getattrs import answered_names, attached_names
from imagegen.audit.api.source import absolute, children, dotted, is_package, module_name, parse, walk

_NAME = re.compile(r"[A-Za-z_]\w*")
_DYNAMIC = re.compile(
    rb"\b(?:exec|globals|vars|locals)\(|\bmodules\[|\bsetattr\(\s*+(?!self\b|cls\b)\w++\s*+,\s*+[^\"'\s]"
)
# A module's function has one parameter, a class's method two.
_GETATTR = re.compile(rb"\bdef __getattr__\(\s*+\w++\s*+(?::[^,()]*+)?,?\s*+\)|\b__getattr__\s*+[,=]")
_DYNAMIC_PARTS = (b"exec(", b"globals(", b"vars(", b"locals(", b"modules[", b"setattr(")
_GLOBAL = re.compile(rb"\bglobal[ \t]+(\w+(?:[ \t]*,[ \t]*\w+)*)")
_WORD = re.compile(rb"\w+")
# A function or class at module level: its first line, and the lines up to the next one that begins a statement.
_BLOCK = re.compile(rb"^(?:async[ \t]+def|def|class)[ \t]+(\w++)[^\n]*\n(?:(?:[ \t\r\f)\]}#][^\n]*)?\n)*", re.MULTILINE)
# Functions and classes at module level, and the entries of __all__.
_LISTED = re.compile(
    rb"^(?:class|def) (\w+)|^[ \t]*[\"'](\w+)[\"'],?[ \t]*$|__all__ = \[[\"'](\w+)|^(\w+) =", re.MULTILINE
)
_READS = {"get", "items", "keys", "values", "copy"}  # methods of a dictionary that do not change it
_LAZY = "_LazyModule"  # transformers' and trl's; diffusers, optimum and others copy it
_BELOW = "define_import_structure"  # transformers' function that adds the names in the __all__ of modules below


@dataclass(frozen=True, slots=True)
class Module:
    """The names of one module."""

    names: frozenset[str] = frozenset()
    stars: tuple[str, ...] = ()  # modules of which it imports every name
    open: bool = False  # it may define any name
    below: bool = False  # it defines what modules below it define


OPEN = Module(open=True)
# Names that mark modules: an open one whose submodules are those that are installed, one that changes how Python finds
# modules, and one that creates modules under computed names.
GETATTR, HOOK, CREATES = "__getattr__()", "sys.meta_path", "sys.modules[]"


def exports(files: Mapping[str, bytes | None]) -> dict[str, Module]:
    """Return the modules of a package by name.

    `files` maps paths below site-packages to sources, None for a compiled module. A directory without `__init__.py` is
    a namespace package, to which other distributions may add modules.
    """
    modules: dict[str, Module] = {}
    for path, source in files.items():
        if name := module_name(path):
            modules[name] = (
                OPEN if source is None or name in modules else module(source, name, package=is_package(path))
            )
    return with_namespaces(modules)


def with_namespaces(modules: Mapping[str, Module]) -> dict[str, Module]:
    """Return the modules and the namespace packages above them."""
    above = {parent for name in modules for parent in parents(name)}
    return dict.fromkeys(sorted(above - modules.keys()), OPEN) | dict(modules)


def parents(name: str) -> Iterator[str]:
    """Yield the packages above a module, the outermost first."""
    components = name.split(".")
    yield from (".".join(components[:length]) for length in range(1, len(components)))


def module(source: bytes, name: str, *, package: bool) -> Module:
    """Return the names of the module `name`; `package` says whether it is an `__init__.py`."""
    tree = _parse(source)
    return OPEN if tree is None else module_of_tree(tree, source, name, package=package)


def module_of_tree(tree: ast.Module, source: bytes, name: str, *, package: bool) -> Module:
    """Return the names as `module` does, from a syntax tree that may lack bodies unless the source `is_dynamic`."""
    names: set[str] = set()
    stars: list[str] = []
    getattrs: list[ast.FunctionDef] = []
    for node in _module_level(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            getattrs.append(node)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            stars.append(absolute(node, name, package=package) or "")
        else:
            names.update(_bound(node))
    if b"global" in source:
        names.update(word.decode() for match in _GLOBAL.finditer(source) for word in _WORD.findall(match[1]))
    lazy = _LAZY.encode() in source and _is_lazy(tree)
    if lazy:
        stars.clear()  # for type checkers
    if lazy:
        names.update(_texts(tree))
    by_getattr = [answered_names(function, tree) for function in getattrs]
    names.update(*(answered for answered in by_getattr if answered))
    attached = attached_names(tree) if "__getattr__" in names else None
    names.update(attached or ())
    computed = ("__getattr__" in names and attached is None) or None in by_getattr
    set_in_loops = _set_in_loops(tree) if b"globals()[" in source else {}
    names.update(*set_in_loops.values())
    computed = computed or _computes(tree, source, set_in_loops, lazy=lazy)
    return Module(frozenset(names), tuple(stars), computed, lazy and _BELOW.encode() in source)


def listed(source: bytes) -> frozenset[str]:
    """Return the names that a module may list for a lazy package above it. It is a part of its names, in less time."""
    return frozenset(name.decode() for groups in _LISTED.findall(source) for name in groups if name)


def _parse(source: bytes) -> ast.Module | None:
    """Return the syntax tree, without the bodies of functions and classes where these show no names of the module."""
    if not is_dynamic(source):
        outline, texts = _outlined(source)
        if texts and (tree := parse(outline)):
            return tree
    return parse(source)


def _outlined(source: bytes) -> tuple[bytes, bool]:
    """Return the source with empty functions instead of its functions and classes, and whether no text was cut in two.

    Most of the time for a source goes into the bodies of its functions.
    """
    whole = True

    def empty(block: re.Match[bytes]) -> bytes:
        nonlocal whole
        whole = whole and not any(block[0].count(quotes) % 2 for quotes in (b'"""', b"'''"))
        return b"def " + block[1] + b"(): pass\n"

    return _BLOCK.sub(empty, source), whole


def _module_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that run when the module is imported, without those inside functions and classes."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending.extend(children(node))


def _bound(node: ast.AST) -> Iterable[str]:
    """Return the names that a node binds by itself."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Name(ctx=ast.Store()):
            return [node.id]
        case ast.Import():
            return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        case ast.ImportFrom():
            return [alias.asname or alias.name for alias in node.names]
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            return [node.name] if node.name else []
        case _:
            return []


def _is_lazy(tree: ast.Module) -> bool:
    """Return whether the module replaces itself by one that imports on demand the names that it lists as texts."""
    return any(isinstance(node, ast.Call) and (dotted(node.func) or [""])[-1] == _LAZY for node in _module_level(tree))


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts that are names; also of ".name", as in the relative name of a module that has moved."""
    for node in walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.removeprefix(".")
            if _NAME.fullmatch(text):
                yield text


def _set_in_loops(tree: ast.Module) -> dict[int, list[str]]:
    """Return the texts that `for name in [texts]: globals()[name] = ...` makes names, by the id of `globals()`."""
    names: dict[int, list[str]] = {}
    for loop in _module_level(tree):
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.List | ast.Tuple):
            continue
        texts = [
            text.value for text in loop.iter.elts if isinstance(text, ast.Constant) and isinstance(text.value, str)
        ]
        stores = [node for node in walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        if len(texts) == len(loop.iter.elts) and stores == [loop.target]:
            for node in walk(loop):
                if isinstance(node, ast.Subscript) and dotted(node.slice) == dotted(loop.target):
                    names[id(node.value)] = texts
    return names


def _computes(tree: ast.Module, source: bytes, set_in_loops: Collection[int], *, lazy: bool) -> bool:
    """Return whether code of the module may define names that are not written in it."""
    if not _computes_names(source):
        return False
    outside = [node for node in _module_level(tree) if isinstance(node, ast.Call)]
    if any(_calls(node, "exec") or (_calls(node, "vars", "locals") and not node.args) for node in outside):
        return True
    nodes = list(walk(tree))
    reads = {id(node.value) for node in nodes if _is_read(node)}
    imported = {
        alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return any(
        (_calls(node, "globals") and id(node) not in reads and id(node) not in set_in_loops)
        or (_calls(node, "setattr") and not lazy and _sets_names(node, imported))
        or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _is_in_modules(node) and not lazy)
        for node in nodes
    )


def computes_names(tree: ast.Module, source: bytes) -> bool:
    """Return whether code other than `__getattr__` may define names that are not written in the module."""
    return _computes(tree, source, _set_in_loops(tree), lazy=False)


def is_dynamic(source: bytes) -> bool:
    """Return whether the source may define names that no statement at module level binds."""
    return (b"__getattr__" in source and _GETATTR.search(source) is not None) or _computes_names(source)


def _computes_names(source: bytes) -> bool:
    return any(part in source for part in _DYNAMIC_PARTS) and _DYNAMIC.search(source) is not None


def _calls(node: ast.AST, *names: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _is_read(node: ast.AST) -> TypeGuard[ast.Subscript | ast.Attribute]:
    """Return whether the node reads an item of a dictionary, or calls a method of it that only reads."""
    if isinstance(node, ast.Attribute):
        return node.attr in _READS
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)


def _sets_names(node: ast.Call, imported: Collection[str]) -> bool:
    """Return whether a call of setattr may be about a module: of sys.modules, or one that the file imports."""
    target = node.args[0] if len(node.args) == 3 else None
    is_imported = isinstance(target, ast.Name) and target.id in imported and not isinstance(node.args[1], ast.Constant)
    return is_imported or (target is not None and _is_in_modules(target))


def _is_in_modules(node: ast.expr | ast.Subscript) -> bool:
    """Return whether the expression is an item of sys.modules."""
    return isinstance(node, ast.Subscript) and (dotted(node.value) or [""])[-1] == "modules"
