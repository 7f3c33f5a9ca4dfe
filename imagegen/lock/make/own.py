"""Wheels that a cell brings itself, for its lock: named by address and sha256, or the project's own packages.

A package of the project is a directory, of which the sandbox builds the wheel, or a wheel file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement as Pep508
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

from imagegen.core.context import Context
from imagegen.core.errors import ImagegenError, LockError, ReproducibilityError, SandboxError, WheelError
from imagegen.core.git import PackedTree
from imagegen.core.net import wheel_metadata
from imagegen.core.store import Store
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock import sdist
from imagegen.lock.make.packages import PackageResolver
from imagegen.lock.model import LOCAL, URL, Lock, LockedFile, LockedSdist, LockedWheel, archive_name
from imagegen.lock.recipes import pyproject
from imagegen.lock.sources import RequiredFile, fetch_files
from imagegen.spec.model import Cell, OwnSource, Requirement, WheelAddress

_DEFAULT_BACKEND = ("setuptools>=40.8.0",)  # PEP 518: of a project that names no build requirements
_NO_NETWORK = (
    "name all that the build needs in `build-system.requires` of its pyproject.toml, since the sandbox has no network, "
    "no compiler and no repository of git; docs/how-to/your-own-package.md says how compiled sources are built"
)
_COMPILED = "compile it: `compiled: true` in its entry under `components`, and a recipe with `path:` under wheels/"


@dataclass(frozen=True)
class OwnPackageBuilder:
    """Makes wheels of packed sources; `resolver` resolves their build requirements and builds them."""

    resolver: PackageResolver

    def wheels(self, packed: Mapping[str, PackedTree]) -> dict[str, LockedWheel]:
        """Return the wheels of the cell's own packages, by package.

        The build requirements of an earlier wheel stay where they still satisfy the project's. Raises LockError,
        SandboxError, WheelError and ReproducibilityError, with the line that names the source.
        """
        wheels_by_package, before = {}, self.resolver.previous.own_wheels
        for requirement in self.resolver.cell.requirements:
            package = requirement.component.package
            if requirement.own:
                try:
                    wheels_by_package[package] = self._wheel(
                        requirement, requirement.own, packed[package], before.get(package)
                    )
                except (LockError, SandboxError, WheelError, ReproducibilityError) as error:
                    raise _located(error, requirement.own) from error
        return wheels_by_package

    def _wheel(
        self, requirement: Requirement, own_source: OwnSource, packed: PackedTree, before: LockedWheel | None
    ) -> LockedWheel:
        package, sha256 = requirement.component.package, packed.digest.removeprefix("sha256:")
        if own_source.kind == "wheel":
            file = LockedFile(Path(own_source.path).name, packed.size, sha256, LOCAL)
            return self._described(requirement, file, None)
        archive = LockedFile(f"{package}.tar", packed.size, sha256, LOCAL)
        project = pyproject(self.resolver.context.store, packed, package, "")
        required = _build_requirements(project)
        source = LockedSdist(archive, self._build_requires(required, before))
        stated = project.get("project")
        version = str(stated.get("version", "VERSION")) if isinstance(stated, dict) else "VERSION"
        build_names = {canonicalize_name(build_requirement.name) for build_requirement in required}
        sdist.require_small(package, source, build_names, own_source.path, version)
        return self._described(requirement, self.resolver.build(package, None, source), source)

    def _build_requires(self, required: Sequence[Pep508], before: LockedWheel | None) -> tuple[LockedWheel, ...]:
        locked = before.sdist.build_requires if before and before.sdist else ()
        if _satisfy(locked, required, self.resolver.target.python):
            return locked
        return self.resolver.build_requires(tuple(map(str, required)))

    def _described(self, requirement: Requirement, file: LockedFile, source: LockedSdist | None) -> LockedWheel:
        """Return the wheel with its release and requirements. Raises LockError for one that does not fit the cell."""
        package, target = requirement.component.package, self.resolver.target
        try:
            name, version, _, _ = parse_wheel_filename(file.filename)
            if name != package:
                raise ValueError(f"it is of {name}")  # noqa: TRY301 - as an invalid file name raises
            with self.resolver.context.store.path(file.digest).open("rb") as opened:
                metadata = wheel_metadata.of_file(opened, package, str(version))
        except ValueError as error:
            fix = f"name the component as the package is named, and not {package}, or correct the file"
            message = f"{file.filename} is not a wheel of {package}"
            raise LockError(message, code="lock-own-invalid", why=str(error), fix=fix) from error
        if target.best([(file.filename, file)]) is None:
            needed = f"{package} for Python {target.python} on {target.uv_platform}"
            raise LockError(
                f"{file.filename} is not a wheel of {needed}",
                code="lock-no-wheel",
                fix="build it for this interpreter and platform, or choose a cell that has the wheel's",
            )
        if not SpecifierSet(metadata.python).contains(target.python, prereleases=True):
            message = f"{package} {version} requires Python {metadata.python}, and the cell has {target.python}"
            raise LockError(message, code="lock-no-wheel", fix="change its `requires-python`, or choose another cell")
        if source:
            renamed = replace(source.file, filename=archive_name(package, str(version)))
            source, file = replace(source, file=renamed), replace(file, index=LOCAL)
        return LockedWheel(package, str(version), file, sdist=source, requires=metadata.requires)


def with_own_wheels(lock: Lock, own_wheels: Mapping[str, LockedWheel]) -> Lock | None:
    """Return the lock with other wheels of its own packages; None where the change needs another resolution.

    It needs none where each wheel has the requirements of the one before, and the version where others require it.
    """
    wheels = []
    for wheel in lock.wheels:
        new = own_wheels.get(wheel.name, wheel)
        if new.requires != wheel.requires or (wheel.via and new.version != wheel.version):
            return None
        wheels.append(replace(wheel, version=new.version, file=new.file, sdist=new.sdist))
    return replace(lock, wheels=tuple(wheels))


def _build_requirements(project: Mapping[str, Any]) -> list[Pep508]:
    """Return the requirements of a project's build backend. Raises LockError for a malformed pyproject.toml."""
    try:
        return [
            Pep508(requirement) for requirement in project.get("build-system", {}).get("requires", _DEFAULT_BACKEND)
        ]
    except (AttributeError, TypeError, ValueError) as error:
        message = "`build-system.requires` of its pyproject.toml is malformed"
        raise LockError(message, code="lock-pyproject-malformed", why=str(error)) from error


def _satisfy(locked: Sequence[LockedWheel], required: Sequence[Pep508], python: str) -> bool:
    """Return whether the wheels satisfy the requirements of a build, and none is superfluous."""
    versions = {wheel.name: wheel.version for wheel in locked}
    applying = [
        requirement
        for requirement in required
        if not requirement.marker or requirement.marker.evaluate({"python_version": python})
    ]
    names = {canonicalize_name(requirement.name) for requirement in applying}
    return {wheel.name for wheel in locked if not wheel.via} <= names <= versions.keys() and all(
        requirement.specifier.contains(versions[canonicalize_name(requirement.name)], prereleases=True)
        for requirement in applying
    )


def _located(error: ImagegenError, own_source: OwnSource) -> ImagegenError:
    """Return the error with the line that names the source, and a fix that fits a package of the project."""
    error.where = own_source.where
    if isinstance(error, SandboxError) and error.code == "sandbox-sdist-failed":
        error.fix = _NO_NETWORK
    if isinstance(error, WheelError) and error.code == "wheel-not-pure":
        error.fix = _COMPILED
    return error


CHOICE = "the matrix names its address"


def wheels_by_address(cell: Cell, target: WheelTarget, context: Context) -> dict[str, LockedWheel]:
    """Return the wheels by package, each in the store with the bytes of its sha256.

    Raises MissingFiles for wheels that cannot be fetched, and LockError for a wheel that does not fit the cell.
    """
    requested = [(declared, declared.address) for declared in cell.requirements if declared.address]
    if not requested:
        return {}
    for requirement, address in requested:
        _require_fit(requirement, address, target)
    files = [RequiredFile(requirement.component.package, _file(address, None)) for requirement, address in requested]
    fetch_files("fetching wheels by address", files, context)
    return {
        requirement.component.package: _described(requirement, address, context.store)
        for requirement, address in requested
    }


def _file(address: WheelAddress, size: int | None) -> LockedFile:
    return LockedFile(address.filename, size, address.sha256, URL, url=address.url)


def _require_fit(requirement: Requirement, address: WheelAddress, target: WheelTarget) -> None:
    """Raise LockError for a wheel of another interpreter or platform, or of a version that the cell does not admit."""
    package = requirement.component.package
    if target.best([(address.filename, address)]) is None:
        raise LockError(
            f"{address.filename} is not a wheel for Python {target.python} on {target.uv_platform}",
            code="lock-no-wheel",
            fix=f"name another `url` of {package}; `variants` of an image name one for each value of an axis",
        )
    if not SpecifierSet(requirement.specifier).contains(address.version, prereleases=True):
        raise LockError(
            f"{address.filename} is not a wheel of {package}{requirement.specifier}",
            code="lock-no-wheel",
            fix="correct `version` or `url`",
        )


def _described(requirement: Requirement, address: WheelAddress, store: Store) -> LockedWheel:
    """Return the wheel as a lock has it. Raises LockError for a file that is not a wheel of the component."""
    package, path = requirement.component.package, store.path(f"sha256:{address.sha256}")
    try:
        with path.open("rb") as opened:
            wheel_metadata.of_file(opened, package, str(address.version))
    except ValueError as error:
        message = f"{address.filename} is not a wheel of {package}"
        raise LockError(message, code="lock-no-wheel", why=str(error), fix="correct `url`") from error
    return LockedWheel(package, str(address.version), _file(address, path.stat().st_size), choice=CHOICE)
