"""Sources, patches and build requirements are unpacked as they are meant, or refused; wheels are written one way."""

from __future__ import annotations

import difflib
import io
import re
import stat
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.incontainer.worker import patching, requires, source
from imagegen.incontainer.worker.fail import Refused
from imagegen.incontainer.worker.hook import LEGACY, declared
from imagegen.incontainer.worker.repack import finish

EPOCH = 1_700_000_000


def archive(place: Path, *members: tuple[str, bytes | None], links: dict[str, str] | None = None) -> Path:
    """A tar archive; None as content makes a folder."""
    with tarfile.open(place, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = (tarfile.DIRTYPE, 0) if content is None else (tarfile.REGTYPE, len(content))
            info.mode = 0o775 if name.endswith(".sh") else 0o600
            tar.addfile(info, io.BytesIO(content or b""))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return place


def test_an_archive_is_unpacked_without_its_top_folder(tmp_path: Path) -> None:
    tar = archive(tmp_path / "x.tar.gz", ("x-1", None), ("x-1/a.sh", b"a"), ("x-1/d/b", b"b"), links={"x-1/l": "d/b"})
    source.unpack(tar, tmp_path / "x", EPOCH)
    assert (tmp_path / "x/l").read_bytes() == b"b"
    assert [stat.S_IMODE((tmp_path / "x" / name).stat().st_mode) for name in ("a.sh", "d/b")] == [0o755, 0o644]
    assert (tmp_path / "x/d/b").stat().st_mtime == EPOCH


def test_an_archive_without_a_top_folder_stays_as_it_is(tmp_path: Path) -> None:
    source.unpack(archive(tmp_path / "x.tar", ("setup.py", b""), ("d/b", b"b")), tmp_path / "x", EPOCH)
    assert (tmp_path / "x/d/b").read_bytes() == b"b"


@pytest.mark.parametrize(
    ("members", "links", "why"),
    [
        ([("x/../../y", b"")], {}, "would lie outside"),
        ([("/y", b"")], {}, "would lie outside"),
        ([("x/a", b""), ("x/a", b"")], {}, "there twice"),
        ([], {"x/l": "/etc"}, "leads outside"),
        ([], {"x/l": "../../etc"}, "leads outside"),
    ],
)
def test_members_that_would_lie_outside_are_refused(
    tmp_path: Path, members: list[tuple[str, bytes | None]], links: dict[str, str], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        source.unpack(archive(tmp_path / "x.tar.gz", *members, links=links), tmp_path / "x", EPOCH)


def test_a_member_behind_a_link_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        link = tarfile.TarInfo("x/l")
        link.type, link.linkname = tarfile.SYMTYPE, "."
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("x/l/a"))
    with pytest.raises(Refused, match="behind a link"):
        source.unpack(tmp_path / "x.tar", tmp_path / "x", EPOCH)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08 broken"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(Refused, match="no tar archive"):
        source.unpack(tmp_path / "x.tar.gz", tmp_path / "x", EPOCH)


def diff(before: str | None, after: str | None, name: str = "d/f") -> bytes:
    lines = difflib.unified_diff(
        re.findall(r"[^\n]*\n|[^\n]+", before or ""),
        re.findall(r"[^\n]*\n|[^\n]+", after or ""),
        "/dev/null" if before is None else f"a/{name}",
        "/dev/null" if after is None else f"b/{name}",
    )
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    ).encode()


texts = st.builds(
    lambda lines, end: "\n".join(lines) + end,
    st.lists(st.sampled_from(["a", "b\r", "c\rd", "-- c", "++ d", "", " ", "@@ -1 +1 @@", "\\ e"]), max_size=30),
    st.sampled_from(["", "\n"]),
)


@given(texts, texts)
def test_a_patch_makes_of_one_text_the_other(tmp_path_factory: pytest.TempPathFactory, before: str, after: str) -> None:
    folder = tmp_path_factory.mktemp("patched")
    (folder / "x.patch").write_bytes(diff(before, after))
    (folder / "d").mkdir()
    (folder / "d/f").write_bytes(before.encode())
    if before == after:
        with pytest.raises(Refused, match="no change"):
            patching.apply(folder / "x.patch", folder)
    else:
        patching.apply(folder / "x.patch", folder)
        assert (folder / "d/f").read_bytes() == after.encode()
    for place in (folder / "x.patch", folder / "d/f"):
        place.unlink()


@given(st.binary(max_size=200) | texts.map(str.encode))
def test_any_bytes_are_a_patch_or_refused(text: bytes) -> None:
    with suppress(Refused):
        assert all(change.hunks for change in patching.parse(b"--- a/x\n+++ b/x\n" + text, "x.patch"))


def test_files_are_made_and_removed(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("1\n2\n")
    made = b"diff --git a/n.sh b/n.sh\nnew file mode 100755\n" + diff(None, "x\n", "n.sh")
    (tmp_path / "x.patch").write_bytes(made + diff("1\n2\n", None, "old"))
    assert patching.apply(tmp_path / "x.patch", tmp_path) == [tmp_path / "n.sh"]
    assert (tmp_path / "n.sh").stat().st_mode & 0o100
    assert not (tmp_path / "old").exists()


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (diff("1\n", "2\n", "f"), r"x.patch:3: line 1 of f is not what the hunk expects: 'other'"),
        (diff("1\n", "2\n", "missing"), "there is no file missing"),
        (diff(None, "2\n", "f"), "it is there already"),
        (diff("1\n", "2\n", "../f"), "no path below a first folder"),
        (b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-other\n+x\n", "its head says"),
        (b"rename from f\nrename to g\n", "x.patch:1: renames"),
        (b"--- a/f\n+++ b/g\n@@ -1 +1 @@\n-other\n+x\n", "renames are not applied"),
        (b"--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-other\n", "it has more than the patch takes away"),
        (diff("1\n", "2\n", "l"), "is a link"),
        (b"hello\n", "there is no change in it"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(tmp_path: Path, patch: bytes, why: str) -> None:
    (tmp_path / "x.patch").write_bytes(patch)
    (tmp_path / "f").write_text("other\nmore\n")
    (tmp_path / "l").symlink_to("f")
    with pytest.raises(Refused, match=why):
        patching.apply(tmp_path / "x.patch", tmp_path)
    assert (tmp_path / "f").read_text() == "other\nmore\n"


def wheel(place: Path, *members: tuple[str, bytes], when: tuple[int, ...] = (2020, 1, 1, 0, 0, 0)) -> Path:
    with zipfile.ZipFile(place, "w") as zipped:
        for name, content in members:
            zipped.writestr(zipfile.ZipInfo(name, when), content)  # type: ignore[arg-type]
    return place


def test_build_requirements_can_be_imported_and_run(tmp_path: Path) -> None:
    tool = wheel(
        tmp_path / "tool-1-py3-none-any.whl",
        ("tool/__init__.py", b"x = 1"),
        ("tool-1.data/purelib/more.py", b""),
        ("tool-1.data/scripts/tool", b"#!python\nprint(1)"),
        ("tool-1.data/scripts/ninja", b"\x7fELF"),
        ("tool-1.data/headers/h.h", b""),
        ("tool-1.dist-info/entry_points.txt", b"[console_scripts]\nrun = tool.cli:Main.go [extra]\n[other]\na = b\n"),
    )
    requires.unpack([tool], tmp_path / "modules", tmp_path / "programs", "/py")
    assert (tmp_path / "modules/more.py").exists() and (tmp_path / "modules/tool/__init__.py").exists()
    programs = {path.name: path.read_bytes() for path in (tmp_path / "programs").iterdir()}
    assert programs["tool"] == b"#!/py\nprint(1)" and programs["ninja"] == b"\x7fELF"
    assert programs["run"] == b"#!/py\nimport sys\nfrom tool.cli import Main\nsys.exit(Main.go())\n"
    assert set(programs) == {"tool", "ninja", "run"}
    assert all((tmp_path / "programs" / name).stat().st_mode & 0o111 for name in programs)


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b"])
def test_hostile_requirements_are_refused(tmp_path: Path, name: str) -> None:
    bad = wheel(tmp_path / "x.whl", (name, b""))
    with pytest.raises(Refused, match="would lie outside"):
        requires.unpack([bad], tmp_path / "m", tmp_path / "p", "/py")


def test_a_requirement_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no")
    with pytest.raises(Refused, match=r"x\.whl: no wheel"):
        requires.unpack([tmp_path / "x.whl"], tmp_path / "m", tmp_path / "p", "/py")


def test_the_backend_is_the_declared_one(tmp_path: Path) -> None:
    place = tmp_path / "pyproject.toml"
    assert declared(place) == (LEGACY, [])
    place.write_text('[build-system]\nrequires = ["x"]\n[project]\nname = "x"\n')
    assert declared(place) == (LEGACY, [])
    place.write_text('[build-system]\nbuild-backend = "mine:it"\nbackend-path = ["."]\n')
    assert declared(place) == ("mine:it", ["."])


SPEC = {"name": "the.x", "version": "1.0", "modules": ["pkg._C", "top"], "epoch": EPOCH}
MEMBERS = (
    ("pkg/_C.cpython-311-x86_64-linux-gnu.so", b"elf"),
    ("top.abi3.so", b"elf"),
    ("the_x-1.0.dist-info/RECORD", b""),
    ("pkg/__init__.py", b"x" * 1000),
)


def test_equal_contents_are_equal_wheels(tmp_path: Path) -> None:
    found = []
    for number, members in enumerate([MEMBERS, MEMBERS[::-1]]):
        for name in ("dist", "out"):
            (tmp_path / name).mkdir(exist_ok=True)
        when = (2020 + number, 1, 1, 0, 0, 0)
        wheel(tmp_path / "dist/the_x-1.0+cu13-cp311-cp311-linux_x86_64.whl", *members, when=when)
        found.append(finish(SPEC, tmp_path / "dist", tmp_path / "out"))
    assert found[0] == found[1]
    with zipfile.ZipFile(tmp_path / "out" / found[0]["wheel"]) as written:
        assert written.namelist()[-1].endswith("RECORD")
        assert {info.filename: written.read(info) for info in written.infolist()} == dict(MEMBERS)


@pytest.mark.parametrize(
    ("names", "change", "cause"),
    [
        ([], {}, "empty"),
        (["the_x-1.0-py3-none-any.whl", "the_x-1.0-py3-none-linux.whl"], {}, "empty"),
        (["other-1.0-py3-none-any.whl"], {}, "another"),
        (["the_x-1.1-py3-none-any.whl"], {}, "another"),
        (["the_x-1.0-py3-none-any.whl"], {"modules": ["pkg._D"]}, "empty"),
        (["the_x-1.0-py3-none-any.whl"], {"modules": ["pkg"]}, "empty"),
    ],
)
def test_a_wheel_that_is_not_what_was_asked_for_is_refused(
    tmp_path: Path, names: list[str], change: dict[str, list[str]], cause: str
) -> None:
    (tmp_path / "out").mkdir()
    for name in names:
        wheel(tmp_path / name, *MEMBERS)
    with pytest.raises(Refused) as caught:
        finish({**SPEC, **change}, tmp_path, tmp_path / "out")
    assert caught.value.cause == cause
    assert not list((tmp_path / "out").iterdir())
