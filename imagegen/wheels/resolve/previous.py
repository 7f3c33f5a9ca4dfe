"""The parts of a previous lock that the next one reuses: versions, wheels, sizes of files, and its base or today's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import LockError
from imagegen.core.progress import Progress
from imagegen.image import base
from imagegen.plan.lock.foundation import BUILD_PLATFORM, LockedPackages
from imagegen.plan.lock.freshness import BASE
from imagegen.plan.lock.model import LOCAL, Lock, LockedBase, LockedBuild, LockedWheel
from imagegen.plan.matrix.model import Cell


def kept_versions(previous: Lock, upgraded: Sequence[str]) -> dict[str, str]:
    """Return the versions that stay, by package. Raises LockError for an upgraded package that the lock has not."""
    names = {canonicalize_name(name) for name in upgraded}
    unknown = names - {package.name for package in previous.packages}
    if unknown:
        raise LockError(
            f"the lock has no {', '.join(sorted(unknown))}",
            code="lock-unknown-package",
            fix="upgrade a package that it has",
        )
    return {package.name: package.version for package in previous.packages if package.name not in names}


def settled_packages(
    previous: Lock, resolved: Lock, versions: Mapping[str, str]
) -> dict[str, LockedWheel | LockedBuild]:
    """Return the compiled packages that may stay, by package: a chosen wheel stays as long as it is for the same torch.

    So a place that cannot be reached today turns no wheel into a build.
    """
    old, new = ({wheel.name: wheel.file.sha256 for wheel in lock.wheels}.get("torch") for lock in (previous, resolved))
    same = old == new and previous.inputs.get("gpus") == resolved.inputs.get("gpus")
    return {
        package.name: package
        for package in previous.packages
        if package.name in versions and (isinstance(package, LockedBuild) or (same and package.choice))
    }


def file_sizes(previous: Lock | None) -> dict[str, int]:
    """Return the sizes in bytes that the lock names, by sha256."""
    wheels = previous.wheels if previous else ()
    sdists = [wheel.sdist for wheel in wheels if wheel.sdist]
    build_wheels = [wheel for sdist in sdists for wheel in sdist.build_requires]
    build_wheels += [wheel for build in (previous.builds if previous else ()) for wheel in build.build_requires]
    files = [*(locked_wheel.fetched for locked_wheel in (*wheels, *build_wheels)), *(sdist.file for sdist in sdists)]
    return {file.sha256: file.size for file in files if file.size is not None}


def built_wheels(previous: Lock, locked_base: LockedBase) -> dict[tuple[str, str], LockedWheel]:
    """Return the wheels made from sdists, by name and version, as far as this base would make them."""
    if base.key(previous.base) != base.key(locked_base):
        return {}
    return {(wheel.name, wheel.version): wheel for wheel in previous.wheels if wheel.sdist}


def own_wheels(previous: Lock | None) -> dict[str, LockedWheel]:
    """Return the wheels of the project's own packages, by package."""
    return {wheel.name: wheel for wheel in previous.wheels if wheel.file.index == LOCAL} if previous else {}


# The base, packages above it, and the base that compiles byte-code.


def base_of(cell: Cell, previous: Lock | None, settings: Settings, progress: Progress, *, upgrade: bool) -> LockedBase:
    """Return the previous lock's base while its entry in the matrix is the same, else resolve it."""
    if previous and not upgrade and previous.inputs.get("base") == cell.inputs.get("base"):
        return replace(previous.base, **{name: getattr(cell.base, name) for name in BASE})  # manual edits are dropped
    return base.resolve(cell.base, cell.platform, settings, progress)


def bytecode_base_of(cell: Cell, previous: Lock | None, below: LockedBase, context: Context) -> LockedBase | None:
    """Return the smallest base of BUILD_PLATFORM with the image's interpreter.

    None for an image of that platform, and where the interpreter is not the distribution's, or the archive has another
    version of it for that platform.
    """
    if below.kind != "debian" or cell.interpreter.files or cell.platform == BUILD_PLATFORM:
        return None
    if previous and previous.bytecode_base and previous.base == below:
        return previous.bytecode_base
    package = f"python{cell.python}"
    name = f"{cell.base.name}-{BUILD_PLATFORM.replace('/', '-')}"
    smallest = replace(cell.base, name=name, packages={package: "It compiles byte-code."})
    candidate = base.resolve(smallest, BUILD_PLATFORM, context.settings, context.progress)
    versions = {deb.version for locked in (candidate, below) for deb in locked.debs if deb.name == package}
    return candidate if len(versions) == 1 else None


def added_packages(
    cell: Cell, previous: Lock | None, below: LockedBase | None, context: Context
) -> LockedPackages | None:
    """Return the packages above `below`: the previous lock's while base and requested packages are the same."""
    if not cell.packages or below is None:
        return None
    before = previous.added if previous and base.key(previous.base) == base.key(below) else None
    if before and dict(before.requested) == dict(cell.packages):
        return before
    tree = base.rootfs(below, context)
    name, settings, progress = below.name, context.settings, context.progress
    return base.resolve_packages(cell.packages, tree, name, cell.platform, settings, progress)
