"""A user's directory as a source archive, of the same form as a commit's.

The archive holds the working tree as git sees it (ls-files: tracked and new files, not the ignored ones; submodules
that are checked out along with it); without git all but version control and caches, which say so themselves. Files
that Python writes when sources are imported or installed count only if git tracks them.
Sources: git-ls-files(1), git 2.39; the Cache Directory Tagging Specification 0.6.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from imagegen.core.errors import FetchError, LockError
from imagegen.core.git import command
from imagegen.core.git import tree as trees
from imagegen.core.git.source_tree import PackedTree, Read, tarred
from imagegen.core.git.tree import TreeEntry
from imagegen.core.git.worktree import Worktree, find
from imagegen.core.layer_tar import Bounded, members
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.oci.documents import digest_of

_CONTROL = (".git", ".hg", ".svn")
_LEFT = ("__pycache__", "*.pyc", "*.egg-info")  # by Python and setuptools; they carry no tag
_LIST = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
_LIST += [f"--exclude={pattern}" for pattern in _LEFT]  # only of --others
_TAG, _TAGGED = "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55"
_SDIST = ".tar.gz"  # PEP 625
_NAMED = 5  # files in a message
_CHUNK = 1 << 20  # bytes


def pack(path: Path, folder: str, store: Store, without: Collection[str] = ()) -> PackedTree:
    """Pack a directory's files below one folder, less its entries `without`; an sdist as it is.

    Raises FetchError: absent, no source, or in a repository of another user.
    """
    where = str(path)
    if path.is_file():
        if not path.name.endswith(_SDIST):
            raise FetchError(
                f"{where} is not a source",
                code="fetch-no-source",
                why=f"it is neither a directory nor an sdist (*{_SDIST})",
            )
        return _copied(path, store)
    if not path.is_dir():
        raise FetchError(
            f"{path.resolve()} is not there",
            code="fetch-no-source",
            fix="correct the recipe's `path`, a directory or an sdist: it begins where the project's wheels/ is",
        )
    root = path.resolve()
    try:
        listed = list(_names(root, b""))
        names = [name for name, is_left_out in listed if not is_left_out and _top(name) not in without]
        if not names:
            raise FetchError(
                f"{where} holds no source", code="fetch-no-source", why="it is empty, or git ignores all that is in it"
            )
        entries = [
            *trees.on_disk(root, names, where),
            *(trees.left_out(os.fsdecode(name)) for name, is_left_out in listed if is_left_out),
        ]
        read = _reader(root)
        contents: dict[str, tuple[TreeEntry, Read]] = {
            entry.path: (entry, read) for entry in trees.checked(entries, where)
        }
        return tarred(contents, where, folder, store)
    except OSError as error:
        raise FetchError(
            f"{where} cannot be read", code="fetch-file-unreadable", where=error.filename, why=error.strerror
        ) from error


def unchanged(path: Path, folder: str, digest: str, store: Store, without: Collection[str] = ()) -> PackedTree:
    """Return the archive of `pack` again, as the lock pins it; on another machine, the one that the store has.

    Raises LockError.
    """
    if not path.exists() and store.has(digest):
        store.verify(digest)
        return PackedTree(digest, store.path(digest).stat().st_size)
    packed = pack(path, folder, store, without)
    if packed.digest != digest:
        raise LockError(
            f"{path} is no longer what the lock was made of",
            code="lock-source-changed",
            why=_difference(digest, packed.digest, store),
            fix="lock again",
        )
    return packed


def _copied(path: Path, store: Store) -> PackedTree:
    with path.open("rb") as file, store.writer() as blob:
        while data := file.read(_CHUNK):
            blob.write(data)
        return PackedTree(blob.commit(), blob.size)


def _names(root: Path, below: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the paths from `root` of all that counts in one of its folders, and whether it is left out.

    Submodules that are not checked out are left out.
    """
    folder = root / os.fsdecode(below)
    tree = find(folder, os.environ)
    for name in _of_git(tree, folder) if tree else _walked(folder):
        path = below + name.rstrip(b"/")
        full = root / os.fsdecode(path)
        if full.is_symlink() or full.is_file():
            yield path, False
        elif (full / ".git").exists():
            yield from _names(root, path + b"/")
        elif full.is_dir():
            yield path, True
        elif full.exists():
            yield path, False  # neither; the caller reports it


def _top(name: bytes) -> str:
    return os.fsdecode(name.partition(b"/")[0])


def _of_git(tree: Worktree, folder: Path) -> Iterator[bytes]:
    # Without the user's own list of ignored files: a colleague's archive has to be the same.
    try:
        listed = tree.run(folder, _LIST)
    except command.FailedError as error:
        raise FetchError(f"git cannot read {folder}", code="fetch-git-failed", why=str(error).strip()) from error
    yield from (os.fsencode(name) for name in listed.split("\0") if name)


def _walked(folder: Path) -> Iterator[bytes]:
    for entry in os.scandir(folder):
        if any(fnmatchcase(entry.name, pattern) for pattern in (*_CONTROL, *_LEFT)):
            continue
        name = os.fsencode(entry.name)
        if not entry.is_dir(follow_symlinks=False):
            yield name
        elif not _is_cache(Path(entry.path)):
            yield from (name + b"/" + inside for inside in _walked(Path(entry.path)))


def _is_cache(folder: Path) -> bool:
    tag = folder / _TAG
    return tag.is_file() and tag.read_bytes()[: len(_TAGGED)] == _TAGGED


def _reader(root: Path) -> Read:
    def read(name: str) -> bytes:
        path = root / name
        return os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()

    return read


def _difference(old: str, new: str, store: Store) -> str:
    """Count and name the changes, if the store still has the locked tree."""
    if not store.has(old):
        return f"its archive is {new}, the lock names {old}"
    before, after = _members(old, store), _members(new, store)
    kinds = {
        "changed": sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
        "added": sorted(after.keys() - before.keys()),
        "gone": sorted(before.keys() - after.keys()),
    }
    changes = [f"{counted(len(names), 'file')} {kind} ({_some(names)})" for kind, names in kinds.items() if names]
    return ", ".join(changes) or "the files are the same, packed in another way"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


def _members(digest: str, store: Store) -> dict[str, tuple[int, str, str]]:
    """Path below the folder -> mode, target of a link, hash of the content."""
    member_hashes = {}
    with store.open(digest) as blob, tarfile.open(fileobj=blob, mode="r|*", tarinfo=Bounded) as archive:  # type: ignore[call-overload]
        for member in members(archive):
            file = archive.extractfile(member) if member.isreg() else None
            data = file.read() if file else b""
            member_hashes[member.name.partition("/")[2]] = (member.mode, member.linkname, digest_of(data))
    return member_hashes
