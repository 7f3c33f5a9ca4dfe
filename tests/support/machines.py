"""Machines of their own for imagegen, as far as it can tell, and what was built on one."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from imagegen import lock
from imagegen import spec as matrix
from imagegen.core.config import Settings
from imagegen.core.data import shipped
from imagegen.core.store import Store
from imagegen.image import base
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.oci.documents import LayerDescriptor
from imagegen.spec.foundation import Base
from imagegen.spec.model import Declarations
from tests.support import command_line
from tools.engine.private import PrivateEngine, engine_of
from tools.run_image.__main__ import command as run_image

ROOT = Path(__file__).parents[2]
PLAIN = "plain"
_PLAIN = f"""\
images:
  {PLAIN}:
    description: A few wheels of PyPI.
    purpose: Tests that need a real image, and none with torch.
    base: debian12
    components:
      numpy: {{because: Its extension modules are compiled.}}
      pip: {{because: pip check proves that the set is consistent.}}
      requests: {{because: It has dependencies.}}
"""


@dataclass(frozen=True)
class Debian:
    """A base of today's packages, built: a committed lock's may have left the mirror."""

    requested: Base
    locked: base.LockedBase
    layer: LayerDescriptor
    store: Store
    rootfs: Path


@dataclass(frozen=True)
class Place:
    """A cache, a directory, an engine, a umask and a time zone."""

    root: Path
    docker_host: str | None
    umask: int = 0o022
    zone: str = "UTC"
    through: tuple[str, ...] = ()  # a command that runs commands, as `unshare --net` does
    env: Mapping[str, str] = field(default_factory=dict)  # beside what this machine has

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """`imagegen` with these arguments; the exit code must be `code`."""
        done = subprocess.run(
            [*self.through, sys.executable, "-c", "from imagegen.cli import main; main()", *arguments],
            env=self._variables(), cwd=self.root, umask=self.umask, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return self._ended(done, code)

    def run_tool(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m tools.run_image` with these arguments, in this process."""
        ended = command_line.call(*arguments, env=self._variables(), directory=self.root, command=run_image)
        return self._ended(ended, 0)

    def call(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """As `run`, in this process, with its umask and time zone: for what a command prints, writes and returns."""
        return self._ended(command_line.call(*arguments, env=self._variables(), directory=self.root), code)

    def _variables(self) -> dict[str, str]:
        env = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "TZ": self.zone, "COLUMNS": "200", **self.env}
        return {**env, "DOCKER_HOST": self.docker_host} if self.docker_host else env

    @staticmethod
    def _ended(done: subprocess.CompletedProcess[str], code: int) -> subprocess.CompletedProcess[str]:
        assert done.returncode == code, f"{done.args}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


@dataclass(frozen=True)
class Built:
    """An image in the engine: its tag, the lock it was really built from, what its build said."""

    ref: str
    lock: Lock
    declared: Declarations
    said: subprocess.CompletedProcess[str]

    @property
    def digest(self) -> str:
        return digest_of(self.said)

    @property
    def relocked(self) -> bool:
        return relocked(self.said)


def digest_of(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of `build` on stdout."""
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", last), done.stdout
    return last


def relocked(done: subprocess.CompletedProcess[str]) -> bool:
    """Return whether the archive has changed since the committed lock was made: the digest differs then."""
    return "the base was locked again" in done.stderr


def committed(cell: str) -> Lock:
    """The lock in the repository."""
    return lock.read(ROOT / "locks" / f"{cell}.toml")


def private_engine() -> PrivateEngine | None:
    """Return the private engine of this user if DOCKER_HOST names it."""
    engine = engine_of(Settings.from_environment(os.environ))
    return engine if os.environ.get("DOCKER_HOST") == engine.docker_host else None


def built_in(machine: Place, image: str, shared: Path) -> Built:
    """Build an image once for all test processes: the first builds into `shared`, the others copy its machine.

    Its store starts empty, so that the first build has the network alone. Into the store first: an engine that was
    there before may hold the image already.
    """
    (cell,) = matrix.load([shipped("matrices")]).select(image)
    with Path(f"{shared}.lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        first = not shared.exists()
        if first:
            machine.run("build", image, "--output", f"oci:{image}", "--scratch-base")
            said = machine.run("build", image, "--no-test", "--scratch-base")
        else:
            copy_tree(shared / "machine", machine.root)
            said = subprocess.CompletedProcess(**json.loads((shared / "said.json").read_text()))
        locked = committed(cell.id)
        if relocked(said):  # the archive has moved on: this machine's lock is its own, recorded like the other
            own = machine.root / "locks" / f"{cell.id}.toml"
            if first:
                lock.write(lock.read(machine.cache / "imagegen" / "scratch" / f"{cell.id}.toml"), own)
                machine.run("lock", image, "--record")
            locked = lock.read(own)
        if first:
            copy_tree(machine.root, shared / "machine")
            (shared / "said.json").write_text(json.dumps(vars(said)))
    return Built(local_tags(locked)[1], locked, cell.declarations, said)


def plain_in(machine: Place, other: Lock) -> Built:
    """Build the image PLAIN, on the base and with the versions of another image that the machine has."""
    cell = f"{PLAIN}-cpu-py311"
    write_plain(machine.root, replace(other, cell=cell, image=PLAIN, record=None))
    machine.call("lock", PLAIN, "--record")
    machine.call("build", PLAIN, "--output", f"oci:{PLAIN}")
    said = machine.run("build", PLAIN, "--no-test")
    locked = lock.read(machine.root / "locks" / f"{cell}.toml")
    (requested,) = matrix.load([shipped("matrices"), machine.root / "matrices"]).select(PLAIN)
    return Built(local_tags(locked)[1], locked, requested.declarations, said)


def write_plain(root: Path, locked: Lock) -> None:
    """Write the project of the image PLAIN with this lock of it."""
    (root / "matrices").mkdir(parents=True, exist_ok=True)
    (root / "matrices" / f"{PLAIN}.yaml").write_text(_PLAIN)
    lock.write(locked, root / "locks" / f"{locked.cell}.toml")


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory by hard links; files that `target` has stay."""
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-aln", f"{source}/.", target], check=True)
