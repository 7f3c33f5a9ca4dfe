"""Locks of small wheels in a store, and a sandbox that is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from imagegen.core.gpu import Gpu
from imagegen.core.store import Store
from imagegen.lock.model import Lock, LockedBase, LockedFile, LockedWheel
from imagegen.spec.model import Cell, Declarations
from tests.support.interpreters import LOCKED
from tests.support.wheels import make_wheel


class HostSandbox:
    """The compile worker without a sandbox, under the interpreter of the tests."""

    def __init__(self, rootfs: Path) -> None:
        pass

    def popen(self, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, *argv[1:]], stdin=pipe, stdout=pipe, stderr=pipe, env=env)


def locked(
    store: Store, tmp_path: Path, name: str, files: dict[str, bytes], metadata: dict[str, str] | None = None
) -> LockedWheel:
    filename, info = f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    data = make_wheel(tmp_path, files, filename=filename, info=info, metadata=metadata).read_bytes()
    digest = store.write(data).removeprefix("sha256:")
    return LockedWheel(name, "1.0", LockedFile(filename, len(data), digest, "pypi"), via=())


def lock_of(*wheels: LockedWheel) -> Lock:
    base = LockedBase("debian12", "debian", "bookworm", {}, ())
    axes = {"platform": "linux/amd64", "python": "3.11", "cuda": "cpu"}
    uv = LockedWheel("uv", "1.0", LockedFile("uv-1.0-py3-none-any.whl", 1, "0" * 64, "pypi"), via=())
    wheels = tuple(sorted(wheels, key=lambda wheel: wheel.name))
    return Lock(
        cell="demo-cpu-py311",
        image="demo",
        axes=axes,
        inputs={},
        uv=uv,
        as_of="2026-01-01T00:00:00Z",
        base=base,
        interpreter=LOCKED,
        wheels=wheels,
        env=(),
    )


GPU = Gpu("sm_90", "9.0", "hopper", ("H200",))


def cell_of(cuda: str | None, **imports: tuple[str, ...]) -> Cell:
    declared = Declarations(imports, {"one": ("one.start",)}, {"gone": "It must be compiled."})
    return cast("Cell", SimpleNamespace(declarations=declared, gpus=(GPU,) if cuda else (), cuda_version=cuda))
