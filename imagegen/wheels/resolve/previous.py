"""The parts of a previous lock that the next one reuses: versions, wheels that need not be made, sizes of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.utils import canonicalize_name

from imagegen.core.errors import LockError
from imagegen.image import base
from imagegen.plan.lock.model import LOCAL, Lock, LockedBase, LockedBuild, LockedWheel


def kept_versions(previous: Lock, upgraded: Sequence[str]) -> dict[str, str]:
    """Return the versions that stay, by package. Raises LockError for an upgraded package that the lock has not."""
    names = {canonicalize_name(name) for name in upgraded}
    unknown = names - {each.name for each in previous.packages}
    if unknown:
        raise LockError(
            f"the lock has no {', '.join(sorted(unknown))}",
            code="lock-unknown-package",
            fix="upgrade a package that it has",
        )
    return {each.name: each.version for each in previous.packages if each.name not in names}


def settled_packages(previous: Lock, made: Lock, kept: Mapping[str, str]) -> dict[str, LockedWheel | LockedBuild]:
    """Return the compiled packages that may stay, by package: a chosen wheel stays as long as it is for the same torch.

    So a place that cannot be reached today turns no wheel into a build.
    """
    old, new = ({wheel.name: wheel.file.sha256 for wheel in lock.wheels}.get("torch") for lock in (previous, made))
    same = old == new and previous.inputs.get("gpus") == made.inputs.get("gpus")
    return {
        each.name: each
        for each in previous.packages
        if each.name in kept and (isinstance(each, LockedBuild) or (same and each.choice))
    }


def file_sizes(previous: Lock | None) -> dict[str, int]:
    """Return the sizes in bytes that the lock names, by sha256."""
    wheels = previous.wheels if previous else ()
    sdists = [wheel.sdist for wheel in wheels if wheel.sdist]
    parts = [wheel for each in sdists for wheel in each.build_requires]
    parts += [wheel for build in (previous.builds if previous else ()) for wheel in build.build_requires]
    files = [*(each.fetched for each in (*wheels, *parts)), *(each.file for each in sdists)]
    return {file.sha256: file.size for file in files if file.size is not None}


def built_wheels(previous: Lock, locked_base: LockedBase) -> dict[tuple[str, str], LockedWheel]:
    """Return the wheels made from sdists, by name and version, as far as this base would make them."""
    if base.key(previous.base) != base.key(locked_base):
        return {}
    return {(wheel.name, wheel.version): wheel for wheel in previous.wheels if wheel.sdist}


def own_wheels(previous: Lock | None) -> dict[str, LockedWheel]:
    """Return the wheels of the project's own packages, by package."""
    return {wheel.name: wheel for wheel in previous.wheels if wheel.file.index == LOCAL} if previous else {}
