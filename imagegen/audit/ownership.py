"""File ownership: paths that two packages install and only one can have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from imagegen.audit.readers.installation import pyc_path

Clash = tuple[str, str, str]  # two packages, and the kind of their conflict
Identity = TypeVar("Identity")  # of a file; equal identities mean the same bytes and mode
CONTENTS = "both install it, with different contents"
DIRECTORY = "the one installs a file where the other installs a directory"
BYTE_CODE = "the one brings byte-code for the other's source"


def clashes(contents: Mapping[str, Mapping[str, Identity]], *, byte_code: bool = False) -> dict[Clash, list[str]]:
    """Return the pairs of packages that install conflicting files, with the paths.

    `contents` maps packages to paths to the identities of files. With `byte_code`, a file is a clash at
    the path of a source's byte-code, below it, or instead of its directory __pycache__; set it only for packages that
    bring no byte-code of their own.
    """
    owners: dict[str, str] = {}  # path -> the first package that has it
    directories: dict[str, str] = {}  # path -> the first package that has a file below
    paths_by_clash: dict[Clash, list[str]] = {}
    for name, identities in contents.items():
        shared = {path: owners[path] for path in owners.keys() & identities.keys()}
        for path, first in shared.items():
            if contents[first][path] != identities[path]:
                paths_by_clash.setdefault((first, name, CONTENTS), []).append(path)
        owners |= dict.fromkeys(identities, name) | shared
        for directory in _directories(identities):
            directories.setdefault(directory, name)
    for path in directories.keys() & owners.keys():
        paths_by_clash.setdefault((owners[path], directories[path], DIRECTORY), []).append(path)
    if byte_code and any("__pycache__" in path for path in owners):
        for clash, path in _byte_code_clashes(owners, directories):
            paths_by_clash.setdefault(clash, []).append(path)
    return paths_by_clash


def _directories(paths: Iterable[str]) -> set[str]:
    """Return all directories above the paths."""
    directories: set[str] = set()
    above = {path.rpartition("/")[0] for path in paths}
    while above := above - directories - {""}:
        directories |= above
        above = {path.rpartition("/")[0] for path in above}
    return directories


def _byte_code_clashes(owners: Mapping[str, str], directories: Mapping[str, str]) -> Iterator[tuple[Clash, str]]:
    for path, name in owners.items():
        if not path.endswith(".py"):
            continue
        _, _, below_library = path.partition("/lib/python")  # .../lib/python3.11/...; else the path is not installed
        compiled = pyc_path(path, below_library.partition("/")[0])
        directory = compiled.rpartition("/")[0]
        if compiled in owners:  # it would run instead of the source
            yield (owners[compiled], name, BYTE_CODE), compiled
        if directory in owners:
            yield (owners[directory], name, DIRECTORY), directory
        if compiled in directories:
            yield (name, directories[compiled], DIRECTORY), compiled
