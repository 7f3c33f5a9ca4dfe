"""The private Docker engine: from Debian packages, started, and removed with all that it changed on the machine."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from docker.errors import APIError

from imagegen.core import programs, temporary
from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress, timed
from imagegen.plan.distributions import release
from imagegen.run import emulation
from imagegen.run.emulation import Emulation
from imagegen.run.engine.connection import PACKAGES, SUITE, open_client
from imagegen.run.private_network import Network, forwards

# End what runs from a directory, and take away the mounts and cgroups that it leaves. Source: proc(5), cgroups(7).

_STOP_TIMEOUT = 20  # seconds between asking a process to end and ending it


def end_all(directory: Path) -> None:
    """End every process whose program lies in `directory`: ask first, the engine before its helpers, then kill.

    Programs, not recorded ids: an id may be another process's by now.
    """
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in _running_from(directory):
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + _STOP_TIMEOUT
        while _running_from(directory) and time.monotonic() < deadline:
            time.sleep(0.05)


def _running_from(directory: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                program = os.readlink(entry / "exe")
            except OSError:  # it has ended, or is a kernel thread
                continue
            if Path(program).is_relative_to(directory):
                found.append(int(entry.name))
    return found


def mounts_under(*directories: Path) -> list[str]:
    """Mount points at or below the directories, innermost first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [point for point in reversed(points) if any(Path(point).is_relative_to(d) for d in directories)]


def unmount_all(*directories: Path) -> None:
    for point in mounts_under(*directories):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def cgroups(name: str) -> list[str]:
    """Control groups of that name at the top of every hierarchy, v1 or v2."""
    root = Path("/sys/fs/cgroup")
    return [str(path) for path in (root / name, *root.glob(f"*/{name}")) if path.is_dir()]


def kill_in_cgroups(name: str) -> None:
    """Kill the containers of an engine that died before it could: their programs lie in images, not in a directory."""
    deadline = time.monotonic() + _STOP_TIMEOUT
    while (left := _members(name)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _members(name: str) -> set[int]:
    """Processes in control groups of that name, or below; not those of another process namespace, which have no id."""
    found: set[int] = set()
    for directory in (directory for top in cgroups(name) for directory, _, _ in os.walk(top)):
        with suppress(OSError):  # it has gone
            found |= {int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()}
    return found - {0}


def remove_cgroups(name: str) -> None:
    for top in cgroups(name):
        for directory, _, _ in os.walk(top, topdown=False):
            remove_if_empty(Path(directory))


def remove_dead_sockets(directory: Path) -> None:
    """Remove sockets at which nothing listens: containerd's shims leave theirs when they are killed."""
    for path in directory.glob("*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if path.is_socket() and probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()


def remove_if_empty(directory: Path) -> None:
    """Remove a directory unless it has entries."""
    try:
        directory.rmdir()
    except OSError:
        return


def unpack(suite: str, packages: Sequence[str], target: Path, settings: Settings, progress: Progress) -> None:
    """Unpack the suite's newest `packages`, without what they depend on, into `target`, which appears when complete.

    No maintainer script runs and the host's dpkg learns nothing of it. Raises BaseError when apt cannot have them or
    no mirror is known here, EngineError when one cannot be unpacked.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".debs-") as name:
        work, root = Path(name) / "apt", Path(name) / "root"
        with timed(progress, f"get {', '.join(packages)} from Debian {suite}"):
            from imagegen.image.base.apt import Apt, official  # late: an engine that runs has its packages

            (debian,) = official(release(SUITE), settings, pockets=False)  # whose archive has the other suites too
            apt = Apt(work, [replace(debian, suite=suite)], settings)
            apt.run("update", "--error-on=any")
            apt.run("download", *packages)
        root.mkdir()
        with timed(progress, "unpack them"), ThreadPoolExecutor() as threads:
            list(threads.map(lambda deb: _unpack(deb, root), work.glob("*.deb")))
        os.replace(root, target)


def _unpack(deb: Path, root: Path) -> None:
    done = programs.run(["dpkg-deb", "-x", deb, root], capture_output=True, text=True)
    if done.returncode:
        raise EngineError(f"{deb.name} cannot be unpacked", code="engine-package-invalid", why=done.stderr.strip())


# imagegen's private engine: Docker from Debian packages, with its own socket, data and bridge.
#
# Its files are in `engine/` of the cache directory and in one directory under /run; `state.json` records each change of
# the machine before it is made, so that `down` can undo it after any accident. Engines of several cache directories
# change the same machine: one lock orders them, and each records the state before the first of them.

_TOOLS = {"ip": "iproute2", "iptables": "iptables", "runc": "runc", "setsid": "util-linux", "dpkg-deb": "dpkg"}
_TIMEOUT = 60  # seconds for the engine to answer
_LOG_TAIL = 15  # lines of its log in an error
# The engine outlives us, and its environment can be read for as long: it gets the way to registries, and no secret.
_ENVIRONMENT = re.compile(r"HOME|TMPDIR|SSL_CERT_(FILE|DIR)|(?i:(https?|all|no)_proxy)")
# The engine's parts create these despite their options; those that were absent before are removed, inner ones first.
_STRAY_DIRECTORIES = (
    *("/run/docker/plugins", "/run/docker", "/run/containerd/s", "/run/containerd", "/run/runc"),
    *("/opt/containerd/bin", "/opt/containerd/lib", "/opt/containerd"),
)
_RUN = Path("/run")
_LOCK = _RUN / "imagegen-engine.lock"


@dataclass(frozen=True)
class PrivateEngine:
    """A running private engine: its socket, the programs that fit it, and its own directory."""

    docker_host: str
    client: Path
    buildx: Path
    home: Path


@dataclass(frozen=True)
class _Places:
    """The paths of the engine of one cache directory. `name` distinguishes engines on one machine."""

    home: Path

    @property
    def name(self) -> str:
        return "ig" + hashlib.sha256(bytes(self.home)).hexdigest()[:8]

    @property
    def packages(self) -> Path:
        return self.home / SUITE

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
    def socket(self) -> Path:
        return self.run / "docker.sock"

    def endpoint(self) -> PrivateEngine:
        plugins = self.packages / "usr/libexec/docker/cli-plugins"
        return PrivateEngine(
            f"unix://{self.socket}", self.packages / "usr/bin/docker", plugins / "docker-buildx", self.home
        )


@dataclass(frozen=True)
class _Record:
    """The changes of `up` on the machine: the network, the directories that were absent before any private engine, and
    emulators of other processors.
    """

    network: Network
    made: tuple[str, ...]
    emulation: Emulation = field(default_factory=Emulation)


def recorded_endpoint(settings: Settings) -> PrivateEngine | None:
    """The private engine of this user's cache directory, if it was brought up; it may have died since."""
    places = _places(settings)
    return places.endpoint() if os.path.exists(places.state) else None  # not what another user keeps closed


def running_endpoint(settings: Settings) -> PrivateEngine | None:
    """The private engine of this user's cache directory, if it runs."""
    places = _places(settings)
    return places.endpoint() if os.path.exists(places.state) and _answers(places) else None


def up(settings: Settings, progress: Progress) -> PrivateEngine:
    """Start the private engine; does nothing when it runs.

    Raises EngineError when it cannot be had here: not root, tools missing, no mirror, or the engine dies at its start
    (the error shows the end of its log); what had been changed by then is taken back.
    """
    places = _places(settings)
    if endpoint := _running(settings, progress):
        return endpoint
    _check_machine(settings)
    with _lock(progress):
        if endpoint := _running(settings, progress):  # another process started it while this one waited
            return endpoint
        if record := _recorded(places):
            _stop(places, record, progress)  # after a crash or a reboot; images stay
        unpack(SUITE, PACKAGES, places.packages, settings, progress)
        record = _record(places)
        try:
            with timed(progress, "start the private engine"):
                record.network.up()
                emulation.register(record.emulation, progress)
                _start(places, record.network, settings)
                _await(places)
        except BaseException:
            _stop(places, record, progress)
            raise
    endpoint = places.endpoint()
    progress.say(f"the private engine listens at {endpoint.docker_host}; `imagegen engine down` removes it")
    return endpoint


def _running(settings: Settings, progress: Progress) -> PrivateEngine | None:
    endpoint = running_endpoint(settings)
    if endpoint:
        progress.say(f"the private engine runs at {endpoint.docker_host}")
    return endpoint


def down(settings: Settings, progress: Progress) -> None:
    """Stop the private engine, remove it with its images, and restore what it changed; nothing when there is none.

    Raises EngineError: not root, or what could not be removed.
    """
    places = _places(settings)
    if os.path.exists(places.home) or os.path.exists(places.run):
        _check_machine(settings)
        with _lock(progress):
            if places.home.exists() or places.run.exists():  # else another process removed it while this one waited
                _remove(places, progress)
                progress.say("the private engine is gone, with its images")
                return
    progress.say("there is no private engine")


def _remove(places: _Places, progress: Progress) -> None:
    if record := _recorded(places):
        _stop(places, record, progress)
    if places.home.exists():
        shutil.rmtree(places.home)
    left = [str(path) for path in (places.home, places.run) if path.exists()]
    left += mounts_under(places.home) + cgroups(places.name)
    left += record.network.traces() if record else []
    if left:
        raise EngineError(
            "the private engine could not be removed completely", code="engine-cleanup-failed", why="; ".join(left)
        )


def _places(settings: Settings) -> _Places:
    return _Places(settings.store.parent.resolve() / "engine")


@contextmanager
def _lock(progress: Progress) -> Iterator[None]:
    """Hold the lock between all processes of this machine that start or stop a private engine; its
    file is removed too.
    """
    while True:
        handle = os.open(_LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another process that takes a private engine up or down")
            fcntl.flock(handle, fcntl.LOCK_EX)
        if temporary.names(_LOCK, handle):
            break
        os.close(handle)  # its holder removed it meanwhile
    try:
        yield
    finally:
        _LOCK.unlink()
        os.close(handle)


def _check_machine(settings: Settings) -> None:
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
            "the private engine needs programs that are not here",
            code="engine-program-missing",
            fix=f"apt-get install {' '.join(missing)}",
        )


def _path(settings: Settings) -> str:
    return f"{settings.env.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"


def _record(places: _Places) -> _Record:
    """Plan the network and write down what is going to change, here and for engines that come up after this one."""
    others = _running_records()
    if others:
        forwarding, made = others[0].network.forwarding, others[0].made
    else:
        forwarding, made = forwards(), tuple(path for path in _STRAY_DIRECTORIES if not Path(path).exists())
    emulators = emulation.plan(places.name, mounted=any(other.emulation.mounts for other in others))
    record = _Record(Network.plan(places.name, forwarding=forwarding), made, emulators)
    for path in (places.state, places.run / places.state.name):  # the first names what to remove, the second among it
        path.parent.mkdir(mode=0o711, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(record)), encoding="utf-8")
        os.replace(new, path)
    return record


def _running_records() -> list[_Record]:
    """The records of all private engines of this machine."""
    return [_read(path) for path in _RUN.glob("imagegen-ig*/state.json")]


def _recorded(places: _Places) -> _Record | None:
    """Return the engine's record; the one beside its socket where the cache directory was deleted."""
    copies = (places.state, places.run / places.state.name)
    return next((_read(path) for path in copies if path.exists()), None)


def _read(path: Path) -> _Record:
    from pydantic import TypeAdapter, ValidationError  # late: few machines have a private engine

    try:
        return TypeAdapter(_Record).validate_json(path.read_bytes())
    except ValidationError as error:
        raise EngineError(
            "the private engine's record of what it changed is damaged",
            code="engine-state-damaged",
            where=str(path),
            why="; ".join(each["msg"] for each in error.errors()[:3]),
            fix=f"restart this machine, then remove {path.parent}: nothing else of the engine is left then",
        ) from error


def _start(places: _Places, network: Network, settings: Settings) -> None:
    config = {
        "hosts": [f"unix://{places.socket}"],
        "data-root": str(places.home / "data"),
        "exec-root": str(places.run / "exec"),
        "pidfile": str(places.run / "docker.pid"),
        "features": {"containerd-snapshotter": True},
        "bridge": network.bridge,
        "default-address-pools": [{"base": network.pool, "size": 24}],
        "iptables": False,
        "ip6tables": False,
        "ip-forward": False,
        "ip-masq": False,
        "cgroup-parent": f"/{places.name}",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "init-path": str(places.packages / "usr/bin/tini-static"),
    }
    file = places.home / "daemon.json"
    file.write_text(json.dumps(config, indent=2), encoding="utf-8")
    programs = places.packages / "usr"
    env = {name: value for name, value in settings.env.items() if _ENVIRONMENT.fullmatch(name)}
    env["PATH"] = f"{programs / 'sbin'}:{programs / 'bin'}:{_path(settings)}"
    with places.log.open("wb") as log:
        # A session of its own: the engine outlives the terminal, make and us.
        subprocess.run(
            ["setsid", "--fork", str(programs / "sbin" / "dockerd"), "--config-file", str(file)],
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=True,
        )


def _await(places: _Places) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not _answers(places):
        log = places.log.read_text(errors="replace").splitlines()
        died = any("failed to start daemon" in line for line in log)
        if died or time.monotonic() > deadline:
            what = "the private engine cannot start" if died else "the private engine does not answer"
            raise EngineError(what, code="engine-start-failed", why="its log ends:\n" + "\n".join(log[-_LOG_TAIL:]))
        time.sleep(0.1)


def _answers(places: _Places) -> bool:
    try:
        open_client({"base_url": places.endpoint().docker_host}, 5).close()
    except EngineError:
        return False
    return True


def _stop(places: _Places, record: _Record, progress: Progress) -> None:
    """Processes, then mounts, then network, then empty directories: each needs the one before to be gone."""
    with timed(progress, "stop the private engine"):
        if _answers(places):
            _empty(places)
        end_all(places.packages)
        kill_in_cgroups(places.name)
        unmount_all(places.home, places.run)
        for text in record.network.down():
            progress.say(text)
        emulation.remove(record.emulation)
        remove_cgroups(places.name)
        shutil.rmtree(places.run, ignore_errors=True)
        for path in () if _running_records() else map(Path, record.made):  # another engine uses the same directories
            remove_dead_sockets(path)
            remove_if_empty(path)
        places.state.unlink(missing_ok=True)


def _empty(places: _Places) -> None:
    """Remove containers and users' networks, whose processes and bridges would outlive the engine."""
    client = open_client({"base_url": places.endpoint().docker_host}, _TIMEOUT)
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
