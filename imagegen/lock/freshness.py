"""Does a lock still answer its cell? What moved in the matrix since, and what a hand has changed in the lock."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from imagegen.lock.model import GIT, Lock, LockedGit, LockedWheel, winners_among
from imagegen.lock.target import Target
from imagegen.matrix.model import Cell, Requirement

BASE = ("name", "kind", "suite", "image", "interpreter")  # what a locked base repeats from the matrix


def stale(lock: Lock, cell: Cell) -> tuple[str, ...]:
    """Names of the inputs that moved since the lock was made, sorted: changed, new or gone.

    The matrix knows sdists that this stack never asked for: only those that the lock was made with count.
    """
    new = {name for name in cell.inputs if not name.startswith("sdist ")}
    names = lock.inputs.keys() | new
    moved = {name for name in names if lock.inputs.get(name) != cell.inputs.get(name)}
    if lock.winners != winners_among(cell.winners, lock.wheels):
        moved.add("winners")
    if any(wheel.misrecorded != cell.misrecorded.get(wheel.file.sha256) for wheel in lock.wheels):
        moved.add("misrecorded")
    return tuple(sorted(moved))


def contradictions(lock: Lock, cell: Cell) -> tuple[str, ...]:
    """What a lock that is not stale says otherwise than its cell: only an edit can have done that.

    Versions, hashes and packages are the lock's own to say. Raises LockError for a platform that wheels do not know.
    """
    return tuple(_contradictions(lock, cell))


def _contradictions(lock: Lock, cell: Cell) -> Iterator[str]:
    repeated = (
        ("cell", lock.cell, cell.id),
        ("image", lock.image, cell.image),
        ("axes", dict(lock.axes), dict(cell.axes)),
        *((f"base.{name}", getattr(lock.base, name), getattr(cell.base, name)) for name in BASE),
        ("gpu.capabilities", lock.gpu and lock.gpu.capabilities, _capabilities(cell)),
        (
            "env",
            [(each.name, each.value, each.because) for each in lock.env],
            [(each.name, each.value, each.because) for each in cell.env],
        ),
    )
    yield from (name for name, said, meant in repeated if said != meant)
    wheels = {wheel.name: wheel for wheel in lock.wheels}
    for requirement in cell.requirements:
        if not _answers(wheels.get(requirement.component.package), requirement):
            yield f"wheel {requirement.component.package}"
    target = Target.of(cell.platform, cell.base, lock.base)
    yield from (wheel.file.filename for wheel in lock.wheels if target.best([(wheel.file.filename, wheel)]) is None)


def _capabilities(cell: Cell) -> tuple[str, ...] | None:
    return tuple(gpu.capability for gpu in cell.gpus) if cell.cuda_version else None


def _source(wheel: LockedWheel) -> LockedGit | None:
    return wheel.sdist.git if wheel.sdist else None


def _answers(wheel: LockedWheel | None, requirement: Requirement) -> bool:
    return (
        wheel is not None
        and wheel.because == requirement.because
        and wheel.file.index == (GIT if requirement.git else requirement.index)
        and _source(wheel) == (requirement.git and LockedGit.of(requirement.git))
        and SpecifierSet(requirement.specifier).contains(wheel.version, prereleases=True)
    )
