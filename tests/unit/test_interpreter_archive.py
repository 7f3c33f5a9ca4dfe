"""A standalone interpreter's archive: what of it is unpacked, how it is patched, and what is refused."""

from __future__ import annotations

import ast
import gzip
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import BaseError
from imagegen.core.store import Store
from imagegen.image.interpreter import patched, sysconfig_data, unpack
from tests.support.golden import Golden
from tests.support.interpreter_archives import DATA, SOUND, archive, member, stored

PREFIX = "/opt/python/3.12"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_what_an_interpreter_needs_is_unpacked_and_patched(store: Store, root: Path, golden: Golden) -> None:
    unpack(archive(store, *SOUND), store, root, PREFIX)
    found = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    gone = {"lib/python3.12/__pycache__/os.cpython-312.pyc", "lib/python3.12/EXTERNALLY-MANAGED"}
    assert found == {info.name.removeprefix("python/") for info, _ in SOUND[1:]} - gone
    assert (root / "bin/python3").readlink() == Path("python3.12")
    assert (root / "lib/libpython3.so").read_bytes() == b"\x7fELF"
    assert (root / "bin/pydoc3").read_bytes() == f"#!{PREFIX}/bin/python3.12\nprint()\n".encode()
    assert (root / "bin/pydoc3").stat().st_mode & 0o777 == 0o755
    assert (root / "lib/pkgconfig/python3.pc").read_text() == f"prefix={PREFIX}\nlibdir=${{prefix}}/lib\n"
    assert (root / "lib/python3.12/os.py").read_bytes() == SOUND[7][1]
    made = (root / "lib/python3.12/config-3.12/Makefile").read_text()
    golden.check(made)


def test_sysconfig_names_the_place_and_the_compiler_of_the_image(store: Store, root: Path) -> None:
    unpack(archive(store, *SOUND), store, root, PREFIX)
    module: dict[str, dict[str, object]] = {}
    exec((root / DATA).read_text(), module)
    assert module["build_time_vars"] == {
        "AR": "ar",
        "BLDSHARED": "cc -pthread -shared -Wl,--exclude-libs,ALL",
        "CC": "cc -pthread",
        "CFLAGS": "-Wsign-compare -DNDEBUG -fPIC",
        "CONFIG_ARGS": f"'--prefix={PREFIX}' '--enable-shared'",
        "CXX": "c++ -pthread",
        "INCLUDEPY": f"{PREFIX}/include/python3.12",
        "LDFLAGS": f"-L{PREFIX}/lib -Wl,-z,now",
        "LDSHARED": "cc -shared",
        "PYTHON_BUILD_STANDALONE": 1,
        "SIZEOF_LONG": 8,
        "WASM_STDLIB": "./install/lib/python3.12/os.py",
        "installs": "/installed/elsewhere",
        "prefix": PREFIX,
    }


REFUSED = {
    "a file beside the directory": member("other/x", b"x"),
    "an absolute path": member("/etc/x", b"x"),
    "a path that leaves": member("python/../x", b"x"),
    "an absolute link": member("python/x", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a link that leaves": member("python/x", type=tarfile.SYMTYPE, linkname="../x"),
    "a hard link that leaves": member("python/x", type=tarfile.LNKTYPE, linkname="python/../../x"),
    "a hard link to a file outside": member("python/x", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "a device": member("python/x", type=tarfile.CHRTYPE),
    "a pipe": member("python/x", type=tarfile.FIFOTYPE),
    "a whiteout": member("python/.wh.bin", b""),
    "a name with a line break": member("python/a\nb", b""),
    "a name that is no text": member("python/a\udcff", b""),
    "a name too long for a file system": member("python/" + "a" * 300, b""),
    "a file as a directory": member("python/bin/python3.12/x", b""),
    "other sysconfig data": member(f"python/{DATA}", b"import os\n"),
}


@pytest.mark.parametrize("odd", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_in_one_is_refused(store: Store, root: Path, odd: tuple[tarfile.TarInfo, bytes]) -> None:
    outside = {path for path in root.parent.rglob("*") if root not in path.parents}
    with pytest.raises(BaseError) as raised:
        unpack(archive(store, *SOUND[:3], odd), store, root, PREFIX)
    assert str(raised.value.where).startswith("cpython.tar.gz")
    left = {path for path in root.parent.rglob("*") if root not in path.parents and "store" not in path.parts}
    assert left <= outside


def test_a_link_through_a_link_cannot_leave(store: Store, root: Path) -> None:
    through = (
        member("python/a/b/c", type=tarfile.DIRTYPE, mode=0o755),
        member("python/s", type=tarfile.SYMTYPE, linkname="a/b/c"),
        member("python/a/b/c/up", type=tarfile.SYMTYPE, linkname="../../.."),
        member("python/s/up/up", type=tarfile.SYMTYPE, linkname="../.."),
    )
    with pytest.raises(BaseError):
        unpack(archive(store, *SOUND[:3], *through), store, root, PREFIX)


@pytest.mark.parametrize("cut", [0, 10, -20])
def test_a_damaged_archive_is_refused(store: Store, root: Path, cut: int) -> None:
    whole = store.read(archive(store, *SOUND).digest)
    with pytest.raises(BaseError):
        unpack(stored(store, whole[:cut] or b"no archive"), store, root, PREFIX)


def test_a_bomb_is_refused(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagegen.image.interpreter.MAX_BYTES", 100_000)
    bomb = archive(store, *SOUND, member("python/zeros", bytes(200_000)))
    assert len(gzip.decompress(store.read(bomb.digest))) > 200_000
    with pytest.raises(BaseError):
        unpack(bomb, store, root, PREFIX)


@given(st.binary(max_size=200))
def test_sysconfig_data_is_read_and_never_run(content: bytes) -> None:
    try:
        found = sysconfig_data(DATA, content, PREFIX)
    except BaseError:
        return
    assert found.startswith(b"# system configuration")


_TEXTS = st.text("/instal -LICcgx+'=\t", max_size=40)


@given(st.dictionaries(st.sampled_from(["CC", "AR", "LIBS", "x"]), st.one_of(_TEXTS, st.integers())))
def test_patching_twice_changes_nothing_more(variables: dict[str, str | int]) -> None:
    once = sysconfig_data(DATA, f"build_time_vars = {variables!r}".encode(), PREFIX)
    assert sysconfig_data(DATA, once, PREFIX) == once
    assert ast.literal_eval(once.decode().partition("= ")[2]).keys() == variables.keys() | {"PYTHON_BUILD_STANDALONE"}


@pytest.mark.parametrize("path", ["lib/python3.12/os.py", "lib/libpython3.12.so", "share/man/x", "bin/python3.12"])
def test_other_files_stay_as_they_are(path: str) -> None:
    assert patched(path, b"\x7fELF /install prefix=/install", PREFIX) == b"\x7fELF /install prefix=/install"
