"""The declared contents of a cell without a lock. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from imagegen.core.net import package_index
from imagegen.spec.model import Cell, Requirement


@dataclass(frozen=True)
class Constraint:
    """A component that the matrix requires, and the versions or the source that it allows."""

    name: str  # of the distribution, with extras: "ray[default]"
    allowed: str  # "==2.13.0", "any version", "v0.9.0 of https://github.com/..., commit 0123456789ab"
    because: str


@dataclass(frozen=True)
class UnlockedCell:
    """A cell without a readable lock, with its missing addresses and the locked cells of its image."""

    cell: Cell
    missing: tuple[str, ...]  # addresses, as `states.missing_here` returns them
    locked: tuple[str, ...]  # the locked cells of its image, as `nearest` orders them


def constraints(cell: Cell) -> tuple[Constraint, ...]:
    """Return the matrix's requirements on the cell's packages."""
    return tuple(
        Constraint(
            f"{name}[{','.join(requirement.extras)}]" if requirement.extras else name,
            _allowed(requirement),
            requirement.because,
        )
        for requirement in cell.requirements
        for name in [requirement.component.package]
    )


def _allowed(requirement: Requirement) -> str:
    if requirement.own:
        return f"{requirement.own.path} of the project"
    if requirement.address:
        return f"{requirement.address.version} from {requirement.address.url}"
    if requirement.git:
        return f"{requirement.git.name} of {requirement.git.url}, commit {requirement.git.commit[:12]}"
    index = f", index {requirement.index}" if requirement.index != package_index.DEFAULT else ""
    return (
        f"{requirement.specifier or 'any version'}{index}{', compiled from source' if requirement.from_source else ''}"
    )


def declarations(cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield the other declarations of the cell that decide its packages, each with the reason."""
    for environment in cell.environments:
        yield f"environment {environment.name}: {environment.cell.id}", environment.because
    if cell.stack:
        yield f"the packages of {cell.stack.path}", "Its versions and files are taken unchanged."
    elif owner := cell.from_uv_lock:
        yield f"the packages of {owner.uv_lock} of {owner.component.package}", "Its versions are taken unchanged."
    yield from decisions(cell)
    yield from ((f"Debian package {name}", because) for name, because in cell.packages.items())
    yield from ((f"{patch.package} patched by {patch.source}", patch.because) for patch in cell.patches)
    yield from ((f"{copy.path} from {copy.source}", copy.because) for copy in cell.copies)


def decisions(cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield the omissions, overrides and accepted rules of the cell, each with the reason."""
    yield from ((f"without {name}", because) for name, because in cell.omits.items())
    yield from ((str(override), override.reason) for override in cell.overrides)
    yield from ((f"against rule {name}", because) for name, because in cell.accepts.items())


def nearest(cell: Cell, cells: Iterable[Cell], locked: Collection[str]) -> tuple[str, ...]:
    """Return the ids of the locked cells of the same image, those that differ on the fewest axes first."""
    siblings = [
        candidate
        for candidate in cells
        if candidate.image == cell.image and candidate.id in locked and candidate.id != cell.id
    ]
    distances = {
        sibling.id: sum(cell.axes[name] != sibling.axes.get(name) for name in cell.axes) for sibling in siblings
    }
    return tuple(sorted(distances, key=lambda name: (distances[name], name)))
