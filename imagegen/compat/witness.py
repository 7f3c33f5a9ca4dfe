"""An image of the matrix as an example of a combination whose packages are all free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from packaging.version import Version

from imagegen.compat.facts import Fact, Facts
from imagegen.compat.question import Question
from imagegen.spec.cell_facts import facts_of_cell
from imagegen.spec.cells import Matrix


class Witness(NamedTuple):
    """Versions of the named packages, and of CUDA and Python, that images of the matrix have."""

    versions: Mapping[str, str]
    images: tuple[str, ...]


def find_witness(question: Question, matrix: Matrix) -> Witness | None:
    """Return the newest versions that a default cell has of all that is asked about, and the images that have them.

    None if a package of the question has a specifier, or if no image has all.
    """
    if question.cell or any(question.requested.get(name) for name in question.facts.packages):
        return None
    images: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for image, cell_id in matrix.defaults.items():
        cell = next(cell for cell in matrix.all_cells if cell.id == cell_id)
        facts = facts_of_cell(cell)
        if not cell.environments and _has_all(facts, question.facts):
            versions = {name: facts.packages[name].text for name in question.facts.packages}
            versions |= {name: value for name, value in cell.axes.items() if name in ("cuda", "python")}
            images.setdefault(tuple(versions.items()), []).append(image)
    if not images:
        return None
    newest = max(images, key=lambda versions: [Version(dict(versions)[name]) for name in question.facts.packages])
    return Witness(dict(newest), tuple(images[newest]))


def _has_all(facts: Facts, requested: Facts) -> bool:
    """Return whether a cell has the packages, the GPUs and the surroundings that are requested."""
    gpus = {gpu.name for gpu in facts.gpus}
    return (
        all(_is_pinned(facts.packages.get(name)) for name in requested.packages)
        and all(gpu.name in gpus for gpu in requested.gpus)
        and all(
            name not in facts.versions or not facts.versions[name].range.is_disjoint(fact.range)
            for name, fact in requested.versions.items()
        )
        and all(facts.names.get(name, value) == value for name, value in requested.names.items())
    )


def _is_pinned(fact: Fact | None) -> bool:
    return fact is not None and fact.text[:1].isdigit()
