"""Write the folder of a report next to the old one, and replace the old one at once, only if that was a report.

Source: renameat2(2), RENAME_EXCHANGE.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from pathlib import Path

from imagegen.core import temporary
from imagegen.core.data import parse_json
from imagegen.core.errors import StoreError
from imagegen.core.store import disk

MARK = ".imagegen-report.json"  # names the files of a report
_OUTPUT, _REMEDY = "the output directory", "name another one"
_HERE = -100  # AT_FDCWD: paths are relative to the working directory
RENAME_EXCHANGE = 2
_SHOWN = 3  # foreign files in a message


def replace_report(directory: Path, files: Mapping[str, bytes]) -> None:
    """Replace the content of `directory` by these files; a reader sees either the old or the new report, never a
    mixture.

    Raises StoreError as `require_own` does, and where the directory cannot be written.
    """
    require_own(directory)
    directory = directory.resolve()
    with (
        disk.explained(directory, _OUTPUT, _REMEDY, sum(map(len, files.values()))),
        disk.made_for(directory),
        temporary.temporary_directory(directory.parent) as fresh,
    ):
        _fill(fresh, files)
        if directory.exists():
            _exchange(fresh, directory)  # `fresh` is the old report now, and goes
        else:
            fresh.rename(directory)


def require_own(directory: Path) -> None:
    """Raise StoreError if the directory has files that no report wrote; it is cheap, so call it before long work."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise StoreError(
            "the output directory is a file", code="store-output-is-file", where=str(directory), fix=_REMEDY
        )
    present = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_symlink() or path.is_file()}
    foreign = sorted(present - _written(directory))
    if foreign:
        omitted = [f"{len(foreign) - _SHOWN} more"] if len(foreign) > _SHOWN else []
        raise StoreError(
            "the output directory has files that no report wrote",
            code="store-foreign-file",
            where=str(directory),
            why=", ".join([*foreign[:_SHOWN], *omitted]),
            fix="name another one, or move these away, because a report replaces all files in it",
        )


def _written(directory: Path) -> set[str]:
    try:
        names = parse_json((directory / MARK).read_bytes())["files"]
        return {MARK, *map(str, names)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    mark = {"about": "written by imagegen report, which replaces this folder", "files": sorted(files)}
    for name, content in {**files, MARK: json.dumps(mark, indent=1).encode() + b"\n"}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    folder.chmod(0o755)  # mkdtemp's 0700 would keep a web server out


def _exchange(first: Path, other: Path) -> None:
    """Let two directories change names. Where the file system cannot, there is a moment without `other`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_HERE, os.fsencode(first), _HERE, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return
    aside = first.with_name(f"{first.name}-old")
    other.rename(aside)
    try:
        first.rename(other)
    except OSError:
        aside.rename(other)
        raise
    aside.rename(first)
