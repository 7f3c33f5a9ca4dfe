"""A cell that is small and has one of everything: a heavy wheel, light ones, an sdist, byte-code, a real base."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click

from imagegen import lock
from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import base
from imagegen.lock import sdist
from imagegen.lock.model import Lock, LockedFile, LockedSdist, LockedWheel
from tests.support import command_line
from tests.support.interpreters import LOCKED
from tests.support.machines import ROOT, Debian
from tests.support.wheels import make_wheel

CELL = "small-cpu-py311"
KILLER = Path(__file__).parents[1] / "killer"
PHASES = {  # what an operation's line holds -> what the build was doing
    "tmp/part-": "fetching",
    "/base-": "building the base",
    "mmdebstrap": "building the base",
    "rootfs": "unpacking the base",
    "tar --extract": "unpacking the base",
    "cgroup": "entering a sandbox",
    "bwrap": "entering a sandbox",
    "records/sdist": "keeping a wheel made from an sdist",
    "records/": "writing a record",
    "tmp/blob-": "writing a layer, config or manifest",
    "index.json": "naming the image",
    ".imagegen-tmp-": "exporting",
    "tmp/new-": "writing a record",
    "locks/": "waiting for a lock",
}
_MATRIX = """\
images:
  small:
    description: One of everything, and little of it.
    purpose: Tests.
    base: debian12
    components:
      light0: {because: Tests.}
components:
  light0: {description: Made here.}
  sourced: {description: Made here., sdist: {version: "1.0", requires: [], build_requires: []}}
"""
_BACKEND = """\
import base64, hashlib, zipfile
def build_wheel(directory, *_):
    files = {"sourced.py": b"VALUE = 1\\n", "sourced-1.0.dist-info/METADATA":
        b"Metadata-Version: 2.1\\nName: sourced\\nVersion: 1.0\\n", "sourced-1.0.dist-info/WHEEL":
        b"Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\\n" for name, data in files.items())
    files["sourced-1.0.dist-info/RECORD"] = (record + "sourced-1.0.dist-info/RECORD,,\\n").encode()
    with zipfile.ZipFile(f"{directory}/sourced-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in files.items():
            wheel.writestr(zipfile.ZipInfo(name), data)
    return "sourced-1.0-py3-none-any.whl"
"""


def write_project(
    project: Path, links: Path, debian: Debian, more: Mapping[str, Mapping[str, bytes]] | None = None
) -> Lock:
    """Its matrix and lock into `project`, its files into `links`, which find-links may name. No network is needed.

    `more` are further wheels: name -> path -> content.
    """
    for directory in (project / "matrices", links):
        directory.mkdir(parents=True)
    (project / "matrices" / "small.yaml").write_text(_MATRIX)
    (cell,) = matrix.load([shipped("matrices"), project / "matrices"]).select(CELL)
    noise = random.Random(0)  # its bytes do not compress
    light = {
        f"light{number}": {f"light{number}/m{m}.py": f"X = {m}\n".encode() for m in range(9)} for number in range(6)
    }
    contents = {
        "heavy": {"heavy/__init__.py": b"", "heavy/data.bin": noise.randbytes(11_000_000)},
        **light,
        **(more or {}),
    }
    wheels = []
    for name, files in contents.items():
        filename = f"{name}-1.0-py3-none-any.whl"
        wheels.append(locked_wheel(name, make_wheel(links, files, filename=filename, info=f"{name}-1.0.dist-info")))
    source = locked_wheel("sourced", _sdist(links))
    store = Store(project / "store")
    store.write((links / source.file.filename).read_bytes())
    interpreter = LOCKED.path
    workshop = sdist.SdistBuilder(base.key(debian.locked), interpreter, lambda: debian.rootfs, store, Quiet())
    made = sdist.build("sourced", "1.0", LockedSdist(source.file, ()), workshop)
    wheels.append(LockedWheel("sourced", "1.0", made, via=(), sdist=LockedSdist(source.file, ())))
    uv = LockedWheel("uv", "1.0", LockedFile("uv-1.0-py3-none-any.whl", 1, "0" * 64, "pypi"), via=())
    ordered = tuple(sorted(wheels, key=lambda wheel: wheel.name))
    requested = {need.component.package: need.because for need in cell.requirements}
    made_lock = Lock(
        cell=cell.id,
        image=cell.image,
        axes=cell.axes,
        inputs=cell.inputs,
        uv=uv,
        as_of="2026-01-01T00:00:00Z",
        base=debian.locked,
        interpreter=LOCKED,
        wheels=tuple(replace(wheel, because=requested.get(wheel.name)) for wheel in ordered),
        env=cell.env,
    )
    lock.write(made_lock, project / "locks" / f"{CELL}.toml")
    return made_lock


def locked_wheel(name: str, path: Path) -> LockedWheel:
    data = path.read_bytes()
    return LockedWheel(name, "1.0", LockedFile(path.name, len(data), hashlib.sha256(data).hexdigest(), "pypi"), via=())


def _sdist(links: Path) -> Path:
    path = links / "sourced-1.0.tar.gz"
    project = b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {"pyproject.toml": project, "backend.py": _BACKEND.encode()}.items():
            info = tarfile.TarInfo(f"sourced-1.0/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@dataclass(frozen=True)
class Site:
    """A project, its files, and a store to start from; `reference` is what an undisturbed build gives."""

    project: Path
    links: Path
    warm: Path  # a store with the base's packages, the base, and its tree
    reference: str
    operations: list[str]
    seconds: float
    compiled: Path | None = None  # kept results over the files of the project

    def machine(self, root: Path, *without: str) -> Machine:
        """A machine whose store starts warm, or without its `rootfs`, or without `base` as well."""
        store = root / "cache" / "imagegen" / "store"
        store.parent.mkdir(parents=True)
        subprocess.run(["cp", "-al", self.warm, store], check=True)
        if self.compiled:
            subprocess.run(["cp", "-al", self.compiled, store.parent], check=True)
        if "rootfs" in without:
            shutil.rmtree(store / "rootfs")
        if "base" in without:
            shutil.rmtree(store / "records" / "base")
            max((store / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size).unlink()
        return Machine(root, self)


@dataclass(frozen=True)
class Machine:
    root: Path
    site: Site

    @property
    def store(self) -> Path:
        return self.root / "cache" / "imagegen" / "store"

    @property
    def log(self) -> Path:
        return self.root / "operations"

    def start(self, output: str, **more: str) -> subprocess.Popen[str]:
        """A build under way, in a process group of its own."""
        return self.start_command("build", "small", "--output", f"oci:{self.root / output}", **more)

    def imagegen(self, *arguments: str) -> str:
        """Another command; what it says on stdout."""
        process = self.start_command(*arguments)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    def start_command(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "PIP_FIND_LINKS": str(self.site.links),
            "PYTHONPATH": os.pathsep.join([str(KILLER), str(ROOT)]),
            "KILLER_LOG": str(self.log),
            **more,
        }
        self.log.write_text("")
        program = "from imagegen.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", program, "--project", str(self.site.project), *arguments],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def build(self, output: str) -> str:
        """Run a build without interference and return its digest."""
        return self.imagegen("build", "small", "--output", f"oci:{self.root / output}").split()[-1]

    def call(
        self, *arguments: str, command: click.Command | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run another command in this process, which saves a second, and logs no operations."""
        env = {**os.environ, "XDG_CACHE_HOME": str(self.root / "cache"), "PIP_FIND_LINKS": str(self.site.links), **more}
        project = ("--project", str(self.site.project))
        done = command_line.call(*project, *arguments, env=env, directory=self.root, command=command)
        assert done.returncode == 0, done.stderr
        return done

    def build_here(self, output: str) -> str:
        """As `build`, in this process, which logs no operations."""
        return self.call("build", "small", "--output", f"oci:{self.root / output}").stdout.split()[-1]

    def phase(self) -> str:
        """Return the phase of the last operation."""
        return phase(self.log.read_text().splitlines()[-1])


def forget(machine: Machine, *kinds: str) -> None:
    """Remove the results of these kinds, records of a machine's store or compiled ones beside it."""
    for kind in kinds:
        compiled = list((machine.store.parent / "compiled").glob(f"{kind}-*"))
        for path in compiled:
            path.unlink()
        if not compiled:
            shutil.rmtree(machine.store / "records" / kind)


def spread(operations: list[str], count: int) -> list[int]:
    """Numbers of `count` operations: of each phase as many as of the others, evenly over its course."""
    by_phase: dict[str, list[int]] = {}
    for line in operations:
        by_phase.setdefault(phase(line), []).append(int(line.split()[0]))
    each = -(-count // len(by_phase))
    chosen = set()
    for numbers in by_phase.values():
        chosen |= {numbers[index * len(numbers) // each] for index in range(each)}
    return sorted(chosen)


def phase(line: str) -> str:
    return next((what for sign, what in PHASES.items() if sign in line), "starting and ending")


def site_of(root: Path, debian: Debian) -> Site:
    """Its reference build comes from a store that holds the base and nothing of the cell, and reads kept results."""
    write_project(root / "project", root / "links", debian)
    site = Site(root / "project", root / "links", debian.store.root, "", [], 0)
    machine = site.machine(root / "machine")
    machine.imagegen("show", "small")
    start = time.monotonic()
    digest = machine.build("image")
    return replace(
        site,
        reference=digest,
        operations=machine.log.read_text().splitlines(),
        seconds=time.monotonic() - start,
        compiled=machine.store.parent / "compiled",
    )
