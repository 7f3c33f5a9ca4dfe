"""A commit's tree as a source archive in the store: equal trees give equal bytes, whatever git made of them.

Not by `git archive`: what that writes depends on its version, and on attributes inside the tree (export-subst).
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass

from imagegen.config import Settings
from imagegen.epoch import EPOCH
from imagegen.git import tree
from imagegen.git.repository import Repository, fetched
from imagegen.git.tree import Entry
from imagegen.progress import Progress, timed
from imagegen.store import Store, digest_of

_FORMAT = 1  # of the archive; raise it whenever its bytes change for the same tree
_RECORD = "git"
_LFS = b"version https://git-lfs.github.com/spec/v1\n"  # how a pointer begins, in place of a large file
LARGEST_POINTER = 1024  # bytes (Git LFS specification)


@dataclass(frozen=True)
class Source:
    """A commit, and the tree that it is known to have; both 40 hex digits."""

    url: str
    commit: str
    tree: str


@dataclass(frozen=True)
class Archive:
    """A tar in the store, by digest, with its size in bytes; what of the tree is not in it, as paths."""

    digest: str
    size: int
    submodules: tuple[str, ...] = ()  # empty folders, as in a checkout without them
    pointers: tuple[str, ...] = ()  # files that stand for large ones, which Git LFS keeps elsewhere


def archive(source: Source, folder: str, store: Store, settings: Settings, progress: Progress) -> Archive:
    """The tree below one folder, as an sdist has it; from the store where it was made before.

    Raises FetchError: the commit cannot be had, has another tree, or holds what no archive should.
    """
    key = digest_of(json.dumps([_FORMAT, source.commit, source.tree, folder]).encode())
    with store.lock(f"git-{key}"):
        known = store.recall(_RECORD, key)
        if known and store.intact(known["digest"], known["size"]):
            return Archive(known["digest"], known["size"], tuple(known["submodules"]), tuple(known["pointers"]))
        with (
            timed(progress, f"fetching {source.url} at {source.commit[:12]}"),
            fetched(source.url, source.commit, source.tree, store, settings) as repository,
        ):
            made = _pack(repository, source, folder, store)
        store.remember(_RECORD, key, asdict(made))
    return made


def is_pointer(data: bytes) -> bool:
    """Whether a file is a Git LFS pointer rather than what it should be."""
    return len(data) <= LARGEST_POINTER and data.startswith(_LFS)


def _pack(repository: Repository, source: Source, folder: str, store: Store) -> Archive:
    where = f"{source.url} at {source.commit}"
    entries = tree.checked(tree.listed(repository.listing(source.tree), where), where)
    pointers: list[str] = []
    with repository.blobs() as read, store.writer() as blob:
        for entry in entries:
            data = b"" if entry.is_submodule else read(entry.object)
            if entry.is_link:
                tree.check_target(entry, data, where)
            elif is_pointer(data):
                pointers.append(entry.path)
            _write(entry, data, folder, blob.write)
        blob.write(bytes(tarfile.BLOCKSIZE * 2))
        submodules = tuple(entry.path for entry in entries if entry.is_submodule)
        return Archive(blob.commit(), blob.size, submodules, tuple(pointers))


def _write(entry: Entry, data: bytes, folder: str, write: Callable[[bytes], object]) -> None:
    info = tarfile.TarInfo(f"{folder}/{entry.path}")
    info.mtime = EPOCH
    if entry.is_submodule:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    elif entry.is_link:
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, data.decode()
    else:
        info.mode, info.size = (0o755 if entry.is_executable else 0o644), len(data)
    write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
    if info.size:
        write(data + bytes(-len(data) % tarfile.BLOCKSIZE))
