"""Random layers, and a model of the tree that they make: each layer is collected, and laid over the ones below it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from imagegen.core.layer_tree import MemberKind, whiteout_of

OPAQUE = ".wh..wh..opq"
Tree = dict[str, str | int]  # path -> "/" for a directory, the target of a symbolic link, the size of a file
_TYPES = {
    MemberKind.FILE: tarfile.REGTYPE,
    MemberKind.DIRECTORY: tarfile.DIRTYPE,
    MemberKind.SYMBOLIC_LINK: tarfile.SYMTYPE,
    MemberKind.HARD_LINK: tarfile.LNKTYPE,
    None: tarfile.FIFOTYPE,
}


@dataclass(frozen=True)
class Member:
    """A member of a layer. A file has `size` bytes."""

    path: str
    kind: MemberKind | None = MemberKind.FILE
    target: str = ""
    size: int = 0


def as_tar(members: Sequence[Member]) -> bytes:
    """Return the tar of a layer, uncompressed."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member in members:
            info = tarfile.TarInfo(member.path)
            info.type, info.linkname, info.mode, info.size = _TYPES[member.kind], member.target, 0o755, member.size
            archive.addfile(info, io.BytesIO(bytes(member.size)))
    return stream.getvalue()


def with_directories(members: Sequence[Member]) -> list[Member]:
    """Return the members after members for all directories above them."""
    directories = sorted({directory for member in members for directory in _parents(member.path)} - {""})
    return [*(Member(directory, MemberKind.DIRECTORY) for directory in directories), *members]


_PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
_TARGETS = st.lists(st.sampled_from(["a", "b", "c", ".."]), min_size=1, max_size=3).map("/".join)
_FILES = st.builds(Member, _PATHS, size=st.integers(1, 9))
_DIRECTORIES = st.builds(Member, _PATHS, st.just(MemberKind.DIRECTORY))
_LINKS = st.builds(
    Member, _PATHS, st.just(MemberKind.SYMBOLIC_LINK), st.builds(str.__add__, st.sampled_from(["", "/"]), _TARGETS)
)
_HARD_LINKS = st.builds(Member, _PATHS, st.just(MemberKind.HARD_LINK), _PATHS)
_WHITEOUTS = (
    _PATHS.map(lambda path: Member(whiteout_of(path)))
    | st.just(Member(OPAQUE))
    | _PATHS.map(lambda path: Member(f"{path}/{OPAQUE}"))
)
_FREQUENT = [_FILES] * 6 + [_DIRECTORIES] * 3 + [_LINKS] * 2 + [_WHITEOUTS] * 4
_MEMBERS = st.sampled_from([*_FREQUENT, _HARD_LINKS, st.builds(Member, _PATHS, st.none())]).flatmap(lambda kind: kind)
LAYERS = st.lists(st.lists(_MEMBERS, max_size=8), max_size=4)


def apply(layers: Sequence[Sequence[Member]]) -> Tree | None:
    """Return the tree of layers; None if a path runs in circles, or a hard link leads to nothing."""
    tree: Tree = {}
    try:
        for members in layers:
            layer = _Layer(tree)
            for member in members:
                layer.add(member)
            tree = layer.merged()
    except (RecursionError, KeyError):
        return None
    return tree


@dataclass
class _Layer:
    """What a layer has itself, and what it hides of the lower tree: paths, and the contents of opaque directories."""

    lower: Tree
    own: Tree = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)

    def merged(self) -> Tree:
        visible = {
            path: value
            for path, value in self.lower.items()
            if self.hidden.isdisjoint([path, *_parents(path)]) and self.opaque.isdisjoint(_parents(path))
        }
        return visible | self.own

    def add(self, member: Member) -> None:
        directory, _, name = member.path.rpartition("/")
        if name.startswith(".wh."):
            self._white_out(self._real(directory), name)
        elif name and member.kind:
            path = f"{self._real(directory)}/{name}".lstrip("/")
            source_directory, _, source_name = member.target.rpartition("/")
            source = ""
            if member.kind is MemberKind.HARD_LINK:
                source = f"{self._real(source_directory)}/{source_name}".lstrip("/")
            self._create(_parents(path))
            if path != source or self.merged().get(path, "/") == "/":
                self._put(path, member, source)

    def _create(self, directories: list[str]) -> None:
        self.own |= dict.fromkeys(filter(None, directories), "/")

    def _put(self, path: str, member: Member, source: str) -> None:
        if member.kind is not MemberKind.DIRECTORY:
            self.hidden.add(path)
            self.own = {other: value for other, value in self.own.items() if path not in (other, *_parents(other))}
        if member.kind is MemberKind.HARD_LINK:
            value = self.merged()[source]
            if value == "/":
                raise KeyError(source)
            self.own[path] = value
        else:
            link = member.target if member.kind is MemberKind.SYMBOLIC_LINK else member.size
            self.own[path] = "/" if member.kind is MemberKind.DIRECTORY else link

    def _white_out(self, directory: str, name: str) -> None:
        self._create([directory, *_parents(directory)])
        if name == OPAQUE:
            self.opaque.add(directory)
        else:
            self.hidden.add(f"{directory}/{name.removeprefix('.wh.')}".lstrip("/"))

    def _real(self, path: str, followed: int = 0) -> str:
        """Return the path without links that a path means."""
        tree, real = self.merged(), ""
        names = path.split("/") if path else []
        for number, name in enumerate(names):
            if name == "..":
                real = real.rpartition("/")[0]
                continue
            child = f"{real}/{name}".lstrip("/")
            target = tree.get(child)
            if isinstance(target, str) and target != "/":
                if followed == 40:
                    raise RecursionError
                start = target.lstrip("/") if target.startswith("/") else f"{real}/{target}".lstrip("/")
                return self._real("/".join([start, *names[number + 1 :]]), followed + 1)
            real = child
        return real


def written_layer(before: Tree, after: Tree, opaque: bool) -> list[Member]:
    """Return the layer between two trees as builders write it, for which all engines agree.

    Whiteouts come before their siblings, all directories above a member are members, and hard links lead to files of
    the layer. With `opaque`, a directory of both trees is emptied and filled again.
    """
    kept = {path for path in before if before[path] == after.get(path) == "/"}
    emptied = kept if opaque else set()
    gone = {path for path in before.keys() - after.keys() if {"": "/", **after}.get(_parents(path)[0]) == "/"}
    members = [Member(f"{path}/{OPAQUE}") for path in emptied]
    members += [Member(whiteout_of(path)) for path in gone if emptied.isdisjoint(_parents(path))]
    files: dict[int, str] = {}
    for path, value in sorted(after.items()):
        if before.get(path) == value and emptied.isdisjoint(_parents(path)):
            continue
        if isinstance(value, int):
            first = files.setdefault(value, path)
            kind = MemberKind.FILE if first == path else MemberKind.HARD_LINK
            members.append(Member(path, kind, "" if first == path else first, value if first == path else 0))
        else:
            members.append(Member(path, MemberKind.DIRECTORY if value == "/" else MemberKind.SYMBOLIC_LINK, value))
    directories = {directory for member in members for directory in _parents(member.path)}
    directories -= {"", *(member.path for member in members)}
    members += [Member(directory, MemberKind.DIRECTORY) for directory in directories]
    return sorted(members, key=lambda member: member.path)


def _parents(path: str) -> list[str]:
    """Return the directories above a path, the nearest first; "" is the root."""
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(len(names) - 1, -1, -1)]
