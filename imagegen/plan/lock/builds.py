"""Source builds in a lock: the wheel that was built, and the key of all inputs that decide it."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.core.errors import BuildError
from imagegen.core.oci.types import canonical_json, digest_of
from imagegen.incontainer import WORKER
from imagegen.plan.lock.base import LockedBase, LockedDeb
from imagegen.plan.lock.interpreters import interpreter_key
from imagegen.plan.lock.model import BUILT, Lock, LockedBuild, LockedFile, LockedWheel


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel of the wheelhouse. `record` describes its build (sources, flags, toolchain, peak memory, duration)."""

    key: str  # "sha256:...": of everything that decides it
    name: str
    version: str
    filename: str
    sha256: str
    size: int  # bytes
    record: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The digest of the file as a blob of the store."""
        return f"sha256:{self.sha256}"


# The key of a source build, from all that decides its wheel; and the lock with the wheels that were built.
#
# The key names a wheel in every wheelhouse, so that one input is compiled once. It covers what can change the wheel's
# bytes and nothing else: not the reason for the build, the dependent packages, or the number of parallel jobs.

BUILDER = "builder"  # name of the input: what runs a build, for locks that have some
# NVIDIA's wheels that make a toolkit. Those of CUDA 12 hold no nvcc: there the base is the toolkit.
TOOLKIT = ("nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-nvvm")
_FORMAT = 1  # of the key; a new number compiles everything anew
_COMPILING = re.compile(
    r"(gcc|g\+\+|cpp)(-\d+)?|binutils|libc6-dev|lib(stdc\+\+|gcc)-\d+-dev|python3(\.\d+)?(-minimal|-dev)?|libpython3.*"
)


@functools.cache
def builder() -> str:
    """Hex sha256 of the programs that run a build in its container."""
    found = hashlib.sha256()
    for path in sorted(WORKER.rglob("*.py")):
        source = path.read_bytes()
        found.update(f"{path.relative_to(WORKER)} {len(source)}\n".encode() + source)
    return found.hexdigest()


def key_of(build: LockedBuild, lock: Lock) -> str:
    """The digest of all that decides the build's wheel, read off the lock; the build's own `key` is not."""
    shas = {wheel.name: wheel.file.sha256 for wheel in lock.wheels}
    archive = [interpreter_key(lock.interpreter)] if lock.interpreter.file else []
    parts = {
        "format": _FORMAT,
        "builder": lock.inputs.get(BUILDER),
        "release": [build.name, build.version],
        "source": [build.source.filename, build.source.sha256],
        "git": [build.git.commit, build.git.tree] if build.git else None,
        "submodules": [[each.path, each.commit, each.tree] for each in build.submodules],
        "patches": [each.sha256 for each in build.patches],
        "build-requires": [[each.name, each.file.sha256] for each in build.build_requires],
        "against": [[name, shas.get(name)] for name in build.against],
        "compiler": compiler(lock.base, lock.debs),
        "interpreter": [lock.interpreter.path, lock.python, lock.platform, *archive],
        "env": dict(build.env),
        "architectures": build.architectures,
    }
    return digest_of(canonical_json(parts))


def keyed(build: LockedBuild, lock: Lock) -> LockedBuild:
    """The build, with its key in this lock."""
    return replace(build, key=key_of(build, lock))


def compiler(base: LockedBase, debs: Iterable[LockedDeb]) -> list[str]:
    """Return what compiles, and Python: the base's image by digest, and packages of the lock by name and version."""
    image = [base.content.digest] if base.content else []
    return [*image, *(f"{deb.name}={deb.version}" for deb in debs if _COMPILING.fullmatch(deb.name))]


def closure(names: Iterable[str], wheels: Iterable[LockedWheel]) -> tuple[str, ...]:
    """Return these wheels and all that they require, sorted; the toolkit's wheels are always among them."""
    needed_by = {wheel.name: frozenset(wheel.via) for wheel in wheels}
    found = {*names, *TOOLKIT} & needed_by.keys()
    while more := {name for name, asking in needed_by.items() if not asking.isdisjoint(found)} - found:
        found |= more
    return tuple(sorted(found))


def with_built_wheels(lock: Lock, built: Mapping[str, BuiltWheel]) -> Lock:
    """Return the lock with the wheels of its builds, given by package; an image is built of it, and no file holds it.

    Raises BuildError for a build without its wheel, or with the wheel of another.
    """
    if not lock.builds:
        return lock
    made = [_wheel(build, built.get(build.name)) for build in lock.builds]
    others = [wheel for wheel in lock.wheels if wheel.build is None]
    return replace(lock, wheels=tuple(sorted((*others, *made), key=lambda wheel: wheel.name)))


def _wheel(build: LockedBuild, wheel: BuiltWheel | None) -> LockedWheel:
    if wheel is None or wheel.key != build.key:
        raise BuildError(
            f"{build.name} {build.version} has not been built",
            code="source-build-required",
            why=f"the wheelhouse has no wheel with the key {build.key}",
            fix="`imagegen wheels build` makes it",
        )
    name, version, _, _ = parse_wheel_filename(wheel.filename)
    if (name, version) != (build.name, Version(build.version)):
        raise BuildError(
            f"{wheel.filename} is no wheel of {build.name} {build.version}",
            code="source-build-wrong-release",
            why=f"the wheelhouse has it under the key {build.key}",
            fix="`imagegen wheels gc` forgets it, then build again",
        )
    file = LockedFile(wheel.filename, wheel.size, wheel.sha256, BUILT)
    return LockedWheel(
        build.name, build.version, file, via=build.via, because=build.because, choice=build.choice, build=build.key
    )


def misbuilt(lock: Lock) -> tuple[str, ...]:
    """Return the builds whose key does not match the lock's description of them, which only an edit can cause."""
    return tuple(build.name for build in lock.builds if build.key != key_of(build, lock))
