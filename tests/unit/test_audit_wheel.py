"""Wheels are hostile until proven otherwise."""

from __future__ import annotations

import base64
import hashlib
import stat
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagegen.audit.readers.installation import MAX_SOURCE, compiles, installation
from imagegen.audit.readers.wheel import Wheel
from imagegen.core import zip_archive
from imagegen.core.errors import WheelError
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.timing import within
from tests.support.wheels import FILENAME, INFO, METADATA, make_wheel, record_line

GOOD: Mapping[str, bytes] = {"demo/__init__.py": b"x = 1\n", "demo/data.bin": bytes(range(256)) * 50}


def open_all(path: Path) -> dict[str, bytes]:
    with Wheel(path, FILENAME) as wheel:
        return {name: wheel.read(name) for name in wheel.members}


def test_every_byte_of_a_good_wheel_comes_out(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, GOOD)
    assert {name: data for name, data in open_all(path).items() if name in GOOD} == GOOD


WHOLE = "refused: names the wheel and the member"


@pytest.mark.fault("Wheels", "absolute, escaping, Windows' and control-character member names", WHOLE)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/etc/passwd", "leaves the wheel's tree"),
        ("../evil.py", "leaves the wheel's tree"),
        ("demo/../../evil.py", "leaves the wheel's tree"),
        ("demo//x.py", "leaves the wheel's tree"),
        ("demo/./x.py", "leaves the wheel's tree"),
        ("../evil/", "leaves the wheel's tree"),
        ("demo\\x.py", "not portable"),
        ("C:evil.py", "not portable"),
        ("demo/new\nline.py", "not portable"),
        ("demo/\x7f.py", "not portable"),
    ],
)
def test_hostile_names_are_refused_with_the_member(tmp_path: Path, name: str, said: str) -> None:
    path = make_wheel(tmp_path, {**GOOD, name: b""})
    with pytest.raises(WheelError, match=said) as caught:
        open_all(path)
    assert FILENAME in str(caught.value)
    assert name.rstrip("/").rsplit("/", 1)[-1].rsplit("\\", 1)[-1].split("\n")[0].strip("\x7f") in str(caught.value)


@pytest.mark.fault("Wheels", "member names too long for a file system", WHOLE)
@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "/".join(["x" * 100] * 11)])
def test_names_that_no_file_system_holds_are_refused(tmp_path: Path, name: str, golden: Golden) -> None:
    with pytest.raises(WheelError) as caught:
        open_all(make_wheel(tmp_path, {**GOOD, name: b""}))
    golden.check(caught.value)


@pytest.mark.fault("Wheels", "member names that differ only in case or Unicode form", "kept apart, as on any Linux")
def test_names_that_differ_in_case_are_two_files(tmp_path: Path) -> None:
    files = {"demo/xt_MARK.h": b"1", "demo/xt_mark.h": b"2", "demo/\u00e9": b"3", "demo/e\u0301": b"4"}
    found = open_all(make_wheel(tmp_path, files))
    assert {name: found[name] for name in files} == files


def add_kind(kind: int) -> Callable[[zipfile.ZipFile], None]:
    def add(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo("demo/odd")
        info.external_attr = (kind | 0o777) << 16
        archive.writestr(info, "/etc/passwd")

    return add


def add_duplicate(archive: zipfile.ZipFile) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("demo/__init__.py", "y = 2\n")


def add_unrecorded(archive: zipfile.ZipFile) -> None:
    archive.writestr("demo/extra.py", "y = 2\n")


def add_bomb(archive: zipfile.ZipFile) -> None:
    # 60 MB of zeros, written once, of which the directory says that they are 1.2 GB.
    archive.writestr("demo/zeros", bytes(60_000_000), zipfile.ZIP_DEFLATED)
    archive.filelist[-1].file_size *= 20


def add_lzma(archive: zipfile.ZipFile) -> None:
    archive.writestr("demo/odd", b"data", zipfile.ZIP_LZMA)


def add_encrypted(archive: zipfile.ZipFile) -> None:
    archive.filelist[0].flag_bits |= 1


def add_file_that_is_a_directory(archive: zipfile.ZipFile) -> None:
    archive.writestr("demo/data.bin/x", b"")


def add_directory_with_data(archive: zipfile.ZipFile) -> None:
    archive.writestr("demo/odd/", b"data")


@pytest.mark.parametrize(
    ("add", "said"),
    [
        *(
            pytest.param(
                add_kind(kind),
                "regular files only",
                marks=pytest.mark.fault("Wheels", "links, devices, pipes and sockets as members", WHOLE),
                id=f"kind-{kind:o}",
            )
            for kind in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFDIR)
        ),
        pytest.param(
            add_duplicate,
            "two members have one name",
            marks=pytest.mark.fault("Wheels", "two members of one name", WHOLE),
        ),
        pytest.param(
            add_unrecorded,
            "RECORD lacks a member",
            marks=pytest.mark.fault("Wheels", "a member that RECORD lacks", WHOLE),
        ),
        pytest.param(
            add_bomb,
            "unpacks to more than it can hold",
            marks=pytest.mark.fault("Wheels", "a bomb: more than 1 GiB and more than 50 times the wheel", WHOLE),
        ),
        pytest.param(
            add_lzma,
            "another way than DEFLATE",
            marks=pytest.mark.fault("Wheels", "encrypted members and other compressions than DEFLATE", WHOLE),
        ),
        pytest.param(
            add_encrypted,
            "encrypted or compressed",
            marks=pytest.mark.fault("Wheels", "encrypted members and other compressions than DEFLATE", WHOLE),
        ),
        pytest.param(
            add_file_that_is_a_directory,
            "a file and a directory",
            marks=pytest.mark.fault("Wheels", "a file that is another member's directory", WHOLE),
        ),
        pytest.param(
            add_directory_with_data,
            "cannot hold data",
            marks=pytest.mark.fault("Wheels", "a directory with data in it", WHOLE),
        ),
    ],
)
def test_hostile_members_are_refused(tmp_path: Path, add: Callable[[zipfile.ZipFile], None], said: str) -> None:
    path = make_wheel(tmp_path, GOOD, add)
    with pytest.raises(WheelError, match=said) as caught:
        open_all(path)
    assert FILENAME in str(caught.value)


@pytest.mark.fault("Wheels", "more members than any wheel has", "refused before the directory is read into memory")
def test_a_bomb_of_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(zip_archive, "MAX_MEMBERS", 20)
    deep = {"/".join("abcdefghijklmnopqrs") + "/x": b""}  # 19 directories that are only implied
    for files in ({f"demo/{number}": b"" for number in range(20)}, deep):
        with pytest.raises(WheelError) as caught:
            open_all(make_wheel(tmp_path, files))
        golden.check(caught.value)


@pytest.mark.fault("Wheels", "a member that inflates a thousandfold", "read in pieces of 1 MiB, whatever its size")
def test_a_member_of_zeros_never_lies_in_memory(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"demo/zeros": bytes(100 << 20)})
    with Wheel(path, FILENAME) as wheel:
        tracemalloc.start()
        try:
            size = sum(len(chunk) for chunk in wheel.chunks("demo/zeros"))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert size == 100 << 20
    assert peak < 8 << 20


@pytest.mark.fault("Wheels", "RECORD with another hash, size or two hashes for a member", WHOLE)
def test_record_that_lies_is_refused(tmp_path: Path, golden: Golden) -> None:
    wrong = base64.urlsafe_b64encode(hashlib.sha256(b"other").digest()).rstrip(b"=").decode()
    record = f"demo/__init__.py,sha256={wrong},6\n"
    path = make_wheel(tmp_path, {"demo/__init__.py": b"x = 1\n"}, record=record)
    with pytest.raises(WheelError) as caught:
        open_all(path)
    golden.check(caught.value)
    assert "demo/__init__.py" in str(caught.value)


@pytest.mark.fault("Wheels", "RECORD with another hash, size or two hashes for a member", WHOLE)
@pytest.mark.parametrize("row", ["demo/__init__.py,{},7", "demo/__init__.py,{},6\ndemo/__init__.py,sha256=AAAA,6"])
def test_record_that_contradicts_the_zip_file_or_itself_is_refused(tmp_path: Path, row: str) -> None:
    right = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    path = make_wheel(tmp_path, {"demo/__init__.py": b"x = 1\n"}, record=row.format(right) + "\n")
    with pytest.raises(WheelError, match=r"what RECORD says|twice"):
        open_all(path)


@pytest.mark.fault("Wheels", "RECORD without a hash, or with md5 or sha1", WHOLE)
@pytest.mark.parametrize("algorithm", ["", "md5", "sha1"])
def test_hashes_that_prove_nothing_are_refused(tmp_path: Path, algorithm: str) -> None:
    hash_ = algorithm and f"{algorithm}={hashlib.new(algorithm, b'x').hexdigest()}"
    with pytest.raises(WheelError, match="gives no sha256"):
        open_all(make_wheel(tmp_path, {"demo/x": b"x"}, record=f"demo/x,{hash_},1\n"))


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
@pytest.mark.parametrize("encode", [bytes.hex, lambda digest: base64.urlsafe_b64encode(digest).rstrip(b"=").decode()])
def test_longer_hashes_and_hex_are_verified(tmp_path: Path, algorithm: str, encode: Callable[[bytes], str]) -> None:
    for data, said in ((b"x", None), (b"y", "what RECORD says")):
        row = f"demo/x,{algorithm}={encode(hashlib.new(algorithm, b'x').digest())},1\n"
        path = make_wheel(tmp_path, {"demo/x": data}, record=row)
        if said is None:
            assert open_all(path)["demo/x"] == data
            with Wheel(path, FILENAME) as wheel:
                assert wheel.members["demo/x"].sha256 == hashlib.sha256(data).hexdigest()
        else:
            with pytest.raises(WheelError, match=said):
                open_all(path)


@pytest.mark.fault("Wheels", "RECORD that lies, as a sourced rule says of this wheel", "kept: RECORD is written anew")
def test_a_rule_may_say_that_a_record_is_wrong(tmp_path: Path) -> None:
    record = "demo/__init__.py,sha256=AAAA,7\n"
    path = make_wheel(tmp_path, {"demo/__init__.py": b"x = 1\n"}, record=record)
    with pytest.raises(WheelError, match=r"`record_exceptions:` in the matrix"):
        open_all(path)
    digest = hashlib.sha256(b"x = 1\n").digest()
    with Wheel(path, FILENAME, ignore_record=True) as wheel:
        assert wheel.members["demo/__init__.py"].sha256 == digest.hex()
        assert wheel.read("demo/__init__.py") == b"x = 1\n"
        files = {file.path.rpartition("/")[2]: b"".join(file.chunks()) for file in installation(wheel, "3.11")}
    assert base64.urlsafe_b64encode(digest).rstrip(b"=") in files["RECORD"]
    path = make_wheel(tmp_path, {"demo/__init__.py": b"x = 1\n"}, add_unrecorded)
    with pytest.raises(WheelError, match="RECORD lacks a member"):
        Wheel(path, FILENAME, ignore_record=True)


@pytest.mark.fault("Wheels", "RECORD with a member that the wheel lacks", WHOLE)
def test_record_that_names_what_is_not_there_is_refused(tmp_path: Path, golden: Golden) -> None:
    path = make_wheel(tmp_path, GOOD, extra_record=record_line("demo/gone.py", b""))
    with pytest.raises(WheelError) as caught:
        open_all(path)
    golden.check(caught.value)


@pytest.mark.fault("Wheels", "name or version in the metadata unlike the file name's", WHOLE)
@pytest.mark.parametrize("info", ["other-1.0.dist-info", "demo-1.1.dist-info", "demo-evil.dist-info", "demo.dist-info"])
def test_a_dist_info_of_another_release_is_refused(tmp_path: Path, info: str) -> None:
    with pytest.raises(WheelError, match="another release") as caught:
        open_all(make_wheel(tmp_path, GOOD, info=info))
    assert info in str(caught.value)


@pytest.mark.fault("Wheels", "name or version in the metadata unlike the file name's", WHOLE)
@pytest.mark.parametrize(
    "text", ["Name: other\nVersion: 1.0\n", "Name: demo\nVersion: 1.1\n", "Name: demo\n", "\nbody\n"]
)
def test_metadata_of_another_release_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(WheelError, match="another release") as caught:
        open_all(make_wheel(tmp_path, GOOD, metadata={"METADATA": text}))
    assert "METADATA" in str(caught.value)


def test_a_build_may_add_its_label_to_the_file_name_alone(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, GOOD, filename="demo-1.0+cpu-py3-none-any.whl", metadata={"METADATA": METADATA})
    with Wheel(path, path.name) as wheel:
        assert wheel.version == "1.0+cpu"


@pytest.mark.fault("Wheels", "a wheel of a future format", WHOLE)
@pytest.mark.parametrize("text", ["Wheel-Version: 2.0\n", "Root-Is-Purelib: true\n", ""])
def test_a_wheel_of_another_format_is_refused(tmp_path: Path, text: str, golden: Golden) -> None:
    with pytest.raises(WheelError) as caught:
        open_all(make_wheel(tmp_path, GOOD, metadata={"WHEEL": text}))
    golden.check(caught.value)


@pytest.mark.fault("Wheels", "entry points with shell metacharacters, paths or code", "refused: names the line")
def test_entry_points_cannot_smuggle_code_into_scripts(tmp_path: Path) -> None:
    for line in ("x = os;system('id'):main", "x = demo:main()", "a/../../b = demo:main", "x; rm -rf / = demo:main"):
        path = make_wheel(tmp_path, {**GOOD, f"{INFO}/entry_points.txt": f"[console_scripts]\n{line}\n".encode()})
        with Wheel(path, FILENAME) as wheel, pytest.raises(WheelError):
            installation(wheel, "3.11")


SCRIPTS = b"[console_scripts]\n"
LONG = 4 << 20  # bytes; `Wheel.read` refuses longer members
LONG_ENTRY_POINTS = {
    "spaces without an equals sign": SCRIPTS + b"a" + b" " * (LONG - 30) + b"b\n",
    "many lines of spaces": SCRIPTS + (b"a" + b" " * 900 + b"b\n") * (LONG // 1000),
    "spaces before the colon": SCRIPTS + b"a = m" + b" " * (LONG - 30) + b"f\n",
    "dots": SCRIPTS + b"a = " + b"m." * (LONG // 2 - 30) + b"\n",
    "brackets": SCRIPTS + b"[" * (LONG - 30),
    "an endless continuation": SCRIPTS + b"a = m:f" + b"\n x" * (LONG // 4),
}


@pytest.mark.fault("Wheels", "entry points of 4 MB on which a pattern would backtrack", "refused within seconds")
@pytest.mark.parametrize("name", LONG_ENTRY_POINTS)
def test_long_entry_points_are_refused_within_bounded_time(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, {**GOOD, f"{INFO}/entry_points.txt": LONG_ENTRY_POINTS[name]})
    with Wheel(path, FILENAME) as wheel, within(20), pytest.raises(WheelError) as caught:
        installation(wheel, "3.11")
    assert str(caught.value.where).startswith(f"{FILENAME}: entry_points.txt:")
    assert len(str(caught.value)) < 2000


def scripts_of(tmp_path: Path, entry_points: bytes) -> set[str]:
    """The launchers that a wheel with these entry points installs."""
    with Wheel(make_wheel(tmp_path, {f"{INFO}/entry_points.txt": entry_points}), FILENAME) as wheel:
        return {
            file.path.removeprefix("/opt/venv/bin/") for file in installation(wheel, "3.11") if "/bin/" in file.path
        }


@pytest.mark.parametrize(
    ("entry_points", "scripts"),
    [
        (b"", set()),
        (b"\n# comment\n; comment\n[console_scripts]\r\na=m:f\r\nb = m:f [extra]\n", {"a", "b"}),
        (b"[console_scripts]\na = m:f\n[gui_scripts]\nb = m:f\n[console_scripts]\nc = m:f\n", {"a", "b", "c"}),
        (b"[console_scripts]\n  a = m:f\n  b = m:f\n", {"a", "b"}),
        (b"[DEFAULT]\na = m:f\n[console_scripts]\nb = m:f\n", {"b"}),
        (b"[other.group]\na\n  b c\n= d\n[console_scripts]\nb = m:f\n", {"b"}),
        (b"[console_scripts]\nname = m:f\nName = m:f\nname = m:g\n", {"name", "Name"}),
    ],
)
def test_entry_points_have_the_grammar_of_their_specification(
    tmp_path: Path, entry_points: bytes, scripts: set[str]
) -> None:
    assert scripts_of(tmp_path, entry_points) == scripts


@pytest.mark.parametrize(
    "entry_points", [b"a = m:f\n", b"[console_scripts\n", b"[console_scripts] x\n", b"[console_scripts]\na\n", b"\xff"]
)
def test_entry_points_of_another_form_are_refused(tmp_path: Path, entry_points: bytes) -> None:
    with pytest.raises(WheelError) as caught:
        scripts_of(tmp_path, entry_points)
    assert "entry_points.txt" in str(caught.value.where)


NAMES = st.text("aB-", min_size=1, max_size=3).filter(lambda name: name[0] != "-")
GROUPS = st.dictionaries(st.sampled_from(["console_scripts", "other"]), st.lists(NAMES, max_size=3))


@given(groups=GROUPS, spaces=st.sampled_from(["", " ", "\t "]), end=st.sampled_from(["\n", "\r\n", "\n\n"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_entry_points_are_read_as_the_standard_library_reads_them(
    tmp_path: Path, groups: dict[str, list[str]], spaces: str, end: str
) -> None:
    lines = [
        line for group, names in groups.items() for line in (f"[{group}]", *(f"{n}{spaces}={spaces}m:f" for n in names))
    ]
    text = end.join(lines).encode()
    installed = tmp_path / INFO
    installed.mkdir(exist_ok=True)
    (installed / "entry_points.txt").write_bytes(text)
    standard = Distribution.at(installed).entry_points.select(group="console_scripts")
    assert scripts_of(tmp_path, text) == {point.name for point in standard}


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


ENVIRONMENT = ["pyvenv.cfg", "bin/python", "bin/python3.11", "bin/python/x", "bin", "lib", "lib64", "lib/python3.11"]


@pytest.mark.fault(
    "Wheels", "data, scripts or entry points that replace the environment's python or directories", WHOLE
)
@pytest.mark.parametrize("name", ENVIRONMENT)
def test_a_wheel_cannot_replace_the_environment(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, {**GOOD, f"demo-1.0.data/data/{name}": b"evil"})
    with Wheel(path, FILENAME) as wheel, raises("wheel-replaces-environment"):
        installation(wheel, "3.11")


@pytest.mark.fault(
    "Wheels", "data, scripts or entry points that replace the environment's python or directories", WHOLE
)
@pytest.mark.parametrize(
    "files",
    [
        {"demo-1.0.data/scripts/python": b"#!/bin/sh\n"},
        {"demo-1.0.data/scripts/python3": b"#!python\n"},
        {f"{INFO}/entry_points.txt": b"[console_scripts]\npython = demo:main\n"},
    ],
)
def test_a_script_cannot_replace_the_interpreter(tmp_path: Path, files: Mapping[str, bytes]) -> None:
    with (
        Wheel(make_wheel(tmp_path, {**GOOD, **files}), FILENAME) as wheel,
        raises("wheel-replaces-environment"),
    ):
        installation(wheel, "3.11")


@pytest.mark.fault("Wheels", "data of an unknown scheme, or two files for one installed path", WHOLE)
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"demo-1.0.data/etc/x": b""}, "unknown scheme"),
        ({"demo-1.0.data/x": b""}, "unknown scheme"),
        ({"demo-1.0.data/purelib/demo/data.bin": b""}, "installed at one path"),
        ({"demo-1.0.data/platlib/demo/data.bin/x": b""}, "a file and a directory"),
        ({"demo-1.0.data/scripts/x": b"", f"{INFO}/entry_points.txt": b"[gui_scripts]\nx = d:m\n"}, "at one path"),
    ],
)
def test_data_that_clash_when_installed_are_refused(tmp_path: Path, files: Mapping[str, bytes], said: str) -> None:
    path = make_wheel(tmp_path, {**GOOD, **files})
    with Wheel(path, FILENAME) as wheel, pytest.raises(WheelError, match=said):
        installation(wheel, "3.11")


def _refused(tmp_path: Path, *members: str) -> str:
    """Refuse a wheel with these members besides its own; return what `where` names behind the wheel."""
    path = make_wheel(tmp_path, {**GOOD, **dict.fromkeys(members, b"")})
    with Wheel(path, FILENAME) as wheel, pytest.raises(WheelError) as caught:
        installation(wheel, "3.11")
    return str(caught.value.where).removeprefix(f"{FILENAME}: ")


_SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.mark.fault("Wheels", "`__pycache__` is a file, or the path of a source's byte-code a directory", WHOLE)
@pytest.mark.parametrize("name", ["demo/__pycache__", "demo/__pycache__/__init__.cpython-311.pyc/y"])
@pytest.mark.parametrize("scheme", ["", "demo-1.0.data/platlib/"])
def test_nothing_lies_where_byte_code_goes(tmp_path: Path, scheme: str, name: str) -> None:
    assert _refused(tmp_path, scheme + name) == f"{_SITE}/{name.removesuffix('/y')}"


def test_byte_code_of_another_python_and_a_pycache_without_sources_are_files(tmp_path: Path) -> None:
    names = ["demo/__pycache__/__init__.cpython-310.pyc", "demo/data/__pycache__"]
    with Wheel(make_wheel(tmp_path, {**GOOD, **dict.fromkeys(names, b"")}), FILENAME) as wheel:
        paths = {file.path for file in installation(wheel, "3.11")}
    assert {f"{_SITE}/{name}" for name in names} <= paths


@pytest.mark.fault("Wheels", "metadata that let another distribution, or another release, seem to be installed", WHOLE)
@pytest.mark.parametrize(
    "name",
    [
        "demo-1.0.data/purelib/torch-99.0.dist-info/METADATA",
        "demo-1.0.data/platlib/torch-99.0.dist-info/RECORD",
        "demo-1.0.data/data/lib/python3.11/site-packages/torch-99.0.dist-info/METADATA",
        "demo-1.0.data/data/lib64/python3.11/site-packages/torch-99.0.dist-info/METADATA",
        "demo-1.0.data/purelib/demo-2.0.dist-info/METADATA",
        "demo-1.0.data/purelib/Torch-99.0.DIST-INFO/METADATA",
        "demo-1.0.data/purelib/torch-99.egg-info",
        "torch-99.0-py3.11.egg-info/PKG-INFO",
        "torch.EGG-INFO/PKG-INFO",
    ],
)
def test_a_wheel_brings_the_metadata_of_its_own_release_alone(tmp_path: Path, name: str) -> None:
    assert _refused(tmp_path, name).casefold().startswith(f"{_SITE}/".casefold())


@pytest.mark.parametrize(
    "name",
    [
        "demo/_vendor/torch-99.0.dist-info/METADATA",  # as setuptools has them: no path on which metadata is searched
        "demo.egg-info/PKG-INFO",
        "demo-1.0.data/purelib/demo-1.0.dist-info/licenses/LICENSE",
        "demo-1.0.data/data/share/torch-99.0.dist-info/METADATA",
    ],
)
def test_metadata_of_its_own_or_in_other_folders_are_files(tmp_path: Path, name: str) -> None:
    with Wheel(make_wheel(tmp_path, {**GOOD, name: b""}), FILENAME) as wheel:
        assert any(file.path.endswith(name.rpartition("/")[2]) for file in installation(wheel, "3.11"))


@pytest.mark.fault("Wheels", "a .data directory of another spelling or version than the wheel's own", WHOLE)
@pytest.mark.parametrize("data", ["other-1.0.data", "Demo-1.0.data", "demo-1.data", "demo-1.0.0.data", "demo.data"])
@pytest.mark.parametrize("rest", ["/scripts/x", "/x", ""])
def test_a_wheel_has_one_data_directory_of_its_own_name(tmp_path: Path, data: str, rest: str) -> None:
    assert _refused(tmp_path, data + rest) == data + rest


def test_lib64_is_lib_and_pth_files_are_files(tmp_path: Path) -> None:
    files = {**GOOD, "demo-1.0.data/data/lib64/x.so": b"1", "demo.pth": b"import demo\n"}
    with Wheel(make_wheel(tmp_path, files), FILENAME) as wheel:
        paths = {file.path for file in installation(wheel, "3.11")}
    assert {"/opt/venv/lib/x.so", "/opt/venv/lib/python3.11/site-packages/demo.pth"} <= paths


@pytest.mark.fault("Wheels", "a source of megabytes, or whose byte-code's name is too long", "kept, without byte-code")
def test_what_cannot_have_byte_code_has_none(tmp_path: Path) -> None:
    files = {"a.py": b"", "long.py": bytes(MAX_SOURCE + 1), f"{'x' * 240}.py": b"", "demo-1.0.data/scripts/s.py": b""}
    with Wheel(make_wheel(tmp_path, files), FILENAME) as wheel:
        found = [file.path for file in installation(wheel, "3.11") if compiles(file, "3.11")]
    assert found == ["/opt/venv/lib/python3.11/site-packages/a.py"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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
