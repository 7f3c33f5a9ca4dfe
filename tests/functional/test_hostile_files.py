"""Untrusted matrices and locks: malformed files of every kind, and edited locks."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagegen import lock
from imagegen import spec as matrix
from imagegen.core import data
from imagegen.core.data import shipped
from imagegen.core.errors import LockError, MatrixErrors
from imagegen.lock import contradictions, stale
from imagegen.lock.file import LockErrors, loads
from imagegen.lock.model import Lock
from imagegen.spec import Cell
from imagegen.spec.model import EnvVar
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.matrix_samples import SMALL, complaint
from tests.support.project import CELL, Project

FILE = "refused with file, line and column where there are any, and why"


def no_file(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 << 30)


def binary(path: Path) -> None:
    path.write_bytes(b"a: \xff\xfe\n")


KINDS: list[tuple[Callable[[Path], None], str]] = [
    (no_file, "not a regular file"),
    (endless, "not a regular file|outside of the project"),
    (loop, "symbolic links"),
    (huge, "longer than 16? MiB"),
    (binary, "not UTF-8"),
]


@pytest.mark.fault("Matrices, rules, locks", "a pipe, a device, a loop of links, 5 GiB, bytes that are no UTF-8", FILE)
@pytest.mark.parametrize(("make_file", "why"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
def test_files_that_are_none(make_file: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    make_file(tmp_path / "x.yaml")
    with pytest.raises(MatrixErrors, match=why) as caught:
        matrix.load([tmp_path])
    assert f"{tmp_path}/x.yaml" in str(caught.value)
    with pytest.raises(LockError, match=why) as complaints:
        lock.read(tmp_path / "x.yaml")
    assert f"{tmp_path}/x.yaml" in str(complaints.value)


SECRET = "root:$6$salt$hash:1::::::"
LINKED = {  # link -> the commands that read it, and their exit code
    "matrices/x.yaml": (["list"], 65),
    "matrices/metadata/demo.json": (["why", "demo"], 65),
    "wheels/x.yaml": (["list"], 65),
    "wheels/catalogue/x.yaml": (["lock", "demo"], 65),
    "wheels/x.patch": (["list"], 65),
    "sources": (["list"], 65),
    "publish.yaml": (["publish", "demo", "--to", "127.0.0.1:1/x", "--dry-run"], 65),
    f"locks/{CELL}.toml": (["show", "demo"], 67),
    "locks/CHANGES.md": (["report", "demo", "--output", "report"], 0),
}
PATCHED = """\
components:
  my-k: {description: Ours., compiled: true}
recipes:
  my-k:
    releases: {"1.0": {path: %s, patches: [{file: x.patch, sha256: "%s", because: Tests.}]}}
    modules: [k]
    source: Tests.
"""


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a link that leads out of the project, to a file of the machine",
    "refused: nothing of it is shown",
)
@pytest.mark.parametrize("link", LINKED)
def test_a_link_out_of_the_project_is_not_followed(link: str, tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    target, path = tmp_path / "secret", project.root / link
    target.write_text(f"{SECRET}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    if link in ("wheels/x.patch", "sources"):
        (project.root / "wheels").mkdir(exist_ok=True)
        (project.root / "wheels/x.patch").write_text("") if link == "sources" else None
        (project.root / "wheels/k.yaml").write_text(PATCHED % ("sources", hashlib.sha256(b"").hexdigest()))
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    arguments, code = LINKED[link]
    done = project.call(*arguments)
    assert done.returncode == code, done.stderr
    assert data.OUTSIDE in done.stderr
    shown = done.stdout + done.stderr + "".join(each.read_text() for each in project.root.glob("report/**/*.html"))
    assert SECRET[:8] not in shown


def test_a_link_within_the_project_is_followed(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    demo = project.root / "matrices/demo.yaml"
    demo.symlink_to(demo.rename(project.root / "elsewhere.yaml"))
    assert "demo" in project.call("list", "demo").stdout


@pytest.mark.fault("Matrices, rules, locks", "a directory that cannot be read", "named: nothing in it is passed over")
@pytest.mark.parametrize("folder", ["matrices/mine", "locks"])
def test_a_closed_directory_is_named(folder: str) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own are closed to others
        root = Path(name)
        (root / folder).mkdir(parents=True)
        (root / "matrices").mkdir(exist_ok=True)
        (root / "matrices" / "x.yaml").write_text("images: {}\n")
        root.chmod(0o755)
        (root / folder).chmod(0)
        env = {**os.environ, "XDG_CACHE_HOME": f"{root}/cache", "PYTHONDONTWRITEBYTECODE": "1"}
        # As root, without the right to read what is closed.
        drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*drop, sys.executable, "-c", "from imagegen.cli import main; main()", "show", "cpu-grpo"],
            env=env, cwd=name, capture_output=True, text=True, check=False,
        )  # fmt: skip
        (root / folder).chmod(0o755)
    assert folder in done.stderr
    assert "ermission denied" in done.stderr
    assert done.returncode in {65, 67}


@pytest.mark.fault("Matrices, rules, locks", "YAML of every bad or surprising kind", FILE)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("images:\n\tx: {}\n", "0.yaml:2:1: this is not valid YAML"),
        ("a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "0.yaml:1:4: anchors and aliases are not used here"),
        ("images: {x: {<<: {base: d}}}\n", "0.yaml:1:14: a key must be a plain name"),
        ("? [a]\n: b\n", "0.yaml:1:3: a key must be a plain name"),
        ("images: {}\n---\nrules: {}\n", "0.yaml:2:1: a file holds one document"),
        ("images: !!python/object/apply:os.system [id]\n", "0.yaml:1:9: tags are not used here"),
        ("%TAG ! tag:evil,2000:\n---\nimages: !x {}\n", "0.yaml:3:9: tags are not used here"),
        ("%YAML 9.9\n---\n{}\n", "0.yaml:1:1: this is not valid YAML"),
        ("{" * 500, "nested deeper than 20 levels"),
        ("- " * 500, "nested deeper than 20 levels"),
        ('images: {"a\\0": {}}\n', "0.yaml:1:10: images.a\\x00: must match"),
        ("images: {}\n# \x00\n", "0.yaml:2: the file holds the control character"),
        ("images: {}\nimages: {}\n", '0.yaml:2:1: the key "images" is given twice'),
        ("images: {no: {}}\n", "0.yaml:1:10: the key no needs quotes"),
        ("images: {x: {base: 2026-11-20}}\n", "0.yaml:1:20: 2026-11-20 needs quotes"),
        ("images: {x: {base: 010}}\n", "0.yaml:1:20: 010 needs quotes"),
        ("images: {x: {base: 1:30}}\n", "0.yaml:1:20: 1:30 needs quotes"),
        ("images: {x: {base: 0x1f}}\n", "0.yaml:1:20: 0x1f needs quotes"),
        ("images: {x: {base: .inf}}\n", "0.yaml:1:20: .inf needs quotes"),
        ("images: {x: {base: ~}}\n", "0.yaml:1:20: base: is empty"),
        ("[]\n", "0.yaml:1:1: a matrix file is a mapping"),
        ("images: x\n", "0.yaml:1:9: images: "),
        ('images: {"\\e[2J": {}}\n', "images.\\x1b[2J: must match"),
    ],
)
def test_bad_yaml_is_reported_with_its_place(text: str, expected: str, tmp_path: Path) -> None:
    complaints = complaint(tmp_path, text)
    assert expected in complaints
    assert "\x1b" not in complaints


def test_a_byte_order_mark_and_windows_lines_do_no_harm(tmp_path: Path) -> None:
    assert complaint(tmp_path, "\ufeff" + SMALL.replace("\n", "\r\n")) == ""


TEXT = (shipped("locks") / "sb3-maskable-cpu-py311.toml").read_text()


@functools.cache
def cell() -> Cell:
    (found,) = matrix.load([shipped("matrices")]).select("sb3-maskable")
    return found


def test_the_shipped_locks_contradict_nothing() -> None:
    cells = {each.id: each for each in matrix.load([shipped("matrices"), shipped("wheels")]).cells()}
    files = sorted(shipped("locks").glob("*.toml"))
    assert len(files) >= 6
    for file in files:
        found = lock.read(file)
        assert (stale(found, cells[file.stem]), contradictions(found, cells[file.stem])) == ((), ())


def torch(locked: Lock, **more: Any) -> Lock:
    wheels = tuple(replace(wheel, **more) if wheel.name == "torch" else wheel for wheel in locked.wheels)
    return replace(locked, wheels=wheels)


def torch_file(locked: Lock, **more: Any) -> Lock:
    wheel = next(wheel for wheel in locked.wheels if wheel.name == "torch")
    return torch(locked, file=replace(wheel.file, **more))


def python(locked: Lock, **more: Any) -> Lock:
    return replace(locked, interpreter=replace(locked.interpreter, **more))


EDITS: dict[str, tuple[Callable[[Lock], Lock], str]] = {
    "another cell": (lambda it: replace(it, cell="cpu-grpo-cpu-py311"), "cell"),
    "another image": (lambda it: replace(it, image="cpu-grpo"), "image"),
    "another platform": (lambda it: replace(it, axes={**it.axes, "platform": "linux/arm64"}), "axes"),
    "another interpreter": (lambda it: python(it, path="/usr/bin/perl"), "interpreter.path"),
    "another suite": (lambda it: replace(it, base=replace(it.base, suite="trixie")), "base.suite"),
    "a variable more": (lambda it: replace(it, env=(EnvVar("LD_PRELOAD", "/x.so", "y"), *it.env)), "env"),
    "a variable less": (lambda it: replace(it, env=it.env[1:]), "env"),
    "a package less": (lambda it: replace(it, wheels=[w for w in it.wheels if w.name != "torch"]), "wheel torch"),
    "a version that the matrix excludes": (
        lambda it: torch_file(torch(it, version="2.12.0"), filename="torch-2.12.0-cp311-cp311-linux_x86_64.whl"),
        "wheel torch",
    ),
    "another index": (lambda it: torch_file(it, index="pypi"), "wheel torch"),
    "another reason": (lambda it: torch(it, because="Because."), "wheel torch"),
    "a wheel for Windows": (
        lambda it: torch_file(it, filename="torch-2.13.0+cpu-cp311-cp311-win_amd64.whl"),
        "torch-2.13.0+cpu-cp311-cp311-win_amd64.whl",
    ),
    "a wheel for another Python": (
        lambda it: torch_file(it, filename="torch-2.13.0+cpu-cp312-cp312-linux_x86_64.whl"),
        "cp312",
    ),
}


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a lock edited against its matrix: cell, image, platform, base, variables, pins, wheels",
    "refused: names what was edited",
)
@pytest.mark.parametrize("name", EDITS)
def test_what_the_matrix_decides_cannot_be_edited_in_a_lock(name: str) -> None:
    edit, named = EDITS[name]
    edited = loads(lock.dumps(edit(loads(TEXT))))  # as a file it is sound
    assert stale(edited, cell()) == ()
    (complaints,) = contradictions(edited, cell())
    assert named in complaints


def test_the_command_line_refuses_an_edited_lock_and_lock_mends_it(tmp_path: Path, golden: Golden) -> None:
    project = Project(tmp_path / "project")
    env = {"PIP_INDEX_URL": (project.root / "index").as_uri()}
    done = project.call("lock", "demo", "--json", env=env)
    complaints = {
        "cell": "demo-cpu-py311",
        "path": "locks/demo-cpu-py311.toml",
        "changed": True,
        "digest": None,
        "builds": [],
    }
    (locked,) = json.loads(done.stdout)
    assert [change["name"] for change in locked.pop("changes")] == ["demo"]
    assert locked == complaints
    good = lock.read(project.lock)
    lock.write(replace(python(good, path="/bin/evil"), env=(EnvVar("A", "b", "c"),)), project.lock)
    for arguments in (["build", "--output", "oci:x"], ["lock", "--check"]):
        done = project.call(arguments[0], "demo", *arguments[1:])
        assert done.returncode == 67, done.stderr
        golden.check(done.stderr)
        assert f"{project.lock.name}" in done.stderr
        assert "`imagegen lock demo-cpu-py311`" in done.stderr
    (listed,) = json.loads(project.call("list", "demo", "--json").stdout)
    golden.check(listed["state"])
    assert (listed["locked"], bool(listed["reason"])) == ("edited", True)
    assert project.call("lock", "demo", env=env).returncode == 0
    assert lock.read(project.lock) == good


@pytest.mark.fault(
    "Matrices, rules, locks", "a field of a lock edited to what it cannot hold", "refused with file and line"
)
@pytest.mark.parametrize(
    ("pattern", "new", "part"),
    [
        (r'sha256 = "[0-9a-f]{64}"', f'sha256 = "{"0" * 63}"', "base.debs[1].sha256"),
        (r'sha256 = "[0-9a-f]{64}"', 'sha256 = "../../../etc/passwd"', "base.debs[1].sha256"),
        (r"size = \d+", "size = -5", "greater than or equal to 0"),
        (r"size = \d+", f"size = {'9' * 400}", "less than"),
        (r"size = \d+", f"size = {'9' * 5000}", "characters"),
        (r"size = \d+", "size = 1e3", "valid integer"),
        (r'kind = "debian"', 'kind = "alpine"', "'debian'"),
        (r'name = "adduser"', 'name = "adduser-"', "base.debs[1].name"),
        (r'name = "adduser"', 'name = "--evil"', "base.debs[1].name"),
        (r'archive = "debian"', 'archive = "evil"', "debs name an unknown archive: evil"),
        (r'"debian/bookworm" = ', '"evil/bookworm" = ', "evil"),
        (r'path = "pool', 'path = "../pool', "base.debs[1].path"),
        (r'path = "pool', 'path = "/pool', "base.debs[1].path"),
        (r'path = "pool', 'path = "https://evil/pool', "base.debs[1].path"),
        (r'file = "([^"]+)"', r'file = "a/\1"', "uv.file"),
        (r'file = "([^"]+)"', r'file = "\1\\nx"', "uv.file"),
        (r'file = "([^"]+)-py3', f'file = "\\1-py3.{"a" * 300}', "uv.file"),
        (r'index = "pypi"', 'index = "https://evil"', "uv.index"),
        (r'name = "PYTHONFAULTHANDLER"', 'name = "VIRTUAL_ENV"', "env[1].name"),
        (r"(\[\[wheel\]\]\n(.+\n)+)", r"\1\n\1", "each once"),
        (r"diff-id = ", "diff-ids = ", "no such key"),
        (r"layer-format = 2", 'layer-format = "1"', "valid integer"),
        (r'digest = "sha256:', 'digest = "sha256:/', "record.digest"),
    ],
)
def test_a_field_holds_only_what_it_can(pattern: str, new: str, part: str) -> None:
    text, count = re.subn(pattern, new, TEXT, count=1)
    assert count == 1
    with pytest.raises(LockError) as caught:
        loads(text, "x.toml")
    assert part in str(caught.value)
    assert "x.toml:" in str(caught.value)


@pytest.mark.fault("Matrices, rules, locks", "a lock that breaks off", "refused with file and line")
@pytest.mark.parametrize("end", ["[record", 'x = "', "x = [1,", "x = '''", "x =", "x = {"])
def test_toml_that_breaks_off_has_a_line(end: str) -> None:
    with raises("lock-malformed", where="x.toml:3"):
        loads(f"version = 1\n\n{end}", "x.toml")


@pytest.mark.fault(
    "Matrices, rules, locks", "a stale lock, whichever input moved", "refused: names the inputs that moved"
)
@pytest.mark.parametrize("name", ["axes", "base", "image", "component torch", "index pytorch-cpu", "sdist x"])
def test_whatever_moved_is_named(name: str) -> None:
    locked = loads(TEXT)
    assert stale(replace(locked, inputs={**locked.inputs, name: "0" * 64}), cell()) == (name,)


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a lock made to keep its reader busy: a key of a million parts, ten thousand faults",
    "refused in seconds; a hundred errors are reported",
)
def test_a_lock_that_would_take_days_to_read() -> None:
    with raises("lock-malformed"):
        loads("version = 1\n" + ".".join("a" * 1_000_000) + " = 1\n")
    with pytest.raises(LockErrors) as caught:
        loads("version = 1\n" + "[[wheel]]\nname = 1\n" * 10_000)
    assert len(caught.value.errors) == 100
