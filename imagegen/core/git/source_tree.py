"""A commit's tree as a source archive in the store: equal trees give equal bytes, whatever git made of them.

Not by `git archive`, whose output depends on its version, and on attributes inside the tree (export-subst).
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from imagegen.core.context import Context
from imagegen.core.errors import FetchError
from imagegen.core.git.fetch import check_ref, fetched
from imagegen.core.git.submodule import Submodule
from imagegen.core.git.tree import TreeEntry, check_target, checked, listed
from imagegen.core.image_format import EPOCH
from imagegen.core.net import UnreachableError
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.oci.documents import digest_of

_FORMAT = 1  # of the archive; raise it whenever its bytes change for the same tree
_LFS = b"version https://git-lfs.github.com/spec/v1\n"  # how a pointer begins, in place of a large file
LARGEST_POINTER = 1024  # bytes (Git LFS specification)

Read = Callable[[str], bytes]  # gives a blob by its name


@dataclass(frozen=True)
class TreeSource:
    """A commit, and the tree that it is known to have; both 40 hex digits. Without `tree`, the commit decides it.

    With `ref`, a tag or branch must lead to the commit whenever the source is requested. Of the tree's submodules those
    in `submodules` come along, which may lie in each other; the others stay empty, as in a checkout without them. Its
    top-level entries in `exclude` are neither fetched nor packed.
    """

    url: str
    commit: str
    tree: str | None
    ref: str | None = None
    submodules: tuple[Submodule, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"{self.url} at {self.commit}"


@dataclass(frozen=True)
class PackedTree:
    """A tar in the store, by digest, with its size in bytes, and the paths of the tree that it lacks.

    `tree` and `commits` are a commit's: its tree, and the commit that it records of each of `submodules`, by path.
    """

    digest: str
    size: int
    submodules: tuple[str, ...] = ()  # empty folders
    pointers: tuple[str, ...] = ()  # files that stand for large ones, which Git LFS keeps elsewhere
    tree: str = ""
    commits: Mapping[str, str] = field(default_factory=dict)


_TREES = Cache("git", PackedTree)


def archive(source: TreeSource, folder: str, context: Context) -> PackedTree:
    """Return the tree below one folder as an sdist-like archive; from the store if it was made before.

    Raises FetchError if the commit cannot be fetched, has another tree or other submodules, is no longer where `ref`
    leads, or contains entries that an archive must not have. If the commit is in the store and no server can be asked
    for `ref`, a warning is logged instead.
    """
    decides = [_FORMAT, source.commit, source.tree, folder]
    if source.submodules:
        decides.append(sorted([submodule.path, submodule.commit, submodule.tree] for submodule in source.submodules))
    if source.exclude:
        decides.append({"exclude": sorted(source.exclude)})
    key = digest_of(json.dumps(decides).encode())
    with context.store.lock(f"git-{key}"):
        stored = _TREES.get(context.store, key)
        # An older imagegen recorded neither tree nor commits.
        stored = stored if stored and stored.tree and context.store.intact(stored.digest, stored.size) else None
        if source.ref:
            try:
                check_ref(source.url, source.ref, source.commit, context.store, context.settings)
            except UnreachableError as error:
                if not stored:
                    raise
                context.progress.say(
                    f"{error.what}: whether {source.ref} still leads to {source.commit[:12]} was not asked"
                )
        if stored:
            return stored
        with ExitStack() as repositories:
            tree, contents = _gathered(source, repositories, context)
            packed = replace(
                tarred(contents, source.where, folder, context.store),
                tree=tree,
                commits={path: entry.object for path, (entry, _) in sorted(contents.items()) if entry.is_submodule},
            )
        _TREES.put(context.store, key, packed)
    return packed


def is_pointer(data: bytes) -> bool:
    """Return whether a file is a Git LFS pointer instead of the content."""
    return len(data) <= LARGEST_POINTER and data.startswith(_LFS)


def _gathered(
    source: TreeSource, repositories: ExitStack, context: Context
) -> tuple[str, dict[str, tuple[TreeEntry, Read]]]:
    """Return the commit's tree id and all archive entries by path, each with a function that reads it.

    The readers work until `repositories` is closed.
    """

    def one(
        url: str, commit: str, tree: str | None, exclude: tuple[str, ...] = ()
    ) -> tuple[str, list[TreeEntry], Read]:
        with timed(context.progress, f"fetching {url} at {commit[:12]}"):
            repository = repositories.enter_context(
                fetched(url, commit, tree, context.store, context.settings, exclude)
            )
        where = f"{url} at {commit}"
        entries = checked(listed(repository.listing(repository.tree), where), where)
        return repository.tree, entries, repositories.enter_context(repository.blobs())

    tree, entries, read = one(source.url, source.commit, source.tree, source.exclude)
    contents = {entry.path: (entry, read) for entry in entries}
    for nested in sorted(source.submodules, key=lambda submodule: submodule.path):
        _require_recorded(nested, [entry for entry, _ in contents.values() if entry.is_submodule], source.where)
        try:
            _, inside, read = one(nested.url, nested.commit, nested.tree)
        except FetchError as error:
            what = f"submodule {nested.path} of {source.url}: {error.what}"
            raise type(error)(what, why=error.why, fix=error.fix) from error
        del contents[nested.path]
        for entry in inside:
            path = f"{nested.path}/{entry.path}"
            contents[path] = replace(entry, path=path), read
    return tree, contents


def _require_recorded(required: Submodule, recorded: list[TreeEntry], where: str) -> None:
    """Raise FetchError unless this submodule stands where it should, at its commit."""
    commits = {entry.path: entry.object for entry in recorded}
    commit = commits.get(required.path)
    if commit is None:
        raise FetchError(
            f"{where} has no submodule {required.path}",
            code="fetch-git-submodule",
            why=f"its submodules: {', '.join(sorted(commits))}" if commits else "it has none at all",
            fix="correct the path, or leave it out",
        )
    if commit != required.commit:
        raise FetchError(
            f"submodule {required.path} is not what {where} records",
            code="fetch-git-submodule",
            why=f"the tree records commit {commit}, the matrix names {required.commit}",
            fix="name the commit that the tree records, and that commit's own tree",
        )


def tarred(contents: Mapping[str, tuple[TreeEntry, Read]], where: str, folder: str, store: Store) -> PackedTree:
    """Return a tar of the entries below one folder; each entry's function reads it. FetchError if a link leads out."""
    submodules, pointers = [], []
    with store.writer() as blob:
        for path in sorted(contents, key=str.encode):
            entry, read = contents[path]
            data = b"" if entry.is_submodule else read(entry.object)
            if entry.is_submodule:
                submodules.append(path)
            elif entry.is_link:
                check_target(entry, data, where)
            elif is_pointer(data):
                pointers.append(path)
            blob.write(_member(entry, data, folder))
        blob.write(bytes(tarfile.BLOCKSIZE * 2))
        return PackedTree(blob.commit(), blob.size, tuple(submodules), tuple(pointers))


def _member(entry: TreeEntry, data: bytes, folder: str) -> bytes:
    info = tarfile.TarInfo(f"{folder}/{entry.path}")
    info.mtime = EPOCH
    if entry.is_submodule:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    elif entry.is_link:
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, data.decode()
    else:
        info.mode, info.size = (0o755 if entry.is_executable else 0o644), len(data)
    content = data + bytes(-len(data) % tarfile.BLOCKSIZE) if info.size else b""
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict") + content
