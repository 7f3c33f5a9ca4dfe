"""Patches of the project to wheels of a cell: read for a lock, applied, and compared with a lock before a build."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from imagegen.core import data
from imagegen.core.context import Context
from imagegen.core.errors import LockError
from imagegen.core.store import Store
from imagegen.core.text import did_you_mean
from imagegen.lock import patched
from imagegen.lock.model import LOCAL, Lock, LockedWheel, WheelPatch
from imagegen.lock.sources import RequiredFile, fetch_files
from imagegen.spec.model import Cell, PatchSource


def read(cell: Cell, store: Store) -> dict[str, tuple[WheelPatch, ...]]:
    """Return the cell's patches by package, sorted by path; their contents are written to the store.

    Raises LockError, with the line of the matrix, for a file that is missing, unreadable or outside of the project.
    """
    patches: dict[str, tuple[WheelPatch, ...]] = {}
    for source in cell.patches:
        try:
            content = data.read(source.file, source.top)
        except OSError as error:
            raise _refused(source, f"{source.file}: {error.strerror}") from error
        sha256 = store.write(content).removeprefix("sha256:")
        patch = WheelPatch(source.source, sha256, len(content), source.because, source.origin)
        patches[source.package] = (*patches.get(source.package, ()), patch)
    return patches


def apply(cell: Cell, wheels: Iterable[LockedWheel], context: Context) -> tuple[LockedWheel, ...]:
    """Return the wheels, those with patches as the patched ones, which are then in the store.

    Raises LockError for a patch that does not apply, and for a wheel that is made of sources: these are patched
    instead. Raises FetchError for a wheel that cannot be had.
    """
    asked = read(cell, context.store)
    return tuple(_applied(wheel, asked.get(wheel.name, ()), cell, context) for wheel in wheels)


def complete(cell: Cell, lock: Lock, context: Context) -> Lock:
    """Return the lock with all patches of the cell, also of wheels that were chosen last. Raises as `apply`.

    Raises LockError for a patch of a package that the lock does not have, or compiles.
    """
    wheels = {wheel.name for wheel in lock.wheels}
    for patch in cell.patches:
        if patch.package not in wheels:
            is_built = any(build.name == patch.package for build in lock.builds)
            why = f"{patch.package} is compiled" if is_built else f"no package of the image is {patch.package}"
            fix = "name the patch in its recipe" if is_built else did_you_mean(patch.package, wheels)
            raise _refused(patch, why, fix)
    return replace(lock, wheels=apply(cell, lock.wheels, context))


def require_unchanged(lock: Lock, cell: Cell, store: Store, where: str) -> None:
    """Raise LockError if the project's patches differ from the lock at the path `where`."""
    if not any(wheel.patches for wheel in lock.wheels):
        return
    then = {wheel.name: wheel.patches for wheel in lock.wheels if wheel.patches}
    now = read(cell, store)
    if moved := sorted({patch.path for name in then | now for patch in {*then.get(name, ())} ^ {*now.get(name, ())}}):
        why = f"these patches changed since then: {', '.join(moved)}"
        fix = f"`imagegen lock {cell.id}`"
        raise LockError(f"the lock of {cell.id} is stale", code="lock-stale", where=where, why=why, fix=fix)


def _applied(wheel: LockedWheel, asked: tuple[WheelPatch, ...], cell: Cell, context: Context) -> LockedWheel:
    if wheel.patches == asked and context.store.has(wheel.file.digest, wheel.file.size):
        return wheel
    original = wheel.fetched
    if not asked:
        return replace(wheel, file=original, original=None, patches=())
    if wheel.sdist or original.index == LOCAL:
        source = next(patch for patch in cell.patches if patch.package == wheel.name)
        raise _refused(source, f"{wheel.name} is made of sources", "change these instead")
    fetch_files(original.filename, [RequiredFile(wheel.name, original)], context)
    try:
        file = patched.build(original, asked, context.store, context.settings)
    except LockError as error:
        error.where = next((f"{patch.file}" for patch in cell.patches if patch.source == error.where), error.where)
        raise
    return replace(wheel, file=file, original=original, patches=asked)


def _refused(patch: PatchSource, why: str, fix: str | None = None) -> LockError:
    message = f"{patch.source} cannot be applied"
    return LockError(message, code="lock-patch-invalid", where=patch.where, why=why, fix=fix)
