"""The graph of a lock's artifacts, from the files that the lock names to everything that is made of them. Pure.

    Debian packages, layers of a registry's image -> base -> base with packages --+
                                                           interpreter archive ---+-> foundation -+-> image
    files of indexes, archives of commits, patches -> wheels, wheels of source builds ------------+
                                                                    copied files -----------------+

The files that a store keeps, fetches or lacks, that a mirror copies and that a provenance names are folds over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from imagegen.lock.foundation import LockedBase, LockedDeb, LockedPackages
from imagegen.lock.model import (
    CopiedFile,
    Foundation,
    Lock,
    LockedBuild,
    LockedFile,
    LockedPatch,
    LockedWheel,
    WheelPatch,
)
from imagegen.oci.documents import LayerDescriptor

_File = LockedFile | LockedDeb | LayerDescriptor | CopiedFile | WheelPatch | LockedPatch
_Product = LockedWheel | LockedBuild | LockedBase | LockedPackages | Foundation | Lock
_T = TypeVar("_T")


@dataclass(frozen=True)
class LockArtifact:
    """A file that a lock names, or a product that is made of other artifacts.

    `about` describes it in the lock; the class of `about` is the artifact's kind. `package` is the package that a file
    belongs to, if any.
    """

    about: _File | _Product
    inputs: tuple[LockArtifact, ...] = ()
    package: LockedWheel | LockedBuild | None = None

    def walk(self) -> Iterator[LockArtifact]:
        """Yield this artifact and everything that it is made of, before the next input. Shared inputs are repeated."""
        yield self
        for artifact in self.inputs:
            yield from artifact.walk()

    def of_kind(self, kind: type[_T]) -> list[_T]:
        """Return the descriptions of this kind, in the order of `walk`."""
        return [artifact.about for artifact in self.walk() if isinstance(artifact.about, kind)]


def plan(lock: Lock) -> LockArtifact:
    """Return the image; one input is the uv that a plain build of the rendered Dockerfile installs with."""
    bytecode_base = [_base(lock.bytecode_base)] if lock.bytecode_base else []
    copies = (LockArtifact(file) for copy in lock.copies for file in copy.files)
    return LockArtifact(
        lock, (_foundation(lock.foundation), *bytecode_base, plan_package(lock.uv), *packages(lock), *copies)
    )


def packages(lock: Lock) -> list[LockArtifact]:
    """Return the wheels of all environments, and then their source builds."""
    locks = [environment.lock for environment in lock.environments]
    wheels = [plan_package(wheel) for locked in locks for wheel in locked.wheels]
    return wheels + [plan_package(build) for locked in locks for build in locked.builds]


def plan_package(package: LockedWheel | LockedBuild) -> LockArtifact:
    """Return a wheel or a source build with its files. A compiled wheel is a file of the wheelhouse."""
    builder = package if isinstance(package, LockedBuild) else package.sdist
    files: tuple[_File, ...] = (package.source, *package.patches)
    artifacts = [LockArtifact(file, package=package) for file in files]
    return LockArtifact(package, (*artifacts, *map(plan_package, builder.build_requires if builder else ())))


def locked_files(artifacts: Iterable[LockArtifact]) -> dict[str, LockedFile]:
    """Return the files of packages by digest, with the wheels that are made of other files."""
    walked = [artifact.about for root in artifacts for artifact in root.walk()]
    files = [about.file if isinstance(about, LockedWheel) else about for about in walked]
    return {file.digest: file for file in files if isinstance(file, LockedFile)}


def _foundation(foundation: Foundation) -> LockArtifact:
    bottom = _base(foundation.base)
    if added := foundation.added:
        bottom = LockArtifact(added, (bottom, *map(LockArtifact, added.debs)))
    archive = foundation.interpreter.file
    return LockArtifact(foundation, (bottom, *([LockArtifact(archive.locked_file)] if archive else [])))


def _base(base: LockedBase) -> LockArtifact:
    return LockArtifact(base, tuple(map(LockArtifact, base.content.layers if base.content else base.debs)))
