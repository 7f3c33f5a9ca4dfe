"""A matrix in the terms of imagegen.compat's questions: its cells, the names that users type, and possible changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from packaging.version import Version

from imagegen.compat.question import NamedCell, Question, parse_words
from imagegen.compat.rule import NO_GLIBC, SURROUNDINGS, cuda_version
from imagegen.compat.suggestions import PlatformChoices
from imagegen.compat.systems import System
from imagegen.compat.vocabulary import GpuNames, Vocabulary, plain
from imagegen.core.errors import UsageError
from imagegen.spec.cell_facts import facts_of_cell
from imagegen.spec.cells import Matrix
from imagegen.spec.model import Cell

T = TypeVar("T")


def parse_question(words: Sequence[str], sets: Sequence[str], matrix: Matrix, vocabulary: Vocabulary) -> Question:
    """Return the question of the words, one of which may name a cell, and of `--set` options. Raises UsageError."""
    cells = {cell.id: cell for cell in matrix.all_cells}
    cells |= {name: matrix.select(name)[0] for name in matrix.defaults}
    cell_names = [word for word in words if word in cells]
    if len(cell_names) > 1:
        raise UsageError(
            f"{' and '.join(cell_names)} are several cells", code="usage-several-cells", fix="ask about one at a time"
        )
    named = _named_cell(cells[cell_names[0]], matrix, words) if cell_names else None
    return parse_words([word for word in words if word not in cells], sets, vocabulary, named)


def _named_cell(cell: Cell, matrix: Matrix, words: Sequence[str]) -> NamedCell:
    by_platform = {other.platform: other.id for other in matrix.on_platforms(cell, "all")}
    return NamedCell(cell.id, facts_of_cell(cell), by_platform, cell.id in words)


def vocabulary_of(matrix: Matrix, harvested: Iterable[str] = ()) -> Vocabulary:
    """Return the vocabulary of a matrix; `harvested` are packages with metadata, components or not."""
    components = matrix.components.values()
    names = {name: name for name in harvested}
    for component in components:
        names |= dict.fromkeys(component.aliases, component.package)
    names |= {component.package: component.package for component in components}
    names |= {name: component.package for name, component in matrix.components.items()}
    gpus = GpuNames(tuple(matrix.gpus.values()), matrix.accelerators)
    systems = {cell.base.name: System(cell.base.name, cell.base.glibc) for cell in matrix.all_cells}
    for system in matrix.systems.values():
        systems |= {form: system for name in (system.name, *system.aliases) for form in (name, name.replace(".", ""))}
    cells = (*matrix.defaults, *(cell.id for cell in matrix.all_cells))
    written = {plain(name): name for name in (*SURROUNDINGS, *names, *gpus.families, *matrix.systems, *cells)}
    several = (component for component in components if component.index or component.local or component.compiled)
    labelled = frozenset(component.package for component in several)
    return Vocabulary(_plain(names), gpus, _plain(systems), labelled, written, matrix.ngc_images)


def _plain(entries: Mapping[str, T]) -> dict[str, T]:
    return {plain(name): value for name, value in entries.items()}


def platform_choices(matrix: Matrix) -> PlatformChoices:
    """Return the values of a question's environment that a suggestion may change."""
    cuda = {version for label in matrix.axes["cuda"] if (version := cuda_version(label))}
    systems = (system for system in matrix.systems.values() if system.glibc != NO_GLIBC)
    return PlatformChoices(
        tuple(sorted(cuda, key=Version)),
        tuple(sorted(matrix.axes["python"], key=Version)),
        tuple(sorted(systems, key=lambda system: (Version(system.glibc), system.name))),
    )
