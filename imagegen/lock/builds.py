"""The built wheel of a source build, and the key of its inputs.

The key names a wheel in every wheelhouse, so that one input is compiled once. It covers all that can change the
wheel's bytes. It does not cover the reason for the build, the dependent packages, or the number of parallel jobs.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.checks import WORKER
from imagegen.core.errors import BuildError
from imagegen.lock.foundation import LockedBase, LockedDeb
from imagegen.lock.interpreter import interpreter_key
from imagegen.lock.model import BUILT, Lock, LockedBuild, LockedFile, LockedWheel
from imagegen.lock.tables import HashedFile
from imagegen.oci.documents import canonical_json, digest_of

BUILDER = "builder"  # the input of locks with builds that is the digest of the programs that run a build
_FORMAT = 1  # of the key; a new number compiles everything anew
_COMPILING = re.compile(
    r"(gcc|g\+\+|cpp)(-\d+)?|binutils|libc6-dev|lib(stdc\+\+|gcc)-\d+-dev|python3(\.\d+)?(-minimal|-dev)?|libpython3.*"
)


@dataclass(frozen=True)
class BuiltWheel(HashedFile):
    """A wheel of the wheelhouse. `record` describes its build (sources, flags, toolchain, peak memory, duration)."""

    key: str  # "sha256:...": of everything that decides it
    name: str
    version: str
    filename: str
    sha256: str
    size: int  # bytes
    record: Mapping[str, Any]


@functools.cache
def builder() -> str:
    """Hex sha256 of the programs that run a build in its container."""
    digest = hashlib.sha256()
    for path in sorted(WORKER.rglob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(WORKER)} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def key_of(build: LockedBuild, lock: Lock) -> str:
    """Return the digest of all inputs of the build's wheel, from the lock; the build's own `key` is not read."""
    shas = {wheel.name: wheel.file.sha256 for wheel in lock.wheels}
    archive = [interpreter_key(lock.interpreter)] if lock.interpreter.file else []
    inputs = {
        "format": _FORMAT,
        "builder": lock.inputs.get(BUILDER),
        "release": [build.name, build.version],
        "source": [build.source.filename, build.source.sha256],
        "git": [build.git.commit, build.git.tree] if build.git else None,
        "submodules": [[submodule.path, submodule.commit, submodule.tree] for submodule in build.submodules],
        "patches": [patch.sha256 for patch in build.patches],
        "build-requires": [[require.name, require.file.sha256] for require in build.build_requires],
        "against": [[name, shas.get(name)] for name in build.against],
        "compiler": compiler(lock.base, lock.debs),
        "interpreter": [lock.interpreter.path, lock.python, lock.platform, *archive],
        "env": dict(build.env),
        "architectures": build.architectures,
    }
    return digest_of(canonical_json(inputs))


def keyed(build: LockedBuild, lock: Lock) -> LockedBuild:
    """Return the build with its key in this lock."""
    return replace(build, key=key_of(build, lock))


def compiler(base: LockedBase, debs: Iterable[LockedDeb]) -> list[str]:
    """Return the compilers and Python, as digest of the base's image and as name and version of Debian packages."""
    image = [base.content.digest] if base.content else []
    return [*image, *(f"{deb.name}={deb.version}" for deb in debs if _COMPILING.fullmatch(deb.name))]


def with_built_wheels(lock: Lock, built: Mapping[str, BuiltWheel]) -> Lock:
    """Return the lock with the wheels of its builds, given by package; an image is built of it, and no file holds it.

    Raises BuildError for a build without its wheel, or with the wheel of another.
    """
    if not lock.builds:
        return lock
    built_wheels = [_locked_wheel(build, built.get(build.name)) for build in lock.builds]
    index_wheels = [wheel for wheel in lock.wheels if wheel.build is None]
    return replace(lock, wheels=tuple(sorted((*index_wheels, *built_wheels), key=lambda wheel: wheel.name)))


def _locked_wheel(build: LockedBuild, wheel: BuiltWheel | None) -> LockedWheel:
    if wheel is None or wheel.key != build.key:
        raise BuildError(
            f"{build} has not been built",
            code="source-build-required",
            why=f"the wheelhouse has no wheel with the key {build.key}",
            fix="`imagegen wheels build` makes it",
        )
    name, version, _, _ = parse_wheel_filename(wheel.filename)
    if (name, version) != (build.name, Version(build.version)):
        raise BuildError(
            f"{wheel.filename} is not a wheel of {build}",
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
