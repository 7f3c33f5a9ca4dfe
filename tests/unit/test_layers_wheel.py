"""Wheels are hostile until proven otherwise."""

from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagegen.errors import WheelError
from imagegen.layers.install import installation
from imagegen.layers.wheel import Wheel
from tests.wheels import FILENAME, INFO, make_wheel, record_line

GOOD: Mapping[str, bytes] = {"demo/__init__.py": b"x = 1\n", "demo/data.bin": bytes(range(256)) * 50}


def open_all(path: Path) -> dict[str, bytes]:
    with Wheel(path, FILENAME) as wheel:
        return {name: wheel.read(name) for name in wheel.members}


def test_every_byte_of_a_good_wheel_comes_out(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, GOOD)
    assert {name: data for name, data in open_all(path).items() if name in GOOD} == GOOD


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/etc/passwd", "leaves the wheel's tree"),
        ("../evil.py", "leaves the wheel's tree"),
        ("demo/../../evil.py", "leaves the wheel's tree"),
        ("demo//x.py", "leaves the wheel's tree"),
        ("demo/./x.py", "leaves the wheel's tree"),
        ("demo\\x.py", "not portable"),
        ("C:evil.py", "not portable"),
        ("demo/new\nline.py", "not portable"),
        ("demo/__INIT__.py", "two members have one name"),
    ],
)
def test_hostile_names_are_refused_with_the_member(tmp_path: Path, name: str, said: str) -> None:
    path = make_wheel(tmp_path, {**GOOD, name: b"pass\n"})
    with pytest.raises(WheelError, match=said) as caught:
        open_all(path)
    assert FILENAME in str(caught.value)
    assert name.rsplit("/", maxsplit=1)[-1].rsplit("\\", maxsplit=1)[-1].split("\n", maxsplit=1)[0] in str(caught.value)


def add_symlink(archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("demo/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(info, "/etc/passwd")


def add_device(archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("demo/null")
    info.external_attr = (stat.S_IFCHR | 0o666) << 16
    archive.writestr(info, "")


def add_duplicate(archive: zipfile.ZipFile) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("demo/__init__.py", "y = 2\n")


def add_unrecorded(archive: zipfile.ZipFile) -> None:
    archive.writestr("demo/extra.py", "y = 2\n")


def add_bomb(archive: zipfile.ZipFile) -> None:
    archive.writestr("demo/zeros", b"\0" * 50_000_000, zipfile.ZIP_DEFLATED)
    archive.filelist[-1].file_size = 1 << 40


def add_lzma(archive: zipfile.ZipFile) -> None:
    archive.writestr("demo/odd", b"data", zipfile.ZIP_LZMA)


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (add_symlink, "regular files only"),
        (add_device, "regular files only"),
        (add_duplicate, "two members have one name"),
        (add_unrecorded, "RECORD lacks a member"),
        (add_bomb, "unpacks to more than it can hold"),
        (add_lzma, "another way than DEFLATE"),
    ],
)
def test_hostile_members_are_refused(tmp_path: Path, add: Callable[[zipfile.ZipFile], None], said: str) -> None:
    path = make_wheel(tmp_path, GOOD, add)
    with pytest.raises(WheelError, match=said):
        open_all(path)


def test_record_that_lies_is_refused(tmp_path: Path) -> None:
    wrong = base64.urlsafe_b64encode(hashlib.sha256(b"other").digest()).rstrip(b"=").decode()
    record = f"demo/__init__.py,sha256={wrong},6\n"
    path = make_wheel(tmp_path, {"demo/__init__.py": b"x = 1\n"}, record=record)
    with pytest.raises(WheelError, match="not what RECORD says") as caught:
        open_all(path)
    assert "demo/__init__.py" in str(caught.value)


def test_record_that_names_what_is_not_there_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, GOOD, extra_record=record_line("demo/gone.py", b""))
    with pytest.raises(WheelError, match="names a member that the wheel lacks"):
        open_all(path)


def test_metadata_of_another_distribution_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, GOOD, info="other-1.0.dist-info")
    with pytest.raises(WheelError, match="another distribution"):
        open_all(path)


def test_entry_points_cannot_smuggle_code_into_scripts(tmp_path: Path) -> None:
    for line in ("x = os;system('id'):main", "x = demo:main()", "a/../../b = demo:main", "x; rm -rf / = demo:main"):
        path = make_wheel(tmp_path, {**GOOD, f"{INFO}/entry_points.txt": f"[console_scripts]\n{line}\n".encode()})
        with Wheel(path, FILENAME) as wheel, pytest.raises(WheelError):
            installation(wheel, "3.11")


def test_data_schemes_land_where_a_venv_has_them(tmp_path: Path) -> None:
    files = {
        **GOOD,
        "demo-1.0.data/scripts/tool": b"#!python\nprint(1)\n",
        "demo-1.0.data/data/share/demo.txt": b"text",
        "demo-1.0.data/headers/demo.h": b"int x;",
        "demo-1.0.data/platlib/demo/lib.so": b"\x7fELF",
        f"{INFO}/entry_points.txt": b"[console_scripts]\ndemo-run = demo.cli:App.main\n",
    }
    with Wheel(make_wheel(tmp_path, files), FILENAME) as wheel:
        installed = {file.path: file for file in installation(wheel, "3.11")}
        content = {path: b"".join(file.chunks()) for path, file in installed.items()}
    site = "/opt/venv/lib/python3.11/site-packages"
    assert content["/opt/venv/bin/tool"] == b"#!/opt/venv/bin/python\nprint(1)\n"
    assert installed["/opt/venv/bin/tool"].executable
    assert content["/opt/venv/share/demo.txt"] == b"text"
    assert content["/opt/venv/include/site/python3.11/demo/demo.h"] == b"int x;"
    assert content[f"{site}/demo/lib.so"] == b"\x7fELF"
    assert b"from demo.cli import App" in content["/opt/venv/bin/demo-run"]
    assert b"sys.exit(App.main())" in content["/opt/venv/bin/demo-run"]
    record = content[f"{site}/{INFO}/RECORD"].decode()
    assert "../../../bin/demo-run,sha256=" in record
    assert sorted(record.splitlines()) == record.splitlines()


@pytest.mark.parametrize("name", ["pyvenv.cfg", "bin/python", "bin/python3.11", "lib64/x.so"])
def test_a_wheel_cannot_replace_the_environment(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, {**GOOD, f"demo-1.0.data/data/{name}": b"evil"})
    with Wheel(path, FILENAME) as wheel, pytest.raises(WheelError, match="part of the environment"):
        installation(wheel, "3.11")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_gives_an_error_or_the_same_files(tmp_path: Path, data: st.DataObject) -> None:
    path = make_wheel(tmp_path, GOOD)
    whole = open_all(path)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    try:
        found = open_all(path)
    except WheelError:
        return
    assert {name: found.get(name) for name in GOOD} == {name: whole[name] for name in GOOD}
