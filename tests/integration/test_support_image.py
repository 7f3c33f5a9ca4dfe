"""The parts of an image besides its stack, in a real engine: startup checks, users, pip, uv, images on top."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from imagegen.app.build import BuildOptions, build_image
from imagegen.compat.models import Models
from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.lock.model import Lock, LockedWheel
from imagegen.run.doctor.container import examine_container
from imagegen.spec.model import Cell, Declarations
from tests.support.container_shell import Shell
from tests.support.machines import Debian, committed
from tests.support.session import session_of
from tests.support.small_cell import locked_wheel, write_project
from tests.support.tiny_image import tiny_image
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.integration

BACKEND = """\
def get_requires_for_build_editable(*_):
    return []
def build_editable(directory, *_):
    import base64, hashlib, os, zipfile
    name = "light0-9.0-py3-none-any.whl"
    files = {"light0-edited.pth": os.getcwd() + "/src\\n",
        "light0-9.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: light0\\nVersion: 9.0\\n",
        "light0-9.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr("light0-9.0.dist-info/RECORD", "".join(f"{path},,\\n" for path in files))
    return name
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def wheel(directory: Path, name: str, version: str, requires: str = "") -> Path:
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {requires}\n" if requires else ""
    )
    info = f"{name}-{version}.dist-info"
    files = {f"{name}.py": f"VERSION = {version!r}\n".encode()}
    filename = f"{name}-{version}-py3-none-any.whl"
    return make_wheel(directory, files, filename=filename, info=info, metadata={"METADATA": metadata})


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels that a user may want on top."""
    directory = tmp_path_factory.mktemp("shelf")
    for name, version, requires in (
        *(("torch", "2.9", ""), ("numpy", "1.26.4", "")),
        *(("polite", "1.0", "torch>=2.0"), ("rude", "1.0", "numpy<2")),
    ):
        wheel(directory, name, version, requires)
    directory.chmod(0o755)
    return directory


@pytest.fixture(scope="module")
def shell(
    engine: Engine, debian: Debian, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    """An image with a real pip and a real uv, and a torch of this test's making."""
    root = tmp_path_factory.mktemp("support")
    small = write_project(root / "project", root / "links", debian)
    torch = locked_wheel("torch", wheel(root / "links", "torch", "2.13.0+cpu"))
    torch = replace(torch, version="2.13.0+cpu")
    numpy = replace(locked_wheel("numpy", wheel(root / "links", "numpy", "2.4.6")), version="2.4.6")
    real = committed("sb3-maskable-cpu-py311")
    pip = next(each for each in real.wheels if each.name == "pip")
    small = _with(small, torch, numpy, pip, real.uv)
    own = replace(settings, find_links=(*settings.find_links, str(root / "links")))
    cell = cast("Cell", SimpleNamespace(id=small.cell, declarations=Declarations()))
    built = build_image(session_of(debian.store, own), cell, small, engine, BuildOptions(test=False, audit=False))
    try:
        yield Shell(engine, built.tags[1])
    finally:
        for tag in built.tags:
            engine.client.api.remove_image(tag, force=True)


def _with(lock: Lock, *more: LockedWheel) -> Lock:
    wheels = {each.name: each for each in (*lock.wheels, *more)}
    return replace(lock, wheels=tuple(wheels[name] for name in sorted(wheels)))


def test_a_container_prints_its_startup_checks_and_the_streams_are_the_commands(shell: Shell) -> None:
    done = shell.run("sh", "-c", "cat; echo $$; exit 3", stdin="typed\n")
    assert (done.returncode, done.stdout) == (3, "typed\n1\n")
    first, *_ = done.stderr.splitlines()
    assert first == "imagegen: small-cpu-py311 (torch 2.13.0+cpu) on the CPU"
    assert "/dev/shm has 64 MiB" in done.stderr
    quiet = shell.run("echo", "out", options=["-e", "IMAGEGEN_PREFLIGHT=0"])
    assert (quiet.stdout, quiet.stderr) == ("out\n", "")
    large = shell.run("true", options=["--shm-size", "2g"])
    assert "/dev/shm" not in large.stderr


def test_what_is_wrong_with_a_container_is_said(shell: Shell) -> None:
    done = shell.run("true", options=["-e", "ARNOLD_WORKER_GPU=", "-e", "HOME=/", "-u", "12345:0", "--shm-size", "2g"])
    assert done.returncode == 0
    assert "ARNOLD_WORKER_GPU is set and empty" in done.stderr
    assert "HOME (/) cannot be written by user 12345" in done.stderr


def test_signals_and_missing_programs(shell: Shell) -> None:
    program = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True);"
    )
    name = f"imagegen-test-{secrets.token_hex(4)}"
    started = shell.docker("run", "-d", "--name", name, shell.ref, "python", "-c", program + "time.sleep(60)")
    assert started.returncode == 0, started.stderr
    try:
        wait_for(lambda: "up" in shell.docker("logs", name).stdout)
        shell.docker("stop", name)
        assert shell.docker("wait", name).stdout == "7\n"
    finally:
        shell.docker("rm", "-f", name)
    missing = shell.run("no-such-program")
    assert (missing.returncode, missing.stderr.splitlines()[-1]) == (
        127,
        "imagegen: no-such-program: No such file or directory",
    )


HOME_WORKS = """
import getpass, os, pathlib, tempfile
home = pathlib.Path.home()
for directory in (home, home / ".cache/huggingface", home / ".triton/cache", pathlib.Path("/workspace")):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "x").write_text("x")
print(os.getuid(), getpass.getuser(), home, tempfile.gettempdir())
"""


@pytest.mark.parametrize("user", ["0:0", "1000:1000", "12345:0"])
@pytest.mark.parametrize("read_only", [False, True])
def test_any_user_has_a_home_and_a_name(shell: Shell, user: str, read_only: bool) -> None:
    options = ["-u", user]
    if read_only:
        options += [
            "--read-only",
            *(word for path in ("/tmp", "/home/user", "/workspace") for word in ("--tmpfs", path)),
        ]
    said = shell.python(HOME_WORKS, *options)
    assert said.split() == [user.partition(":")[0], "user", "/home/user", "/tmp"]


def test_they_are_there_without_the_entry_point(shell: Shell) -> None:
    """Like `docker exec`, and `command` in Kubernetes."""
    done = shell.docker("run", "--rm", "-u", "12345:0", "--entrypoint", "python", shell.ref, "-c", HOME_WORKS)
    assert (done.stdout.split()[:2], done.stderr) == (["12345", "user"], "")


def test_a_cache_that_is_mounted_where_roots_is_elsewhere_is_found(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("weights")
    tmp_path.chmod(0o755)
    mount = f"{tmp_path}:/root/.cache/huggingface:ro"
    program = "import pathlib; print((pathlib.Path.home() / '.cache/huggingface/model').read_text())"
    for user in ("0:0", "12345:0"):
        assert shell.python(program, "-u", user, "-v", mount) == "weights\n"


PIP = ["pip", "install", "--no-index", "--find-links", "/shelf", "--disable-pip-version-check"]
UV = ["uv", "pip", "install", "--no-index", "--find-links", "/shelf", "--offline"]


@pytest.mark.parametrize("installer", [PIP, UV], ids=["pip", "uv"])
def test_what_comes_on_top_cannot_move_the_stack(shell: Shell, links: Path, installer: list[str]) -> None:
    options = ["-v", f"{links}:/shelf:ro"]
    refused = shell.run(*installer, "torch==2.9", options=options)
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr  # pip tells the reason on the one, the end of it on the other
    assert "2.13.0+cpu" in said
    assert "torch==2.9" in said
    drags = shell.run(*installer, "rude", options=options)
    assert drags.returncode != 0
    assert "numpy" in drags.stdout + drags.stderr
    assert "2.4.6" in drags.stdout + drags.stderr
    script = f"{shlex.join(installer)} polite && python -c 'import polite, torch; print(torch.VERSION)'"
    welcome = shell.run("sh", "-c", script, options=options)
    assert welcome.stdout.splitlines()[-1:] == ["2.13.0+cpu"], welcome.stderr


def test_an_image_on_top_with_an_editable_package(
    shell: Shell, links: Path, tmp_path: Path, engine: Engine, request: pytest.FixtureRequest
) -> None:
    """The steps of docs/how-to/build-on-top.md: a wheel of one's own, and an editable package of the stack."""
    (tmp_path / "shelf").mkdir()
    for file in links.iterdir():
        (tmp_path / "shelf" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "light0" / "src").mkdir(parents=True)
    (tmp_path / "light0" / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "light0" / "backend.py").write_text(BACKEND)
    (tmp_path / "light0" / "src" / "mine.py").write_text("print('mine')\n")
    pip = "pip install --no-index --find-links /shelf"
    (tmp_path / "Dockerfile").write_text(
        f"FROM {shell.ref}\n"
        "COPY shelf /shelf\n"
        f"RUN {pip} polite\n"
        "COPY light0 /src/light0\n"
        f"RUN ! {pip} --no-build-isolation -e /src/light0\n"
        """RUN sed -i '/^light0==/d' "$PIP_CONSTRAINT"\n"""
        f"RUN {pip} --no-build-isolation -e /src/light0 && pip check\n"
    )
    tag = f"imagegen-test-{secrets.token_hex(4)}:1"
    engine.buildx(["build", "--load", "-t", tag, "."], tmp_path)
    request.addfinalizer(lambda: engine.client.api.remove_image(tag, force=True))
    own = replace(shell, ref=tag)
    done = own.run("python", "-c", "import importlib.metadata as m, mine, polite; print(m.version('light0'))")
    assert (done.returncode, done.stdout) == (0, "mine\n9.0\n"), done.stderr
    assert done.stderr.startswith("imagegen: small-cpu-py311")


@pytest.fixture
def started(shell: Shell) -> Iterator[Callable[..., str]]:
    """Containers that outlive a command, by name; removed in the end."""
    names = []

    def start(ref: str, *arguments: str) -> str:
        names.append(f"imagegen-test-{secrets.token_hex(4)}")
        done = shell.docker("run", "-d", "--name", names[-1], *arguments[:-1], ref, *shlex.split(arguments[-1]))
        assert done.returncode == 0, done.stderr
        return names[-1]

    yield start
    for name in names:
        shell.docker("rm", "-f", name)


def test_the_doctor_looks_into_a_container_and_leaves_it_running(
    shell: Shell, started: Callable[..., str], engine: Engine
) -> None:
    command = "sh -c 'echo Expandable segments are not compatible with memory pool.; exec sleep 60'"
    name = started(shell.ref, "-e", "WORLD_SIZE=", "-u", "12345:0", command)
    wait_for(lambda: "memory pool" in shell.docker("logs", name).stdout)
    found = examine_container(engine, name, Models(""))
    assert found.cell == "small-cpu-py311"
    assert {(each.check, each.severity) for each in found.findings} == {
        ("empty", "warning"),
        ("log", "error"),
        ("shm", "warning"),
    }
    assert found.machine["uid"] == 12345
    assert engine.inspect_container(name).running


def test_the_doctor_says_how_a_container_ended(shell: Shell, started: Callable[..., str], engine: Engine) -> None:
    name = started(shell.ref, "python -c 'import ctypes; ctypes.string_at(0)'")
    shell.docker("wait", name)
    found = examine_container(engine, name, Models(""))
    assert not found.passed
    assert "killed by SIGSEGV (exit code 139)" in found.text()
    with pytest.raises(EngineError, match="no container called no-such"):
        examine_container(engine, "no-such", Models(""))


def test_a_container_of_another_image_is_looked_at_from_outside(
    shell: Shell, started: Callable[..., str], engine: Engine, busybox: bytes, tmp_path: Path
) -> None:
    store, tag = Store(tmp_path / "store"), f"imagegen-test-{secrets.token_hex(4)}:1"
    engine.load(store, tiny_image(store, busybox, {"empty": b""}), tag)
    try:
        found = examine_container(engine, started(tag, "sleep 60"), Models(""))
        assert (found.cell, found.passed, [row.name for row in found.rows]) == (None, True, ["ending", "log"])
        assert found.rows[0].status == "note"  # nothing in the image could examine it
    finally:
        engine.client.api.remove_image(tag, force=True)


def test_the_doctor_in_a_container(shell: Shell) -> None:
    done = shell.run("/opt/imagegen/doctor", options=["-e", "IMAGEGEN_PREFLIGHT=0"])
    assert done.returncode == 0
    assert "warning  shm" in done.stdout
    assert done.stderr == ""
