"""Lock a base, packages above it, and the base that compiles byte-code: as the previous lock has them, or today's."""

from __future__ import annotations

from dataclasses import replace

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Progress
from imagegen.image import base
from imagegen.plan.lock.foundation import BUILD_PLATFORM, LockedBase, LockedPackages
from imagegen.plan.lock.freshness import BASE
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell


def locked_base(
    cell: Cell, previous: Lock | None, settings: Settings, progress: Progress, *, upgrade: bool
) -> LockedBase:
    """Return the previous lock's base while its entry in the matrix is the same, else resolve it."""
    if previous and not upgrade and previous.inputs.get("base") == cell.inputs.get("base"):
        return replace(previous.base, **{name: getattr(cell.base, name) for name in BASE})  # manual edits are dropped
    return base.resolve(cell.base, cell.platform, settings, progress)


def bytecode_base(cell: Cell, previous: Lock | None, below: LockedBase, context: Context) -> LockedBase | None:
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
    found = base.resolve(smallest, BUILD_PLATFORM, context.settings, context.progress)
    versions = {deb.version for each in (found, below) for deb in each.debs if deb.name == package}
    return found if len(versions) == 1 else None


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
