"""Whose file is whose: paths that two packages bring, and that cannot be both's."""

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
    path of a source's byte-code; it is only for packages that bring none of their own.
    """
    owners: dict[str, tuple[str, str]] = {}  # path -> identity, package
    found: dict[Clash, list[str]] = {}
    for name, identities in contents.items():
        for path, identity in identities.items():
            other, first = owners.setdefault(path, (identity, name))
            if other != identity:
                found.setdefault((first, name, CONTENTS), []).append(path)
    directories: set[str] = set()
    for path, (_, name) in owners.items():
        for directory in parents(path):
            if directory in directories:
                break
            directories.add(directory)
            if directory in owners:
                found.setdefault((owners[directory][1], name, DIRECTORY), []).append(directory)
        # It would run instead of the source.
        if byte_code and path.endswith(".py") and (compiled := owners.get(where := byte_code(path))):
            found.setdefault((compiled[1], name, BYTE_CODE), []).append(where)
    return found


def parents(path: str) -> Iterator[str]:
    """The directories above a path, nearest first, without the root."""
    while path := path.rpartition("/")[0]:
        yield path
