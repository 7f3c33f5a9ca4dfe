"""Results of pure functions over files (matrix, parsed metadata, verdicts on cells), kept in the user's cache.

A result is kept under the name of its kind and subject, with the digest of its inputs, which are the bytes of files
(`digest_of_trees`, `digest_of`) and the code (`digest_of_code`). A file that is truncated, of other inputs,
of another imagegen or of another user counts as absent. docs/adr/0008-compiled-results.md has the alternatives.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import packaging

from imagegen import __version__
from imagegen.core import data

T = TypeVar("T")
_PACKAGE = Path(__file__).parents[1]
_DIGEST = 32  # bytes of sha256
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Classes of results besides the dataclasses of imagegen.
_CLASSES = {("packaging.version", "Version"), ("pathlib", "PosixPath"), ("pathlib", "Path")}


class ResultCache:
    """Results in the files of a directory; with None, or where it cannot be written, they are computed each time."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def of(self, kind: str, subject: str, inputs: Iterable[str | None], compute: Callable[[], T]) -> T:
        """Return the result of `compute`, which only `inputs` decide; it is not kept if one of them is None.

        A result consists of plain values and dataclasses of imagegen. There is one file for each kind and subject.
        """
        if (entry := self._place(kind, subject, inputs)) is None:
            return compute()
        for stored_result in _read(*entry):
            return stored_result  # type: ignore[no-any-return]
        result = compute()
        _keep(*entry, result)
        return result

    def find(self, kind: str, subject: str, inputs: Iterable[str | None]) -> Any:
        """Return the result that `keep` kept for these inputs; None where there is none."""
        entry = self._place(kind, subject, inputs)
        return next(_read(*entry), None) if entry else None

    def keep(self, kind: str, subject: str, inputs: Iterable[str | None], result: object) -> None:
        """Keep a result that only the inputs decide, as `of` does."""
        if entry := self._place(kind, subject, inputs):
            _keep(*entry, result)

    def _place(self, kind: str, subject: str, inputs: Iterable[str | None]) -> tuple[Path, bytes] | None:
        """Return file and key of a result; None where none is kept."""
        key_parts = (kind, subject, *inputs)
        present_parts = [part for part in key_parts if part is not None]
        if self._directory is None or len(present_parts) < len(key_parts):
            return None
        key = digest_of(digest_of_code(), *present_parts).encode()
        return self._directory / f"{kind}-{digest_of(subject)[:16]}", key


class TreeResults:
    """Results that only files below some directories and other inputs decide, for the owner of the directories."""

    def __init__(self, cache: ResultCache, directories: Sequence[Path], owner: str = "") -> None:
        self._cache, self.directories, self._owner = cache, directories, owner

    @cached_property
    def digest(self) -> str | None:
        """The digest of all files below the directories."""
        return digest_of_trees(self.directories)

    def of(self, kind: str, subject: str, compute: Callable[[], T], *inputs: str | None) -> T:
        """Return the result of `compute`."""
        return self._cache.of(kind, f"{self._owner}\n{subject}", (self.digest, *inputs), compute)


def digest_of(*texts: str | bytes) -> str:
    """Return the hex sha256 of the parts, each with its length."""
    sha256 = hashlib.sha256()
    for part in texts:
        raw = part.encode() if isinstance(part, str) else part
        sha256.update(b"%d:" % len(raw) + raw)
    return sha256.hexdigest()


def digest_of_trees(directories: Iterable[Path]) -> str | None:
    """Return the digest of the paths and bytes of all files below the directories.

    None if a file cannot be read or is not regular, because the target of a link depends on more than these files.
    """
    rows: list[bytes] = []
    try:
        for directory in directories:
            for path in _files(os.path.abspath(directory)):
                with open(path, "rb", buffering=0) as file:
                    rows += (os.fsencode(path), file.readall())
            rows.append(os.fsencode(directory))
    except OSError:
        return None
    return digest_of(*rows)


def _files(directory: str) -> Iterator[str]:
    """Yield the regular files below a directory, sorted. Raises OSError for anything but files and directories."""
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda item: item.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry.path
            else:
                raise OSError(f"{entry.path} is not a regular file")


@cache
def digest_of_code() -> str:
    """Return the digest of the code: of imagegen's files by time and size, as CPython decides on its byte-code."""
    names = sorted(os.path.join(folder, name) for folder, _, files in os.walk(_PACKAGE) for name in files)
    stats = [os.stat(path) for path in names if not path.endswith(".pyc")]
    files = ",".join(f"{status.st_mtime_ns}.{status.st_size}" for status in stats)
    return digest_of(__version__, packaging.__version__, sys.version, str(_PACKAGE), files)


class _Unpickler(pickle.Unpickler):
    """An unpickler that makes nothing but plain values and the classes of results."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return super().find_class(module, name)
        if module.startswith("imagegen.") and "." not in name:
            value = super().find_class(module, name)
            if isinstance(value, type) and "__dataclass_fields__" in vars(value):  # a deferred one stays so
                return value
        raise pickle.UnpicklingError(f"{module}.{name} is not a class of a result")


def _read(path: Path, key: bytes) -> Iterator[Any]:
    """Yield the result in a file that `_write` wrote under this key, if there is one."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
                return
            seal, content = file.read(_DIGEST), file.read()
        if seal == hashlib.sha256(key + content).digest():
            yield _Unpickler(io.BytesIO(content)).load()
    except (OSError, pickle.UnpicklingError):
        return


def _keep(path: Path, key: bytes, result: object) -> None:
    with suppress(OSError):  # a read-only cache
        _write(path, key, result)


def _write(path: Path, key: bytes, result: object) -> None:
    """Replace the file at once. Raises OSError."""
    content = pickle.dumps(result, protocol=5)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data.write(path, hashlib.sha256(key + content).digest() + content, sync=False)  # the seal tells whether it is whole
