"""A project of its own: an image of one small wheel, an index on loopback, and a lock whose base needs no archive."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from imagegen import lock
from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.lock.model import Lock, LockedBase, LockedDeb, LockedFile, LockedWheel
from imagegen.spec.model import Cell
from tests.support import command_line
from tests.support.interpreters import LOCKED
from tests.support.wheels import make_wheel

CELL = "demo-cpu-py311"
MATRIX = """\
components:
  demo: {description: A wheel of a few bytes., imports: [demo]}
images:
  demo: {description: Small., purpose: Tests., base: debian12, components: {demo: {because: Tests.}}}
"""
PYTHON = LockedDeb("python3.11", "3.11.2-6", "amd64", 1, "a" * 64, "debian", "pool/main/p/python3.11.deb")
BASE = LockedBase("debian12", "debian", "bookworm", {"debian/bookworm": "2026-11-20T00:00:00Z"}, (PYTHON,))


@dataclass
class Project:
    """`root` holds matrices/ and locks/, the index's files, a home and everything else that imagegen writes."""

    root: Path
    base: LockedBase = BASE
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("matrices", "locks", "index/demo", "home", "tmp", "cache"):
            (self.root / name).mkdir(parents=True)
        (self.root / "matrices" / "demo.yaml").write_text(MATRIX)
        self.wheel = make_wheel(self.root / "index/demo", {"demo/__init__.py": b"ANSWER = 42\n"})
        digest = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        self.page = f'<a href="{self.wheel.name}#sha256={digest}" data-upload-time="2026-01-01T00:00:00Z">x</a>\n'
        (self.root / "index/demo/index.html").write_text(self.page)
        self.env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "LANG": "C.UTF-8",
            "HOME": str(self.root / "home"),
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "TMPDIR": str(self.root / "tmp"),
            "UV_HTTP_RETRIES": "0",
            **self.env,
        }
        cell = _cell()
        version = importlib.metadata.version("uv")  # a lock keeps the uv that runs here: no index is asked for it
        uv = LockedWheel("uv", version, LockedFile(f"uv-{version}-py3-none-any.whl", 1, "0" * 64, "pypi"), via=())
        start = Lock(
            cell=CELL,
            image="demo",
            axes=dict(cell.axes),
            inputs=dict(cell.inputs),
            uv=uv,
            as_of="2026-11-20T00:00:00Z",
            base=self.base,
            interpreter=LOCKED,
            wheels=(),
            env=(),
        )
        lock.write(start, self.lock)

    @property
    def lock(self) -> Path:
        return self.root / "locks" / f"{CELL}.toml"

    def serve_uv(self, content: bytes) -> None:
        """Let the index have these bytes as uv's wheel, and the lock name them."""
        locked = lock.read(self.lock)
        file = replace(locked.uv.file, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        (self.root / "index/uv").mkdir()
        (self.root / "index/uv" / file.filename).write_bytes(content)
        page = f'<a href="{file.filename}#sha256={file.sha256}">x</a>\n'
        (self.root / "index/uv/index.html").write_text(page)
        lock.write(replace(locked, uv=replace(locked.uv, file=file)), self.lock)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """`imagegen` with these arguments, in a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", "from imagegen.cli import main; main()", *arguments],
            env={**self.env, **(env or {})}, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, env=env) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def call(
        self, *arguments: str, env: Mapping[str, str] | None = None, command: click.Command | None = None
    ) -> subprocess.CompletedProcess[str]:
        """As `run`, in this process: for what a command prints, writes and returns."""
        return command_line.call(*arguments, env={**self.env, **(env or {})}, directory=self.root, command=command)

    def leftovers(self) -> list[Path]:
        """Temporary files, of this project's imagegen and of the programs that it runs."""
        leftovers = (self.root / "cache").glob("imagegen/uv/resolve-*")
        unfinished = (self.root / "cache").glob("imagegen/store/tmp/new-*")
        return [*(self.root / "tmp").iterdir(), *leftovers, *unfinished, *(self.root / "locks").glob(".*")]


@functools.cache
def _cell() -> Cell:
    """Loaded once: no two projects differ in it when they start."""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "demo.yaml").write_text(MATRIX)
        (cell,) = matrix.load([shipped("matrices"), Path(name)]).select("demo")
    return cell


def processes_of(root: Path) -> list[str]:
    """Command lines of processes that work in, or name, `root`."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                inside = Path(os.readlink(process / "cwd")).is_relative_to(root)
            except OSError:  # it has ended
                continue
            if inside or str(root) in line:
                found.append(line)
    return found
