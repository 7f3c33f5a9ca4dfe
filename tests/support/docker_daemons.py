"""Docker engines for one test module each: real ones, in namespaces of their own, that can be stopped and killed."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from imagegen.core.config import Settings
from imagegen.engine.connection import open_client
from tools.engine import processes

_PATIENCE = 30  # seconds for an engine to listen

# Nothing that containerd and its shims write beside their own directories is seen outside, and their data is memory.
_SETUP = """\
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /opt
mkdir -p {root}/data
mount -t tmpfs -o size={megabytes}m tmpfs {root}/data
"""


# A containerd dies with its dockerd, but stays a zombie until the shell looks: a new dockerd would
# take it for alive, wait for it, and give up. A zombie has no command line.
_FORGET = """\
pid=/run/exec/containerd/containerd.pid
for i in $(seq 500); do [ -e $pid ] && grep -qs . "/proc/$(cat $pid)/cmdline" || break; sleep 0.02; done
rm -f $pid
"""


class Daemon:
    """A dockerd in its own process and mount namespaces; when it is closed, all of it is gone, containers included.

    The namespaces' first process is a shell that reads what to do, so that the engine can die and come back.
    """

    def __init__(
        self,
        root: Path,
        programs: Path,
        *,
        megabytes: int = 1000,
        own_network: bool = False,
        setup: str = "",
        hosts: Sequence[str] = (),
        **config: Any,
    ) -> None:
        """Start it and wait until it listens.

        Args:
            root: a new directory for its socket and its log; a short path (a socket's fits in 107 bytes).
            programs: where Docker's packages are unpacked.
            megabytes: the size of the disk that its data is on.
            own_network: whether it has a network namespace of its own, whose loopback is not this machine's.
            setup: shell commands that run in its namespaces first.
            hosts: where it listens besides its socket.
            config: more of daemon.json.
        """
        root.mkdir(parents=True)
        self.root = root
        self.host = f"unix://{root}/s"
        self.hosts = [self.host, *hosts]
        self._group = f"imagegen-test-{os.getpid()}-{secrets.token_hex(4)}"
        settings: Mapping[str, Any] = {
            "hosts": self.hosts,
            "data-root": f"{root}/data",
            "exec-root": "/run/exec",
            "pidfile": "/run/docker.pid",
            "features": {"containerd-snapshotter": True},
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "ip-forward": False,
            "ip-masq": False,
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": f"/{self._group}",
            **config,
        }
        (root / "daemon.json").write_text(json.dumps(settings))
        path = f"{programs}/usr/sbin:{programs}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        network = ["--net"] if own_network else []
        self._shell = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *network, "--", "sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PATH": path},
        )
        self._do(_SETUP.format(root=root, megabytes=megabytes) + setup + "\nset +e\n")
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start dockerd, for the first time or again, and wait until it answers."""
        self._do(_FORGET)
        self._do(f"dockerd --config-file {self.root}/daemon.json >>{self.root}/log 2>&1 & dockerd=$!")
        deadline = time.monotonic() + _PATIENCE
        while not self._listens():
            assert time.monotonic() < deadline, (self.root / "log").read_text()[-2000:]
            time.sleep(0.02)
        open_client({"base_url": self.host}, _PATIENCE).close()

    def signal(self, name: str) -> None:
        """Send dockerd a signal ("KILL", "STOP"); when it is to die, wait until it has."""
        self._do(f"kill -{name} $dockerd")
        deadline = time.monotonic() + _PATIENCE
        while name in {"KILL", "TERM"} and self._listens() and time.monotonic() < deadline:
            time.sleep(0.01)

    def limit(self, memory: int) -> None:
        """Give its builds and containers so many bytes of memory, and one core (control groups version 1)."""
        top = Path("/sys/fs/cgroup")
        limits = {
            "memory/memory.limit_in_bytes": str(memory),
            "cpuset/cpuset.cpus": (top / "cpuset/cpuset.cpus").read_text().replace("-", ",").split(",")[0],
            "cpuset/cpuset.mems": (top / "cpuset/cpuset.mems").read_text(),
        }
        for file, value in limits.items():
            path = top / Path(file).parent / self._group / Path(file).name
            path.parent.mkdir(exist_ok=True)
            path.write_text(value)

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()
        deadline = time.monotonic() + _PATIENCE  # its last processes may still be ending
        while processes.cgroups(self._group) and time.monotonic() < deadline:
            processes.remove_cgroups(self._group)
            time.sleep(0.02)

    def _do(self, commands: str) -> None:
        """Have the shell run them, and wait until it has."""
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write(f"{commands}\necho done\n")
        self._shell.stdin.flush()
        assert self._shell.stdout.readline() == "done\n"

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.host.removeprefix("unix://")) == 0


def at(daemon: Daemon | str, tmp_path: Path) -> Settings:
    host = daemon if isinstance(daemon, str) else daemon.host
    return Settings.from_environment({"HOME": str(tmp_path), "PATH": os.environ["PATH"], "DOCKER_HOST": host})


def paste(line: str, env: Mapping[str, str], cwd: Path) -> None:
    done = subprocess.run(["bash", "-c", line], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stderr[-5000:]}"
