"""The names of other packages that a package requires: those it uses in modules that run, with no guard before them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from imagegen.audit.api.exports import parents
from imagegen.audit.api.source import module_name
from imagegen.audit.api.uses import NameUse, uses

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
