"""`tools.engine up` and `down` at once, by several users, and after kills: in namespaces of their own.

Each test has a machine of its own as far as an engine can see (processes, network, /run, /opt), so that what an engine
leaves behind shows, and no other engine is touched.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from imagegen.core.errors import EngineError
from tests.support.machines import ROOT
from tools.engine.private import SUITE

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="a private engine needs root"),
]
# Docker's packages come from another engine: `down` removes them, and there is no mirror in here. Modules are imported
# before the process becomes another user, who may not read them.
_PROGRAM = """
import os, subprocess, tempfile
from imagegen.cli import main
from tools.engine import private
from tools.engine.__main__ import command
def unpack(suite, packages, target, *_):
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".debs-") as name:
            links = os.stat(name).st_dev == os.stat(os.environ["PROGRAMS"]).st_dev
            subprocess.run(["cp", "-al" if links else "-a", os.environ["PROGRAMS"], f"{name}/root"], check=True)
            os.replace(f"{name}/root", target)
private.unpack = unpack
user = int(os.environ["BECOME"])
os.setgroups([])
os.setegid(user)
os.seteuid(user)
main(command, "tools.engine")
"""
_TRACES = """
iptables -S; iptables -t nat -S; ip -o link show type bridge | cut -d: -f2; ip route
sed 's/^/forwards /' /proc/sys/net/ipv4/ip_forward; cut -d' ' -f5 /proc/self/mountinfo; find /run /opt
"""


@dataclass(frozen=True)
class Island:
    """A machine of its own; `pid` is its first process."""

    pid: int
    programs: Path

    def start(self, cache: Path, verb: str, user: int = 0) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
        more = {"XDG_CACHE_HOME": str(cache), "PROGRAMS": str(self.programs), "BECOME": str(user)}
        return subprocess.Popen(
            [*self._enter(), sys.executable, "-c", _PROGRAM, verb], cwd=ROOT,
            env=env | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def engine(self, cache: Path, verb: str, *, code: int = 0, user: int = 0) -> None:
        assert_ended([self.start(cache, verb, user)], code)

    def docker(self, cache: Path, *arguments: str, given: bytes = b"") -> str:
        """Docker's own client, on the engine of this cache directory."""
        home = cache / "imagegen/engine"
        socket = json.loads((home / "daemon.json").read_text())["hosts"][0]
        return self.run(str(home / SUITE / "usr/bin/docker"), "--host", socket, *arguments, given=given)

    def run(self, *command: str, given: bytes = b"") -> str:
        done = subprocess.run([*self._enter(), *command], input=given, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def traces(self) -> set[str]:
        """Return the traces that engines could leave behind. They include mounts of the outer machine, which may go
        meanwhile.
        """
        return set(self.run("sh", "-c", _TRACES).splitlines())

    def kill(self, *names: str) -> None:
        """End every process in here whose name begins so; not those in containers."""
        space = os.readlink(f"/proc/{self.pid}/ns/pid")
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                inside = entry.name.isdigit() and os.readlink(entry / "ns/pid") == space
                if inside and (entry / "comm").read_text().startswith(names):
                    os.kill(int(entry.name), signal.SIGKILL)

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--pid", "--mount", "--net", f"--wdns={ROOT}", "--"]


@contextmanager
def island_of(programs: Path) -> Iterator[Island]:
    setup = "mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /opt; ip link set lo up; "
    setup += "echo 0 > /proc/sys/net/ipv4/ip_forward; echo ready; exec cat"
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--net", "--", "sh", "-c", setup]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout
        assert shell.stdout.readline() == "ready\n"
        yield Island(child_of(shell.pid), programs)
        shell.kill()  # and with it all that is in the island; so does the end of this process, by cat's stdin


@pytest.fixture
def island(programs: Path) -> Iterator[Island]:
    with island_of(programs) as found:
        yield found


@pytest.fixture
def tiny(busybox: bytes) -> bytes:
    """An image's file tree, as `docker import` reads it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("busybox")
        info.size, info.mode = len(busybox), 0o755
        tar.addfile(info, io.BytesIO(busybox))
    return buffer.getvalue()


def child_of(pid: int) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(children[0])
    raise AssertionError(f"{pid} has no child")


def assert_ended(running: list[subprocess.Popen[str]], code: int = 0) -> None:
    ended = [(process.args, *process.communicate(timeout=300), process.returncode) for process in running]
    bad = [f"{args[-1]}: {status}\n{err}" for args, _, err, status in ended if status != code]  # type: ignore[index]
    assert not bad, "\n".join(bad)


def subnet_of(cache: Path) -> str:
    return str(json.loads((cache / "imagegen/engine/state.json").read_text())["network"]["subnet"])


def test_ups_and_downs_at_once(island: Island, tmp_path: Path) -> None:
    before = island.traces()
    for verbs in ("up down down down up", "down up down up down"):
        assert_ended([island.start(tmp_path, verb) for verb in verbs.split()])
    island.engine(tmp_path, "down")
    assert island.traces() <= before


@pytest.mark.parametrize("order", ["at once", "first up, first down", "first up, last down"])
def test_engines_of_two_users(island: Island, tiny: bytes, tmp_path: Path, order: str) -> None:
    before, users = island.traces(), [tmp_path / "a", tmp_path / "b"]
    if order == "at once":
        assert_ended([island.start(user, "up") for user in users])
    else:
        for user in users:
            island.engine(user, "up")
    assert subnet_of(users[0]) != subnet_of(users[1])
    for user in users:
        island.docker(user, "import", "-", "tiny", given=tiny)
        assert island.docker(user, "run", "--rm", "tiny", "/busybox", "echo", "runs") == "runs\n"
    if order == "at once":
        assert_ended([island.start(user, "down") for user in users])
    else:
        first, other = users if order == "first up, first down" else reversed(users)
        island.engine(first, "down")
        assert island.docker(other, "run", "--rm", "tiny", "/busybox", "echo", "runs") == "runs\n"
        island.engine(other, "down")
    assert island.traces() <= before


def test_another_user_cannot_take_it_down(island: Island) -> None:
    with TemporaryDirectory() as name:  # pytest's own are closed to other users
        cache = Path(name)
        cache.chmod(0o755)
        island.engine(cache, "up")
        for verb in ("up", "down"):
            island.engine(cache, verb, user=65534, code=EngineError.exit_code)
        cache.chmod(0o700)
        island.engine(cache, "up", user=65534, code=EngineError.exit_code)
        assert island.docker(cache, "ps", "--quiet") == ""
        island.engine(cache, "down")


@pytest.mark.parametrize("killed", [("dockerd",), ("dockerd", "containerd")])
def test_a_killed_engine_comes_back(island: Island, tiny: bytes, tmp_path: Path, killed: tuple[str, ...]) -> None:
    before = island.traces()
    island.engine(tmp_path, "up")
    island.docker(tmp_path, "import", "-", "tiny", given=tiny)
    island.docker(tmp_path, "run", "--detach", "tiny", "/busybox", "sleep", "1000")
    island.kill(*killed)
    island.engine(tmp_path, "up")
    assert island.docker(tmp_path, "run", "--rm", "tiny", "/busybox", "echo", "runs") == "runs\n"
    island.kill(*killed)
    island.engine(tmp_path, "down")
    assert island.traces() <= before


@pytest.mark.parametrize("verbs", ["down", "up down"])
def test_an_engine_whose_directory_was_deleted(island: Island, tmp_path: Path, verbs: str) -> None:
    before = island.traces()
    island.engine(tmp_path, "up")
    shutil.rmtree(tmp_path / "imagegen/engine", ignore_errors=True)  # its data are a mount, which stays
    for verb in verbs.split():
        island.engine(tmp_path, verb)
    assert island.traces() <= before


def test_it_comes_back_after_a_restart(programs: Path, tiny: bytes, tmp_path: Path) -> None:
    with island_of(programs) as island:
        island.engine(tmp_path, "up")
        island.docker(tmp_path, "import", "-", "tiny", given=tiny)
        island.docker(tmp_path, "run", "--detach", "tiny", "/busybox", "sleep", "1000")
    with island_of(programs) as island:
        before = island.traces()
        island.engine(tmp_path, "up")
        assert island.docker(tmp_path, "run", "--rm", "tiny", "/busybox", "echo", "runs") == "runs\n"
        island.engine(tmp_path, "down")
        assert island.traces() <= before


@pytest.mark.parametrize("verb", ["up", "down"])
@pytest.mark.parametrize("count", [pytest.param(2, id="a few"), pytest.param(15, id="many", marks=pytest.mark.slow)])
def test_a_killed_command_is_made_good(island: Island, tmp_path: Path, verb: str, count: int) -> None:
    before = island.traces()
    if verb == "down":
        island.engine(tmp_path, "up")
    start = time.monotonic()
    island.engine(tmp_path, verb)
    seconds, killed = time.monotonic() - start, 0
    island.engine(tmp_path, "down")
    for turn in range(count):
        if verb == "down":
            island.engine(tmp_path, "up")
        process = island.start(tmp_path, verb)
        time.sleep(seconds * (turn + 1) / (count + 1))
        if process.poll() is None:
            killed += 1
            os.kill(child_of(process.pid), signal.SIGKILL)
        else:
            seconds /= 4  # the machine is faster than it was
        process.communicate()
        island.engine(tmp_path, "up")
        assert island.docker(tmp_path, "ps", "--quiet") == ""
        island.engine(tmp_path, "down")
        assert island.traces() <= before
    assert killed


@pytest.mark.parametrize("record", ["", "{", "[]", '{"network": {"bridge": 1}, "made": []}'])
def test_a_damaged_record_is_refused(island: Island, tmp_path: Path, record: str) -> None:
    state = tmp_path / "imagegen/engine/state.json"
    state.parent.mkdir(parents=True)
    state.write_text(record)
    for verb in ("up", "down"):
        island.engine(tmp_path, verb, code=EngineError.exit_code)
