"""A user's directory as a source archive, of the same form as a commit's; and the repository around a directory.

The archive holds the working tree as git sees it (ls-files: tracked and new files, not the ignored ones; submodules
that are checked out along with it); without git all but version control and caches, which say so themselves. What
Python leaves behind when sources are imported or installed counts only where git tracks it.
Sources: git-ls-files(1), git 2.39; the Cache Directory Tagging Specification 0.6.
"""

from __future__ import annotations

import os
import pwd
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from imagegen.core.errors import FetchError, LockError
from imagegen.core.git import command
from imagegen.core.git import tree as trees
from imagegen.core.git.command import FailedError
from imagegen.core.git.tree import PackedTree, Read, TreeEntry, tarred
from imagegen.core.layer_tar import Bounded, members
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.oci.documents import digest_of

_CONTROL = (".git", ".hg", ".svn")
_LEFT = ("__pycache__", "*.pyc", "*.egg-info")  # by Python and setuptools; they carry no tag
_LIST = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
_LIST += [f"--exclude={pattern}" for pattern in _LEFT]  # of --others alone
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
    left_out: list[str] = []
    try:
        names = [name for name in _names(root, b"", left_out.append) if _top(name) not in without]
        if not names:
            raise FetchError(
                f"{where} holds no source", code="fetch-no-source", why="it is empty, or git ignores all that is in it"
            )
        entries = [*trees.on_disk(root, names, where), *map(trees.left_out, left_out)]
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


def _names(root: Path, below: bytes, leave_out: Callable[[str], None]) -> Iterator[bytes]:
    """Paths from `root` of all that counts in one of its folders; submodules that are not checked out are left out."""
    folder = root / os.fsdecode(below)
    tree = find(folder, os.environ)
    for name in _of_git(tree, folder) if tree else _walked(folder):
        path = below + name.rstrip(b"/")
        full = root / os.fsdecode(path)
        if full.is_symlink() or full.is_file():
            yield path
        elif (full / ".git").exists():
            yield from _names(root, path + b"/", leave_out)
        elif full.is_dir():
            leave_out(os.fsdecode(path))
        elif full.exists():
            yield path  # neither: the caller reports it
        # else it is tracked, and was removed


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
    """Return what changed, counted and named, where the store still has the locked tree."""
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
    """Path below the folder -> mode, target of a link, hash of what it holds."""
    member_hashes = {}
    with store.open(digest) as blob, tarfile.open(fileobj=blob, mode="r|*", tarinfo=Bounded) as archive:  # type: ignore[call-overload]
        for member in members(archive):
            file = archive.extractfile(member) if member.isreg() else None
            data = file.read() if file else b""
            member_hashes[member.name.partition("/")[2]] = (member.mode, member.linkname, digest_of(data))
    return member_hashes


# Find and read the repository around a directory without running anything that it names.
#
# Its files may be another user's. So git does not search for a repository: it is given the `.git` that is found here,
# and never a directory that only resembles a bare repository. As in git, the owners decide whether it is read at all;
# unlike git, root is trusted as well as the user.
#
# Sources: gitrepository-layout(5); git(1), GIT_DIR and GIT_WORK_TREE; git-config(1), safe.directory, git 2.39.

_LINK = "gitdir: "  # how a .git begins that is a file
_LONGEST_LINK = 1 << 13  # bytes


class ForeignRepositoryError(FetchError):
    """The repository belongs to a user who is not trusted; `owner` is that user's id."""

    code = "fetch-foreign-repository"

    def __init__(self, top: Path, path: Path, owner: int) -> None:
        self.owner = owner
        super().__init__(
            f"the git repository at {top} belongs to another user and is not read",
            why=f"{path} belongs to {_user(owner)}, imagegen runs as {_user(os.geteuid())}; "
            "its owner could have commands run as you",
            fix=f"remove it if it does not belong there; if it is yours, change its owner, or tell git: "
            f"git config --global --add safe.directory {top}",
        )


@dataclass(frozen=True)
class Worktree:
    """A working tree from `top` down, its git directory, and the user's environment."""

    top: Path
    directory: Path
    env: Mapping[str, str]

    def run(self, folder: Path, arguments: Sequence[str], configuration: Mapping[str, str] | None = None) -> str:
        """Return what git prints in a folder of the tree. Raises as `command.run`."""
        env = command.environment(self.env, os.devnull, configuration or {})
        env |= {"GIT_DIR": str(self.directory), "GIT_WORK_TREE": str(self.top)}
        return command.run(folder, env, arguments)


def find(folder: Path, env: Mapping[str, str]) -> Worktree | None:
    """Return the working tree that `folder` lies in, None where there is none.

    Raises ForeignRepositoryError, and FetchError where the user's own configuration of git cannot be read.
    """
    folder = folder.resolve()
    device = folder.stat().st_dev
    for top in (folder, *folder.parents):
        if top.stat().st_dev != device:
            return None  # as git: a file system's end is a repository's
        link = top / ".git"
        if link.is_file() or os.path.lexists(link / "HEAD"):
            directory = _directory(link)
            _require_trusted(top, link, directory, env)
            return Worktree(top, directory, env)
    return None


def _directory(link: Path) -> Path:
    """Return the git directory behind a .git, itself where it leads nowhere: git reports what is wrong with it."""
    if link.is_file():
        with link.open("rb") as file:
            text = os.fsdecode(file.read(_LONGEST_LINK))
        if not text.startswith(_LINK) or "\0" in text:
            return link
        link = link.parent / text.removeprefix(_LINK).rstrip("\r\n")
    return Path(os.path.realpath(link))  # Path.resolve raises where links lead in a circle


def _require_trusted(top: Path, link: Path, directory: Path, env: Mapping[str, str]) -> None:
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0 and env.get("SUDO_UID", "").isdecimal():
        trusted.add(int(env["SUDO_UID"]))  # as git: the user who runs this as root
    for path in (top, link, directory):
        if os.path.lexists(path) and (owner := path.lstat().st_uid) not in trusted:
            if not _is_declared_safe(top, env):
                raise ForeignRepositoryError(top, path, owner)
            return


def _is_declared_safe(top: Path, env: Mapping[str, str]) -> bool:
    """Return whether the user's git configuration lists the directory, or all of them; an empty entry clears the
    list.
    """
    safe = False
    for _, value in command.user_configuration(env, r"^safe\.directory$"):
        safe = bool(value) and (safe or value == "*" or Path(value) == top)
    return safe


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (uid {number})"
    except KeyError:
        return f"uid {number}"


# A file of the project as commits have it, read by the system's git: nothing of the repository is run.
#
# Sources: gitrevisions(7) for what a revision may be called and for REV:./PATH; git-rev-parse(1), git-cat-file(1),
# git-rev-list(1).


def commit_of(project: Path, revision: str, env: Mapping[str, str]) -> str | None:
    """The commit that `revision` means in the repository around `project`; None where it means none.

    Raises FetchError where git cannot run, or the repository is another user's.
    """
    if not revision or revision.startswith("-"):
        return None
    return _parsed(project, f"{revision}^{{commit}}", env)


def commits(project: Path, path: str, most: int, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Commit and day ("2026-11-20") of each change of a file below `project`, newest first; `most` of them.

    Empty where there is no repository, or nothing is committed. Raises FetchError as `commit_of`.
    """
    arguments = ["rev-list", f"--max-count={most}", "--format=%cs", "HEAD", "--", f"./{path}"]
    lines = (_run(project, arguments, env) or "").splitlines()
    return [(head.removeprefix("commit "), day) for head, day in zip(lines[::2], lines[1::2], strict=True)]


def shallow(project: Path, env: Mapping[str, str]) -> bool:
    """Return whether the repository around `project` was cloned without all of its history."""
    return (_run(project, ["rev-parse", "--is-shallow-repository"], env) or "").strip() == "true"


def file_at(project: Path, commit: str, path: str, env: Mapping[str, str]) -> str | None:
    """The text of a file below `project` as the commit has it; None where it has none."""
    blob = _parsed(project, f"{commit}:./{path}", env)
    return _run(project, ["cat-file", "blob", blob], env) if blob else None


def _parsed(project: Path, name: str, env: Mapping[str, str]) -> str | None:
    return (_run(project, ["rev-parse", "--verify", "--quiet", name], env) or "").strip() or None


def _run(project: Path, arguments: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Return what git prints. None without a repository, or where it has no such thing or lacks its objects."""
    tree = find(project, env)
    try:
        return tree.run(project, arguments) if tree else None
    except FailedError:
        return None
