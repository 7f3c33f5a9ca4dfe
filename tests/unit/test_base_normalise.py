"""The normaliser: what it writes depends on the tree alone, and what no tree may hold is refused by name."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import BaseError
from imagegen.core.image_format import EPOCH
from imagegen.image.base.normalise import dpkg_configuration, normalise, read
from tests.support.errors import raises

NAMES = st.text("abcé-. ", min_size=1, max_size=8).filter(lambda name: name not in {".", ".."})


def archive(members: Iterable[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            info, data = member if isinstance(member, tuple) else (member, b"")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in {"mode": 0o755 if kind == tarfile.DIRTYPE else 0o644, **fields}.items():
        setattr(info, field, value)
    return info


def directories(*names: str) -> list[tarfile.TarInfo]:
    return [entry(name, tarfile.DIRTYPE) for name in names]


def normalised(source: io.BytesIO, files: dict[str, bytes] | None = None) -> bytes:
    out = io.BytesIO()
    normalise(source, out, files or {})
    return out.getvalue()


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return {member.name: member for member in tar}


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[tarfile.TarInfo, bytes]]:
    """A tree's members in any order that a tar may have them, hard links after what they name."""
    folders = draw(st.lists(NAMES, unique=True, max_size=4))
    plain: list[tuple[tarfile.TarInfo, bytes]] = [(entry(f"./{name}", tarfile.DIRTYPE), b"") for name in folders]
    taken = set(folders)
    links: list[tuple[tarfile.TarInfo, bytes]] = []
    for name in draw(st.lists(NAMES, unique=True, max_size=8)):
        folder = draw(st.sampled_from(["", *folders]))
        path = f"{folder}/{name}".lstrip("/")
        if path in taken:
            continue
        taken.add(path)
        info = entry(f"./{path}", mode=draw(st.sampled_from([0o644, 0o755, 0o4755])), gid=draw(st.integers(0, 99)))
        info.mtime, info.uname = draw(st.integers(0, 2**31)), draw(st.sampled_from(["", "root", "someone"]))
        plain.append((info, draw(st.binary(max_size=700))))
        if draw(st.booleans()) and f"{path}.link" not in taken:
            taken.add(f"{path}.link")
            links.append((entry(f"./{path}.link", tarfile.LNKTYPE, linkname=f"./{path}"), b""))
    return [*draw(st.permutations(plain)), *draw(st.permutations(links))]


@given(trees(), st.randoms())
def test_order_and_times_of_the_source_leave_no_trace(
    tree: list[tuple[tarfile.TarInfo, bytes]], random: object
) -> None:
    first = normalised(archive(tree))
    for info, _ in tree:
        info.mtime, info.uname = info.mtime + 1.5, "other"
    links = [member for member in tree if member[0].islnk()]
    plain = [member for member in tree if not member[0].islnk()]
    random.shuffle(plain)  # type: ignore[attr-defined]
    assert normalised(archive([*plain, *links])) == first


@given(trees())
def test_normalising_twice_changes_nothing(tree: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    once = normalised(archive(tree))
    assert normalised(io.BytesIO(once)) == once


@given(trees())
def test_nothing_of_the_tree_is_lost(tree: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    contents = {info.name[2:]: data for info, data in tree if info.isreg()}
    contents |= {info.name[2:]: contents[info.linkname[2:]] for info, _ in tree if info.islnk()}
    found = members(normalised(archive(tree)))
    assert list(found) == sorted(found)
    assert {name for name, member in found.items() if member.isdir()} == {i.name[2:] for i, _ in tree if i.isdir()}
    assert dict(zip(contents, read(io.BytesIO(normalised(archive(tree))), *contents), strict=True)) == contents
    assert all(member.mtime == EPOCH and not member.uname for member in found.values())


def test_links_attributes_and_modes_stay() -> None:
    special = entry("./usr/ping", mode=0o4755, gid=8)
    special.pax_headers = {"SCHILY.xattr.security.capability": "cap", "mtime": "12.5", "LIBARCHIVE.creationtime": "1"}
    source = archive([*directories("./usr"), entry("./bin", tarfile.SYMTYPE, linkname="usr"), (special, b"x")])
    found = members(normalised(source))
    assert found["bin"].issym()
    assert found["bin"].linkname == "usr"
    assert (found["usr/ping"].mode, found["usr/ping"].gid) == (0o4755, 8)
    assert found["usr/ping"].pax_headers == {"SCHILY.xattr.security.capability": "cap"}


def test_state_and_documentation_are_dropped_and_copyright_is_kept() -> None:
    folders = ["dev", "etc", "etc/apt", "usr", "usr/share", "usr/share/doc", "usr/share/doc/a", "usr/share/doc/b"]
    folders += ["usr/share/man", "usr/share/man/man1", "usr/share/doc/b/examples", "var", "var/log", "var/log/apt"]
    dropped = ["etc/shadow-", "etc/hostname", "usr/share/doc/a/README", "usr/share/doc/b/examples/c", "var/log/apt/t"]
    dropped += ["usr/share/man/man1/ls.1.gz"]
    kept = ["etc/shadow", "etc/machine-id", "usr/share/doc/a/copyright"]
    source = archive(
        [
            *directories(*folders),
            entry("dev/null", tarfile.CHRTYPE),
            entry("usr/share/doc/c", tarfile.SYMTYPE, linkname="a"),
            *((entry(path), b"data") for path in [*dropped, *kept]),
        ]
    )
    data = normalised(source, {"etc/apt/sources.list": b"deb\n"})
    found = members(data)
    assert set(found) == {
        *{"dev", "etc", "etc/apt", "etc/apt/sources.list", "usr", "usr/share", "usr/share/doc", "usr/share/doc/a"},
        *{"usr/share/doc/c", "usr/share/man", "var", "var/log", *kept},
    }
    assert read(io.BytesIO(data), "etc/machine-id", "etc/apt/sources.list") == [b"", b"deb\n"]


def test_files_put_in_place_replace_what_was_there() -> None:
    source = archive([*directories("etc"), (entry("etc/a", mode=0o600, uid=7), b"old")])
    data = normalised(source, {"etc/a": b"new"})
    assert read(io.BytesIO(data), "etc/a") == [b"new"]
    assert (members(data)["etc/a"].mode, members(data)["etc/a"].uid) == (0o644, 0)


@pytest.mark.parametrize(
    ("tree", "name", "why"),
    [
        ([entry("../evil")], None, "leads out of the tree"),
        ([*directories("a"), entry("a//b")], None, "leads out of the tree"),
        ([entry("a"), entry("./a")], "a", "same path"),
        ([entry("a/b")], "a/b", "no directory"),
        ([entry("a", tarfile.SYMTYPE, linkname="/"), entry("a/b")], "a/b", "no directory"),
        ([entry("pipe", tarfile.FIFOTYPE)], "pipe", "device or a pipe"),
        ([entry("disk", tarfile.BLKTYPE)], "disk", "device or a pipe"),
        ([entry("a", tarfile.LNKTYPE, linkname="../../etc/shadow")], None, "leads out of the tree"),
        ([entry("a", tarfile.LNKTYPE, linkname="a")], "a", "hard link to nothing"),
        ([*directories("d"), entry("l", tarfile.LNKTYPE, linkname="d")], "d", "not a file"),
    ],
)
def test_what_no_base_may_hold_is_refused(tree: list[tarfile.TarInfo], name: str | None, why: str) -> None:
    with pytest.raises(BaseError) as caught:
        normalised(archive(tree))
    assert caught.value.where == name
    assert why in str(caught.value)


def test_a_file_without_its_directory_is_refused() -> None:
    with raises("base-incomplete"):
        normalised(archive(directories("usr")), {"etc/x": b""})


def test_dpkg_gets_the_same_rules() -> None:
    lines = dpkg_configuration().decode().splitlines()
    assert lines.index("path-exclude=/usr/share/doc/*") < lines.index("path-include=/usr/share/doc/*/copyright")
