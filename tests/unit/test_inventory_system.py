"""The libraries of a root, found as the loader finds them; on disk and in a tar alike."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit.model import SystemLibraries
from imagegen.image.inventory import libraries
from imagegen.image.inventory.disk import Disk
from imagegen.image.inventory.tree import Directory, place, walk
from tests.support.elf_files import AARCH64, make_elf
from tests.support.file_trees import Things, To, layered, on_disk

MULTIARCH = "usr/lib/x86_64-linux-gnu"
PROGRAM = make_elf(needed=["libc.so.6"], exported=["Py_Initialize"], interpreter="/lib64/ld.so")


def library(name: str, **more: object) -> bytes:
    return make_elf(soname=name, **more)  # type: ignore[arg-type]


def systems(tmp_path: Path, tree: Things, interpreter: str | None = None, **environment: str) -> SystemLibraries:
    """Return what is found on disk, and check that the tar gives the same."""
    found = libraries.from_directories(
        on_disk(tmp_path / "root", tree), environment=environment, interpreter=interpreter
    )
    assert libraries.of(layered(tmp_path, tree), environment=environment, interpreter=interpreter) == found
    return found


def sonames(found: SystemLibraries) -> dict[str, str | None]:
    return {name: file.elf.soname for name, file in found.libraries.items() if file.elf}


def test_a_library_is_what_lies_behind_all_links(tmp_path: Path) -> None:
    tree = {
        "lib": To("usr/lib"),
        f"{MULTIARCH}/libz.so.1": To("libz.so.1.2"),
        f"{MULTIARCH}/libz.so.1.2": To("/etc/alternatives/libz"),
        "etc/alternatives/libz": To(f"/{MULTIARCH}/zlib/libz.so.1.2.13"),
        f"{MULTIARCH}/zlib/libz.so.1.2.13": library("libz.so.1"),
        f"{MULTIARCH}/libloop.so": To("libloop.so"),
        f"{MULTIARCH}/libnothing.so": To("missing"),
        f"{MULTIARCH}/libdirectory.so": To("zlib"),
        f"{MULTIARCH}/libc.so": b"/* GNU ld script */",
        f"{MULTIARCH}/libcut.so": library("libcut.so")[:100],
    }
    found = systems(tmp_path, tree)
    assert sonames(found) == {"libz.so.1": "libz.so.1", "libz.so.1.2": "libz.so.1"}
    assert found.libraries["libcut.so"].unreadable
    assert found.paths["libz.so.1"] == "/lib/x86_64-linux-gnu/libz.so.1"


def test_directories_are_searched_in_the_loaders_order(tmp_path: Path) -> None:
    tree = {
        "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n/opt/last # a comment\n",
        "etc/ld.so.conf.d/b.conf": b"/opt/second:/opt/third\n",
        "etc/ld.so.conf.d/a.conf": b"/opt/first\ninclude ld.so.conf.d/a.conf\n",
        "etc/ld.so.conf.d/not": b"/opt/not\n",
        "opt/not/libno.so": library("libno.so"),
        **{f"opt/{place}/liba.so": library(place) for place in ("set", "first", "second", "third", "last")},
        **{f"opt/{place}/libb.so": library(place) for place in ("second", "third", "last")},
        **{f"opt/{place}/libc.so": library(place) for place in ("third", "last")},
        **{f"opt/{place}/libd.so": library(place) for place in ("last",)},
        **{f"{MULTIARCH}/lib{name}.so": library("built in") for name in "abcde"},
        **{f"usr/lib/lib{name}.so": library("plain") for name in "abcdef"},
    }
    found = systems(tmp_path, tree, LD_LIBRARY_PATH="/opt/set:relative:/opt/missing")
    assert sonames(found) == {
        "liba.so": "set", "libb.so": "second", "libc.so": "third", "libd.so": "last", "libe.so": "built in",
        "libf.so": "plain",
    }  # fmt: skip
    assert found.preloaded == ("/opt/set", "/opt/missing")
    assert found.paths["liba.so"] == "/opt/set/liba.so"


def test_the_loader_passes_over_other_processors_libraries(tmp_path: Path) -> None:
    tree = {
        "usr/bin/python3": PROGRAM,
        "usr/lib/aarch64-linux-gnu/libx.so": library("theirs", machine=AARCH64),
        "usr/lib/libx.so": library("ours"),
    }
    assert sonames(systems(tmp_path, tree, "/usr/bin/python3")) == {"libx.so": "ours"}


def test_a_program_that_says_where_its_libraries_are_finds_them_first(tmp_path: Path) -> None:
    """Conda's Python, and one whose functions are in libpython."""
    python = make_elf(needed=["libpython3.11.so.1.0"], rpath="$ORIGIN/../lib", interpreter="/lib64/ld.so")
    tree = {
        "opt/conda/bin/python": To("python3.11"),
        "opt/conda/bin/python3.11": python,
        "opt/conda/lib/libpython3.11.so.1.0": library("libpython3.11.so.1.0", exported=["Py_Initialize"]),
        "opt/conda/lib/libstdc++.so.6": library("conda's"),
        "usr/lib/libstdc++.so.6": library("the system's"),
    }
    found = systems(tmp_path, tree, "/opt/conda/bin/python")
    assert sonames(found)["libstdc++.so.6"] == "conda's"
    assert found.interpreter == found.libraries["libpython3.11.so.1.0"]


def test_what_a_library_finds_by_itself_is_there(tmp_path: Path) -> None:
    tree = {
        "usr/lib/liba.so": library("liba.so", needed=["libprivate.so", "libnowhere.so"], runpath="$ORIGIN/a:/missing"),
        "usr/lib/a/libprivate.so": library("libprivate.so", needed=["libdeeper.so"], rpath="${ORIGIN}/deep"),
        "usr/lib/a/deep/libdeeper.so": library("libdeeper.so", needed=["liba.so"]),
        "usr/lib/a/libunasked.so": library("libunasked.so"),
    }
    found = systems(tmp_path, tree)
    assert set(found.libraries) == {"liba.so", "libprivate.so", "libdeeper.so"}
    assert found.paths["libdeeper.so"] == "/usr/lib/a/deep/libdeeper.so"


@pytest.mark.parametrize("program", [None, "/usr/bin/missing", "/usr/bin"])
def test_no_program_is_none(program: str | None, tmp_path: Path) -> None:
    assert systems(tmp_path, {"usr/bin/x": PROGRAM}, program).interpreter is None


NAMES = st.sampled_from(["a", "b", "lib", "liba.so", "libb.so.1"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TARGETS = st.lists(st.one_of(NAMES, st.just("..")), min_size=1, max_size=4).map("/".join)
LINKS = st.builds(lambda start, path: To(start + path), st.sampled_from(["", "/"]), TARGETS)
LIBRARIES = st.sampled_from(["one", "two"]).map(library)


@st.composite
def trees(draw: st.DrawFn) -> Things:
    """No path leads through a file or a link: what a tar or a disk makes of such is tested elsewhere."""
    found: dict[str, bytes | To | None] = {}
    for path in draw(st.lists(PATHS, max_size=12, unique=True)):
        above = {path.rsplit("/", n)[0] for n in range(1, path.count("/") + 1)}
        if not any(found.get(each) is not None for each in above) and not any(
            each.startswith(f"{path}/") for each in found
        ):
            found[path] = draw(st.one_of(LINKS, LIBRARIES, st.none()))
    return found


@given(trees(), st.lists(PATHS | TARGETS, min_size=5, max_size=5), st.lists(PATHS, max_size=2))
def test_a_tar_and_a_disk_with_the_same_tree_are_one(
    tree: Things, requested: list[str], directories: list[str]
) -> None:
    tree = {**tree, "etc/ld.so.conf": "\n".join(f"/{each}" for each in directories).encode()}
    with tempfile.TemporaryDirectory() as scratch:
        disk = Disk(on_disk(Path(scratch, "root"), tree))
        tar = layered(Path(scratch), tree)
        assert dict(walk(disk, "/")) == dict(walk(tar, "/"))
        for path in requested:
            found = place(disk, path)
            assert found == place(tar, path)
            if found is not None:
                assert disk.look(found) == tar.look(found)
                assert isinstance(disk.look(found), Directory) == Path(f"{scratch}/root{found}").is_dir()
        environment = {"LD_LIBRARY_PATH": ":".join(f"/{each}" for each in requested)}
        assert libraries.of(disk, environment=environment) == libraries.of(tar, environment=environment)
