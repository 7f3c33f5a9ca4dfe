"""File ownership: paths that two packages install and only one can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

Clash = tuple[str, str, str]  # the one, the other, what is with them
CONTENTS = "both install it, with different contents"
DIRECTORY = "the one installs a file where the other installs a directory"
BYTE_CODE = "the one brings byte-code for the other's source"


def clashes(
    contents: Mapping[str, Mapping[str, str]], byte_code: Callable[[str], str] | None = None
) -> dict[Clash, list[str]]:
    """Pairs of packages that do not go together, with the paths.

    `contents` maps packages to paths and what is there: the same text stands for the same file. `byte_code` gives the
    path of a source's byte-code; it is only for packages that bring none of their own. What lies at that path, below
    it, or in place of its directory is a clash.
    """
    owners: dict[str, tuple[str, str]] = {}  # path -> identity, package
    found: dict[Clash, list[str]] = {}
    for name, identities in contents.items():
        for path, identity in identities.items():
            other, first = owners.setdefault(path, (identity, name))
            if other != identity:
                found.setdefault((first, name, CONTENTS), []).append(path)
    directories: dict[str, str] = {}  # path -> the first package that has a file below
    for path, (_, name) in owners.items():
        for directory in parents(path):
            if directory in directories:
                break
            directories[directory] = name
            if directory in owners:
                found.setdefault((owners[directory][1], name, DIRECTORY), []).append(directory)
    for clash, path in _byte_code_clashes(owners, directories, byte_code) if byte_code else ():
        found.setdefault(clash, []).append(path)
    return found


def _byte_code_clashes(
    owners: Mapping[str, tuple[str, str]], directories: Mapping[str, str], byte_code: Callable[[str], str]
) -> Iterator[tuple[Clash, str]]:
    for path, (_, name) in owners.items():
        if not path.endswith(".py"):
            continue
        compiled = byte_code(path)
        directory = compiled.rpartition("/")[0]
        if compiled in owners:  # it would run instead of the source
            yield (owners[compiled][1], name, BYTE_CODE), compiled
        if directory in owners:
            yield (owners[directory][1], name, DIRECTORY), directory
        if compiled in directories:
            yield (name, directories[compiled], DIRECTORY), compiled


def parents(path: str) -> Iterator[str]:
    """The directories above a path, nearest first, without the root."""
    while path := path.rpartition("/")[0]:
        yield path
