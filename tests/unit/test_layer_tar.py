"""Members of archives: their names, and headers without bound."""

from __future__ import annotations

import ast
import io
import os
import tarfile
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import imagegen
from imagegen.core.layer_tar import DAMAGED, MAX_DEPTH, PATH_MAX, Allowance, Bounded, is_below, member_name, members
from tests.support.hostile_names import NAMES


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("etc/", "etc"),
        ("./", ""),
        (".", ""),
        ("/", ""),
        ("", ""),
        ("./etc/passwd", "etc/passwd"),
        ("/nix/store/", "nix/store"),
        ("etc/.wh.passwd", "etc/.wh.passwd"),
        ("etc/.wh..wh..opq", "etc/.wh..wh..opq"),
        ("a/...", "a/..."),
        ("..a/b..", "..a/b.."),
        ("a\udcff", "a\udcff"),
    ],
)
def test_names_of_the_field_are_accepted(text: str, name: str) -> None:
    assert member_name(text) == name


@pytest.mark.parametrize(
    "text", [*NAMES, "a\0b", "a" * (PATH_MAX + 1), "é" * (PATH_MAX // 2 + 1), "a/" * MAX_DEPTH + "b"]
)
def test_names_that_leave_the_tree_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the name"):
        member_name(text)
    assert not is_below(text)


odd_parts = st.sampled_from(["a", "b.c", "..", ".", "", ".wh.", ".wh..", ".wh...", ".wh.a", "é", "\0"])
names = st.lists(odd_parts | st.text(max_size=4), max_size=5).map("/".join)


@given(names)
@example("./..")
@example("//a")
def test_an_accepted_name_lies_below_the_root(text: str) -> None:
    try:
        name = member_name(text)
    except ValueError:
        return
    assert member_name(name) == name
    assert not name or {"", ".", ".."}.isdisjoint(name.split("/"))
    assert os.path.normpath(f"/root/{name}") == f"/root/{name}".rstrip("/")
    assert PurePosixPath("/root", name).is_relative_to("/root")


def header(kind: bytes, data: bytes) -> bytes:
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, len(data)
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def record(keyword: str, value: str) -> bytes:
    text = f" {keyword}={value}\n".encode()
    size = next(size for size in range(len(text), len(text) + 9) if len(str(size)) + len(text) == size)
    return str(size).encode() + text


def pax(fields: Mapping[str, str], kind: bytes = tarfile.XHDTYPE) -> bytes:
    return header(kind, b"".join(record(*field) for field in fields.items()))


def file(name: str, data: bytes = b"x") -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def read(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data + bytes(1024)), mode="r|", tarinfo=Bounded) as archive:
        return list(members(archive))


def link(target: str, kind: bytes = tarfile.LNKTYPE) -> bytes:
    return pax({"linkpath": target}) + header(kind, b"")


@pytest.mark.parametrize(
    "data",
    [
        *(pax({"path": name}) + file("fine") for name in NAMES),
        *(link(name) for name in NAMES),
        link("a" * 5000, tarfile.SYMTYPE),
        pax({"path": "a\0b"}) + file("fine"),
        header(tarfile.GNUTYPE_LONGNAME, b"../x\0") + file("fine"),
        header(tarfile.GNUTYPE_LONGNAME, b"a" * 5000 + b"\0") + file("fine"),
        pax({"uid": "-1"}) + file("fine"),
        pax({"gid": str(1 << 40)}) + file("fine"),
        pax({"mtime": "inf"}) + file("fine"),
        pax({"mtime": "nan"}) + file("fine"),
        pax({"size": "-512"}) + file("fine"),
        pax({"GNU.sparse.map": "0,1", "GNU.sparse.size": "99999999999"}) + file("fine"),
        pax({"GNU.sparse.realsize": "99999999999"}) + file("fine"),
        pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}) + file("fine"),
        header(tarfile.XHDTYPE, b"9 a=b\n") + file("fine"),
        header(tarfile.XHDTYPE, b"0 a=b\n") + file("fine"),
        header(tarfile.XHDTYPE, b"x" * 100) + file("fine"),
        pax({"path": "alone"}),
        file("."),
    ],
)
def test_members_that_no_archive_holds_are_refused(data: bytes) -> None:
    with pytest.raises(DAMAGED):
        read(file("before") + data)


keywords = st.sampled_from(["path", "linkpath", "uname", "x.y"])
values = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)


@given(st.dictionaries(keywords, values))
def test_pax_headers_are_read_as_by_the_library(fields: dict[str, str]) -> None:
    data = pax(fields) + file("fine") + bytes(1024)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        (expected,) = archive.getmembers()
    with tarfile.open(fileobj=io.BytesIO(data), tarinfo=Bounded) as archive:
        member = archive.next()
    assert member is not None
    names = ("name", "linkname", "uname", "pax_headers", "size", "type", "mode", "offset_data")
    assert [getattr(member, name) for name in names] == [getattr(expected, name) for name in names]


def test_a_pax_size_replaces_the_header_s() -> None:
    small = tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT)
    found = read(pax({"size": "3"}) + small + b"xyz" + bytes(509) + file("b"))
    assert [(member.name, member.size) for member in found] == [("a", 3), ("b", 1)]


def test_global_headers_say_nothing_about_members() -> None:
    """Engines ignore them (archive/tar of Go gives them as members of their own); git writes a comment in one."""
    found = read(pax({"comment": "0" * 40, "path": "../x", "uid": "7"}, tarfile.XGLTYPE) + file("a") + file("b"))
    assert [(member.name, member.uid) for member in found] == [("a", 0), ("b", 0)]


@pytest.mark.fault(
    "Network",
    "a layer's pax header of 1 MiB: digits only, records that lie in each other",
    "refused in time and memory that grow with the header, with every release of Python",
)
@pytest.mark.parametrize("data", [b"1" * (1 << 20), b"2 " * (1 << 19) + b"=", b"4 a=" * (1 << 18)])
def test_headers_take_time_and_memory_as_their_size(data: bytes) -> None:
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(DAMAGED):
            read(header(tarfile.XHDTYPE, data[: (1 << 20) - 512]) + file("fine"))
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 2


def test_headers_about_one_member_are_bounded_together() -> None:
    with pytest.raises(tarfile.ReadError, match="headers of"):
        read(header(tarfile.XHDTYPE, record("a", "x" * (1 << 18))) * 8 + file("fine"))
    assert len(read((header(tarfile.XHDTYPE, record("a", "x" * (1 << 18))) + file("fine")) * 8)) == 8


def test_an_allowance_ends() -> None:
    allowance = Allowance(members=2, contents=10, text=500)
    assert allowance.take(5, "a")
    assert not allowance.take(6, "a")
    assert not Allowance(text=500).take(0, "a" * 500)
    assert not Allowance(members=2).take(0, members=3)


def test_every_reader_of_archives_is_bounded() -> None:
    """Only the programs that run in a sandbox, or in a build, read with the library's own class."""
    root = Path(imagegen.__file__).parent
    plain = set()
    for path in (path for path in root.rglob("*.py") if "tarfile." in path.read_text()):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in calls:
            text = ast.unparse(call)
            is_reader = text.startswith(("tarfile.open(", "tarfile.TarFile(", "tarfile.is_tarfile("))
            if is_reader and "mode='w" not in text and "tarinfo=Bounded" not in text:
                plain.add(str(path.relative_to(root)))
            assert not text.startswith("tarfile") or ".extractall" not in text
    assert plain == {"checks/worker/source.py", "lock/sdist_worker.py"}
