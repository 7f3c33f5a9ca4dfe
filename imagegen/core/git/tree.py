"""The tree of a commit: listed, validated and packed as an archive.

It may be hostile: names that leave it, links out of it, bombs.

Source of the formats: git-ls-tree(1) with -l -z; gitformat-index(5) for modes.
"""

from __future__ import annotations

import json
import posixpath
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from imagegen.core.context import Context
from imagegen.core.errors import FetchError
from imagegen.core.git.repository import check_ref, fetched
from imagegen.core.layer_tar import is_below
from imagegen.core.net import UnreachableError
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import unprintable
from imagegen.core.types import EPOCH, Submodule
from imagegen.oci.documents import digest_of

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
    """A file, link or submodule of a tree; `size` in bytes, 0 for a submodule; `object` is what to read it by."""

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
    """The entries, sorted by the bytes of their paths. Raises FetchError for what can be no checkout."""
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


# A commit's tree as a source archive in the store: equal trees give equal bytes, whatever git made of them.
#
# Not by `git archive`: what that writes depends on its version, and on attributes inside the tree (export-subst).

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
    """A tar in the store, by digest, with its size in bytes; what of the tree is not in it, as paths.

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

    Raises FetchError: the commit cannot be fetched, has another tree or other submodules, is no longer where `ref`
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
                tarred(contents, source.where, folder, context.store), tree=tree, commits=_recorded(contents)
            )
        _TREES.put(context.store, key, packed)
    return packed


def is_pointer(data: bytes) -> bool:
    """Return whether a file is a Git LFS pointer rather than what it should be."""
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


def _recorded(contents: Mapping[str, tuple[TreeEntry, Read]]) -> dict[str, str]:
    return {path: entry.object for path, (entry, _) in sorted(contents.items()) if entry.is_submodule}


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
    """Return a tar of the entries below one folder; each entry's function reads it. Raises FetchError for links that
    lead out.
    """
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
            _write(entry, data, folder, blob.write)
        blob.write(bytes(tarfile.BLOCKSIZE * 2))
        return PackedTree(blob.commit(), blob.size, tuple(submodules), tuple(pointers))


def _write(entry: TreeEntry, data: bytes, folder: str, write: Callable[[bytes], object]) -> None:
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
