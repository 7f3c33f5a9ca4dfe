"""Sources, patches and build requirements are unpacked as they are meant, or refused; wheels are written one way."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from imagegen.checks.worker import requires, source
from imagegen.checks.worker.errors import Refused
from imagegen.checks.worker.hook import LEGACY, declared
from imagegen.checks.worker.repack import finish
from tests.support.golden import Golden

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


def test_a_member_behind_a_link_is_refused(tmp_path: Path, golden: Golden) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        link = tarfile.TarInfo("x/l")
        link.type, link.linkname = tarfile.SYMTYPE, "."
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("x/l/a"))
    with pytest.raises(Refused) as caught:
        source.unpack(tmp_path / "x.tar", tmp_path / "x", EPOCH)
    golden.check(caught.value)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08 broken"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(Refused, match="no tar archive"):
        source.unpack(tmp_path / "x.tar.gz", tmp_path / "x", EPOCH)


def test_patched_files_replace_and_join_those_of_the_archive(tmp_path: Path) -> None:
    archive(tmp_path / "x.tar.gz", ("x-1/a.py", b"a"), ("x-1/d/b.py", b"b"))
    added = tmp_path / "patched" / "d" / "new.sh"
    added.parent.mkdir(parents=True)
    added.write_bytes(b"new")
    added.chmod(0o555)
    (tmp_path / "patched" / "a.py").write_bytes(b"changed")
    source.prepare({"source": "x.tar.gz", "epoch": EPOCH}, tmp_path, tmp_path / "x")
    files = {str(path.relative_to(tmp_path / "x")): path for path in (tmp_path / "x").rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in files.items()} == {
        "a.py": b"changed",
        "d/b.py": b"b",
        "d/new.sh": b"new",
    }
    assert {path.stat().st_mtime for path in files.values()} == {EPOCH}
    assert {name: stat.S_IMODE(path.stat().st_mode) for name, path in files.items()} == {
        "a.py": 0o644,
        "d/b.py": 0o644,
        "d/new.sh": 0o755,
    }


def test_a_patched_file_changes_the_identity_of_the_objects(tmp_path: Path) -> None:
    archive(tmp_path / "x.tar.gz", ("x-1/a.py", b"a"))
    (tmp_path / "patched").mkdir()
    found = set()
    for content in (b"one", b"two"):
        (tmp_path / "patched" / "a.py").write_bytes(content)
        found.add(source.identity({"source": "x.tar.gz"}, tmp_path, "python"))
    assert len(found) == 2


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
def test_hostile_requirements_are_refused(tmp_path: Path, name: str, golden: Golden) -> None:
    bad = wheel(tmp_path / "x.whl", (name, b""))
    with pytest.raises(Refused) as caught:
        requires.unpack([bad], tmp_path / "m", tmp_path / "p", "/py")
    golden.check(caught.value)


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
