"""The names of other packages that a package requires: those it uses in modules that run, with no guard before them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from imagegen.audit.api.exports import parents
from imagegen.audit.api.source import module_name
from imagegen.audit.api.uses import NameUse

COMMAND = "?"  # before a module that only a command imports


@dataclass(frozen=True, slots=True, order=True)
class RequiredName:
    """A dotted name of another package; the first `modules` parts of it must be modules.

    With `keyword`, calling it must take this keyword argument.

    `certain`: its file is imported in normal use, and the name is used there at module level or in a function that
    normal use calls. Otherwise it is used in another function, or in a file that only functions import.
    """

    name: str  # "vllm.v1.engine.utils.CoreEngine"
    modules: int
    path: str  # relative to site-packages
    line: int
    certain: bool
    keyword: str = ""


def called(path: str, starts: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the functions of the file at `path` that `starts` says are called."""
    references = (glob.removeprefix(COMMAND).partition(":") for globs in starts.values() for glob in globs)
    return frozenset(function for module, _, function in references if function and module == module_name(path))


def tops_of(paths: Iterable[str], starts: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the top-level names, of other packages and its own, whose uses decide what a package requires."""
    return frozenset({*starts, *(name.partition(".")[0] for path in paths if (name := module_name(path)))})


def required(
    files: Iterable[str], used: Sequence[NameUse], starts: Mapping[str, Sequence[str]]
) -> tuple[RequiredName, ...]:
    """Return the names of other packages that the Python files of a package require, sorted, once for each file.

    Args:
        files: Paths below site-packages.
        used: The uses in them, of modules below `tops_of` these paths.
        starts: Maps the top-level name of another package ("vllm") to globs of the modules that users of both packages
            import first. A module must be named in full if only guarded imports lead to it, or if users also call a
            function of it ("trl.scripts.vllm_serve:main"). What is used only below one after "?", the module of a
            command, is not certain.
    """
    paths = {name: path for path in sorted(files) if path.endswith(".py") and (name := module_name(path))}
    graph = _Graph(paths, used)
    required_names: set[RequiredName] = set()
    for top, references in starts.items():
        modules = [reference.partition(":")[0] for reference in references]
        always = graph.roots([module for module in modules if not module.startswith(COMMAND)])
        roots = graph.roots([module.removeprefix(COMMAND) for module in modules])
        at_import, ever = graph.reached(always, lazy=False), graph.reached(roots, lazy=True)
        for use in used:
            if use.name.partition(".")[0] == top and not use.guarded and use.path in ever:
                certain = use.path in at_import and not use.lazy
                required_names.add(RequiredName(use.name, use.modules, use.path, use.line, certain, use.keyword))
    return tuple(sorted(required_names))


class _Graph:
    """A package's files and which of them import which. `paths` maps modules to files."""

    def __init__(self, paths: Mapping[str, str], used: Iterable[NameUse]) -> None:
        self._paths = paths
        self._names = {path: name for name, path in paths.items()}
        self._at_import: dict[str, set[str]] = {}
        self._ever: dict[str, set[str]] = {}
        guarded: set[str] = set()
        for use in used:
            targets = {paths[name] for name in (*parents(use.name), use.name) if name in paths} - {use.path}
            if use.guarded:
                guarded |= targets
                continue
            self._ever.setdefault(use.path, set()).update(targets)
            if not use.lazy:
                self._at_import.setdefault(use.path, set()).update(targets)
        self._guarded = guarded - set[str]().union(*self._ever.values())

    def roots(self, globs: Iterable[str]) -> set[str]:
        """Return the files of the modules that fit a glob, without those behind a guard that are not named in full."""
        explicit = set(globs) & self._paths.keys()
        fitting = {name for name in self._paths if any(fnmatchcase(name, glob) for glob in globs)}
        return {self._paths[name] for name in fitting if name in explicit or not self._is_behind_guard(name)}

    def _is_behind_guard(self, name: str) -> bool:
        return any(self._paths.get(parent) in self._guarded for parent in (*parents(name), name))

    def reached(self, roots: Iterable[str], *, lazy: bool) -> set[str]:
        """Return the files that run when the roots are imported, with `lazy` also those that their functions import."""
        edges = self._ever if lazy else self._at_import
        pending, files = list(roots), set[str]()
        while pending:
            if (path := pending.pop()) not in files:
                files.add(path)
                pending += edges.get(path, ())
                pending += (self._paths[above] for above in parents(self._names[path]) if above in self._paths)
        return files
