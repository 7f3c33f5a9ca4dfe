"""The private engine: Docker from Debian packages, with its own socket, data and bridge.

Its files are in `engine/` of the cache directory and in one directory under /run. `state.json` records each change of
the machine before it is made, so that `down` can undo it after any accident. Engines of several cache directories
change the same machine: one lock orders them, and each records the state before the first of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from docker.errors import APIError
from pydantic import TypeAdapter, ValidationError

from imagegen.core import temporary
from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress, timed
from imagegen.engine.connection import open_client
from tools.engine import emulation
from tools.engine.emulation import Emulation
from tools.engine.network import Network, forwards
from tools.engine.packages import unpack
from tools.engine.processes import (
    cgroups,
    end_all,
    kill_in_cgroups,
    mounts_under,
    remove_cgroups,
    remove_dead_sockets,
    remove_if_empty,
    unmount_all,
)

# Debian 13's Docker 26.1.5 and buildx 0.13.1 do all that is needed, measured; their limit is a stage of more than about
# 30 layers as the source of a RUN mount, which takes BuildKit 0.14.
SUITE = "trixie"
PACKAGES = ("containerd", "docker-buildx", "docker-cli", "docker.io", "tini")

_TOOLS = {"ip": "iproute2", "iptables": "iptables", "runc": "runc", "setsid": "util-linux", "dpkg-deb": "dpkg"}
_TIMEOUT = 60  # seconds for the engine to answer
_LOG_TAIL = 15  # lines of its log in an error
# The engine runs on after this program. Other processes can read its environment, so that it gets no secret.
_ENVIRONMENT = re.compile(r"HOME|TMPDIR|SSL_CERT_(FILE|DIR)|(?i:(https?|all|no)_proxy)")
# Docker and containerd create these despite their options. `down` removes those that were absent, inner ones first.
_STRAY_DIRECTORIES = (
    *("/run/docker/plugins", "/run/docker", "/run/containerd/s", "/run/containerd", "/run/runc"),
    *("/opt/containerd/bin", "/opt/containerd/lib", "/opt/containerd"),
)
_RUN = Path("/run")
LOCK = _RUN / "imagegen-engine.lock"


_CLIENT = """\
#!/bin/sh
# Docker's client of the private engine. The client does not look for buildx where it is, so this program starts it.
if [ "$1" = buildx ]; then shift; exec {buildx} "$@"; fi
exec {client} "$@"
"""


@dataclass(frozen=True)
class PrivateEngine:
    """A private engine, running or not; `home` is its directory. Several caches of one machine have one each."""

    home: Path

    @property
    def name(self) -> str:
        return "ig" + hashlib.sha256(bytes(self.home)).hexdigest()[:8]

    @property
    def packages(self) -> Path:
        return self.home / SUITE

    @property
    def programs(self) -> Path:
        """The directory with a program `docker` that fits the engine."""
        return self.home / "bin"

    @property
    def state(self) -> Path:
        return self.home / "state.json"

    @property
    def log(self) -> Path:
        return self.home / "dockerd.log"

    @property
    def run(self) -> Path:
        """The directory under /run. Not in the cache directory: a socket's path must fit in 107 bytes."""
        return _RUN / f"imagegen-{self.name}"

    @property
    def docker_host(self) -> str:
        return f"unix://{self.run}/docker.sock"

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that select this engine and its client, for a process with the variables `env`."""
        return {"DOCKER_HOST": self.docker_host, "PATH": f"{self.programs}:{env.get('PATH', os.defpath)}"}


@dataclass(frozen=True)
class _Record:
    """The changes of `up` on the machine. `made` are the directories that were absent before any private engine."""

    network: Network
    made: tuple[str, ...]
    emulation: Emulation = field(default_factory=Emulation)


def engine_of(settings: Settings) -> PrivateEngine:
    """Return the private engine of this user's cache directory, whether it exists or not."""
    return PrivateEngine(settings.store.parent.resolve() / "engine")


def running(settings: Settings) -> PrivateEngine | None:
    """Return the private engine of this user's cache directory if it runs."""
    engine = engine_of(settings)
    return engine if os.path.exists(engine.state) and _answers(engine) else None


def up(settings: Settings, progress: Progress) -> PrivateEngine:
    """Start the private engine unless it runs.

    Raises EngineError if it cannot start: not root, missing programs, no mirror, or the engine ends at its start (the
    error shows the end of its log). Changes of the machine are undone then.
    """
    if engine := _reuse(settings, progress):
        return engine
    check_machine(settings)
    engine = engine_of(settings)
    with hold_lock(progress):
        if other := _reuse(settings, progress):  # another process started it while this one waited
            return other
        if record := _recorded(engine):
            stop_engine(engine, record, progress)  # after a crash or a reboot; images stay
        unpack(SUITE, PACKAGES, engine.packages, settings, progress)
        write_client(engine)
        record = _record(engine)
        try:
            with timed(progress, "start the private engine"):
                record.network.up()
                emulation.register(record.emulation, progress)
                start_engine(engine, record.network, settings)
                _await(engine)
        except BaseException:
            stop_engine(engine, record, progress)
            raise
    progress.say(
        f'the private engine listens at {engine.docker_host}; `eval "$(make -s engine-up)"` selects it in a shell, '
        "`make engine-down` removes it"
    )
    return engine


def _reuse(settings: Settings, progress: Progress) -> PrivateEngine | None:
    engine = running(settings)
    if engine:
        progress.say(f"the private engine runs at {engine.docker_host}")
    return engine


def write_client(engine: PrivateEngine) -> None:
    usr = engine.packages / "usr"
    client, buildx = usr / "bin/docker", usr / "libexec/docker/cli-plugins/docker-buildx"
    engine.programs.mkdir(exist_ok=True)
    program = engine.programs / "docker"
    program.write_text(_CLIENT.format(client=shlex.quote(str(client)), buildx=shlex.quote(str(buildx))))
    program.chmod(0o755)


def down(settings: Settings, progress: Progress) -> None:
    """Stop the private engine if there is one, remove it with its images, and undo its changes of the machine.

    Raises EngineError: not root, or something could not be removed.
    """
    engine = engine_of(settings)
    if os.path.exists(engine.home) or os.path.exists(engine.run):
        check_machine(settings)
        with hold_lock(progress):
            if engine.home.exists() or engine.run.exists():  # else another process removed it while this one waited
                _remove(engine, progress)
                progress.say("the private engine is gone, with its images")
                return
    progress.say("there is no private engine")


def _remove(engine: PrivateEngine, progress: Progress) -> None:
    if record := _recorded(engine):
        stop_engine(engine, record, progress)
    if engine.home.exists():
        shutil.rmtree(engine.home)
    traces = [str(path) for path in (engine.home, engine.run) if path.exists()]
    traces += mounts_under(engine.home) + cgroups(engine.name)
    traces += record.network.traces() if record else []
    if traces:
        raise EngineError(
            "the private engine could not be removed completely", code="engine-cleanup-failed", why="; ".join(traces)
        )


@contextmanager
def hold_lock(progress: Progress) -> Iterator[None]:
    """Hold the lock of all processes of this machine that start or stop a private engine. Its file is removed too."""
    while True:
        handle = os.open(LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another process that starts or stops a private engine")
            fcntl.flock(handle, fcntl.LOCK_EX)
        if temporary.names(LOCK, handle):
            break
        os.close(handle)  # another process removed the file meanwhile
    try:
        yield
    finally:
        LOCK.unlink()
        os.close(handle)


def check_machine(settings: Settings) -> None:
    if os.geteuid() != 0:
        raise EngineError(
            "the private engine needs root",
            code="engine-needs-root",
            why="it mounts file systems and makes a bridge",
            fix="run as root, or install Docker and let your user use it",
        )
    path = _path(settings)
    missing = sorted(package for tool, package in _TOOLS.items() if shutil.which(tool, path=path) is None)
    if missing:
        raise EngineError(
            "the private engine needs programs that are missing",
            code="engine-program-missing",
            fix=f"apt-get install {' '.join(missing)}",
        )


def _path(settings: Settings) -> str:
    return f"{settings.env.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"


def _record(engine: PrivateEngine) -> _Record:
    """Plan the network, and record the changes before they are made, also for engines that start after this one."""
    records = _running_records()
    if records:
        forwarding, absent = records[0].network.forwarding, records[0].made
    else:
        forwarding, absent = forwards(), tuple(path for path in _STRAY_DIRECTORIES if not Path(path).exists())
    emulators = emulation.plan(engine.name, mounted=any(other.emulation.mounts for other in records))
    record = _Record(Network.plan(engine.name, forwarding=forwarding), absent, emulators)
    for path in (engine.state, engine.run / engine.state.name):  # the record of the first names the second
        path.parent.mkdir(mode=0o711, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(record)), encoding="utf-8")
        os.replace(new, path)
    return record


def _running_records() -> list[_Record]:
    """Return the records of all private engines of this machine."""
    return [read_record(path) for path in _RUN.glob("imagegen-ig*/state.json")]


def _recorded(engine: PrivateEngine) -> _Record | None:
    """Return the engine's record, or its copy next to the socket if the cache directory was deleted."""
    copies = (engine.state, engine.run / engine.state.name)
    return next((read_record(path) for path in copies if path.exists()), None)


def read_record(path: Path) -> _Record:
    try:
        return TypeAdapter(_Record).validate_json(path.read_bytes())
    except ValidationError as error:
        raise EngineError(
            "the private engine's record of its changes is damaged",
            code="engine-state-damaged",
            where=str(path),
            why="; ".join(fault["msg"] for fault in error.errors()[:3]),
            fix=f"restart this machine, then remove {path.parent}: a restart ends everything else of the engine",
        ) from error


def start_engine(engine: PrivateEngine, network: Network, settings: Settings) -> None:
    config = {
        "hosts": [engine.docker_host],
        "data-root": str(engine.home / "data"),
        "exec-root": str(engine.run / "exec"),
        "pidfile": str(engine.run / "docker.pid"),
        "features": {"containerd-snapshotter": True},
        "bridge": network.bridge,
        "default-address-pools": [{"base": network.pool, "size": 24}],
        "iptables": False,
        "ip6tables": False,
        "ip-forward": False,
        "ip-masq": False,
        "cgroup-parent": f"/{engine.name}",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "init-path": str(engine.packages / "usr/bin/tini-static"),
    }
    file = engine.home / "daemon.json"
    file.write_text(json.dumps(config, indent=2), encoding="utf-8")
    programs = engine.packages / "usr"
    env = {name: value for name, value in settings.env.items() if _ENVIRONMENT.fullmatch(name)}
    env["PATH"] = f"{programs / 'sbin'}:{programs / 'bin'}:{_path(settings)}"
    with engine.log.open("wb") as log:
        # In a session of its own, the engine runs on when the terminal, make and this program have ended.
        subprocess.run(
            ["setsid", "--fork", str(programs / "sbin" / "dockerd"), "--config-file", str(file)],
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=True,
        )


def _await(engine: PrivateEngine) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not _answers(engine):
        log = engine.log.read_text(errors="replace").splitlines()
        died = any("failed to start daemon" in line for line in log)
        if died or time.monotonic() > deadline:
            message = "the private engine cannot start" if died else "the private engine does not answer"
            raise EngineError(message, code="engine-start-failed", why="its log ends:\n" + "\n".join(log[-_LOG_TAIL:]))
        time.sleep(0.1)


def _answers(engine: PrivateEngine) -> bool:
    try:
        open_client({"base_url": engine.docker_host}, 5).close()
    except EngineError:
        return False
    return True


def stop_engine(engine: PrivateEngine, record: _Record, progress: Progress) -> None:
    """End processes, then remove mounts, then the network, then empty directories; this order must not change."""
    with timed(progress, "stop the private engine"):
        if _answers(engine):
            _empty(engine)
        end_all(engine.packages)
        kill_in_cgroups(engine.name)
        unmount_all(engine.home, engine.run)
        for text in record.network.down():
            progress.say(text)
        emulation.remove(record.emulation)
        remove_cgroups(engine.name)
        shutil.rmtree(engine.run, ignore_errors=True)
        for path in () if _running_records() else map(Path, record.made):  # other engines use the same directories
            remove_dead_sockets(path)
            remove_if_empty(path)
        engine.state.unlink(missing_ok=True)


def _empty(engine: PrivateEngine) -> None:
    """Remove containers and users' networks, whose processes and bridges would stay without the engine."""
    client = open_client({"base_url": engine.docker_host}, _TIMEOUT)
    try:
        for container in client.containers.list(all=True, ignore_removed=True):
            container.remove(force=True, v=True)
        client.networks.prune()
    except APIError as error:
        raise EngineError(
            "the private engine's containers cannot be removed", code="engine-cleanup-failed", why=str(error)
        ) from error
    finally:
        client.close()
