"""The tree of a commit: its entries, listed and validated.

It may be hostile: names that leave it, links out of it, bombs.

Source of the formats: git-ls-tree(1) with -l -z; gitformat-index(5) for modes.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.errors import FetchError
from imagegen.core.layer_tar import is_below
from imagegen.core.text import unprintable

MAX_ENTRIES = 200_000
MAX_SIZE = 4 << 30  # bytes of all files; PyTorch's own tree has a tenth of it
_MAX_FILE = 1 << 29  # bytes; hosts take less
_MAX_NAME = 1000  # bytes
_MAX_PART = 255  # bytes between two slashes, Linux's NAME_MAX
_MAX_TARGET = 1000  # bytes of a link's target
_FILE, _EXECUTABLE, _LINK, _SUBMODULE = "100644", "100755", "120000", "160000"
_GROUP_WRITABLE = "100664"  # as old versions of git wrote it


@dataclass(frozen=True)
class TreeEntry:
    """A file, link or submodule of a tree; `size` in bytes, 0 for a submodule; `object` is the id to read it by."""

    mode: str
    object: str
    size: int
    path: str

    @property
    def is_link(self) -> bool:
        return self.mode == _LINK

    @property
    def is_submodule(self) -> bool:
        return self.mode == _SUBMODULE

    @property
    def is_executable(self) -> bool:
        return self.mode == _EXECUTABLE


def listed(rows: Iterable[bytes], where: str) -> Iterator[TreeEntry]:
    """Rows of `git ls-tree -r -l -z` as entries. Raises FetchError, before memory is full of them."""
    total = 0
    for count, row in enumerate(rows, 1):
        fields, _, raw = row.partition(b"\t")
        mode, _, name, size = fields.decode("ascii").split()
        entry = TreeEntry(mode, name, 0 if size == "-" else int(size), _path(raw, where))
        total += entry.size
        _require_bounded(entry, count, total, where)
        yield entry


def on_disk(root: Path, names: Iterable[bytes], where: str) -> Iterator[TreeEntry]:
    """Files and links below a directory, by their paths there; `object` is the path. Raises FetchError as `listed`."""
    total = 0
    for count, raw in enumerate(names, 1):
        path = _path(raw, where)
        kind = (root / path).lstat()
        if stat.S_ISLNK(kind.st_mode):
            mode = _LINK
        elif stat.S_ISREG(kind.st_mode):
            mode = _EXECUTABLE if kind.st_mode & stat.S_IXUSR else _FILE
        else:
            raise _refused(where, f"{path} is neither a file nor a link")
        total += kind.st_size
        entry = TreeEntry(mode, path, kind.st_size, path)
        _require_bounded(entry, count, total, where)
        yield entry


def left_out(path: str) -> TreeEntry:
    """A submodule that is not there."""
    return TreeEntry(_SUBMODULE, "", 0, path)


def _require_bounded(entry: TreeEntry, count: int, total: int, where: str) -> None:
    if count > MAX_ENTRIES or total > MAX_SIZE or entry.size > _MAX_FILE:
        raise _refused(where, "it holds more than any source does", f"{entry.path} is the one too many")


def checked(entries: Iterable[TreeEntry], where: str) -> list[TreeEntry]:
    """Return the entries, sorted by the bytes of their paths. Raises FetchError if they cannot be a checkout."""
    ordered = sorted(entries, key=lambda entry: entry.path.encode())
    paths = {entry.path for entry in ordered}
    if len(paths) < len(ordered):
        raise _refused(where, "it names one path twice")
    for entry in ordered:
        if entry.mode not in (_FILE, _EXECUTABLE, _LINK, _SUBMODULE, _GROUP_WRITABLE):
            raise _refused(where, f"{entry.path} is of an unknown kind", f"mode {entry.mode}")
        parent = posixpath.dirname(entry.path)
        while parent:
            if parent in paths:
                raise _refused(where, f"{entry.path} lies in {parent}, which is not a folder")
            parent = posixpath.dirname(parent)
    return ordered


def check_target(entry: TreeEntry, target: bytes, where: str) -> None:
    """Raise FetchError unless a link's target is a path inside the tree."""
    text = target.decode(errors="replace")
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), text))
    plain = 0 < len(target) <= _MAX_TARGET and unprintable(text) is None and text.encode() == target
    if not plain or text.startswith("/") or inside.split("/")[0] in ("..", ".git"):
        raise _refused(where, f"{entry.path} is a link out of the tree", f"to {text[:80]!r}")


def _path(raw: bytes, where: str) -> str:
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        raise _refused(where, f"the name {raw[:80]!r} is not UTF-8") from None
    components = path.split("/")
    if not is_below(path) or any(part.lower() == ".git" for part in components):
        raise _refused(where, f"the name {path[:80]!r} leaves the tree")
    if unprintable(path) is not None:
        raise _refused(where, f"the name {path[:80]!r} holds control characters")
    if len(raw) > _MAX_NAME or any(len(part.encode()) > _MAX_PART for part in components):
        raise _refused(where, f"the name {path[:80]!r}… is too long for a file system")
    return path


def _refused(where: str, what: str, why: str | None = None) -> FetchError:
    return FetchError(
        f"{where} is not a source to build from: {what}",
        code="fetch-git-tree-invalid",
        why=why,
        fix="choose another commit or folder",
    )
