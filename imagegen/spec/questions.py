"""A matrix in the terms of imagegen.compat's questions: its cells, the names that users type, and possible changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from packaging.version import Version

from imagegen.compat.facts import Facts
from imagegen.compat.question import NamedCell, PinnedFile, Question, parse_words
from imagegen.compat.rule import NO_GLIBC, SURROUNDINGS, cuda_version
from imagegen.compat.suggestions import PlatformChoices
from imagegen.compat.systems import System
from imagegen.compat.vocabulary import GpuNames, Vocabulary, plain
from imagegen.core.errors import UsageError
from imagegen.spec.cell_facts import facts_of_cell
from imagegen.spec.cells import Matrix
from imagegen.spec.model import Cell

T = TypeVar("T")


def split_cell(words: Sequence[str], matrix: Matrix) -> tuple[Cell | None, str, list[str]]:
    """Return the cell that a word names by its id or the name of its image, that word ("": none), and the other words.

    Raises UsageError for several cells.
    """
    cells = {cell.id: cell for cell in matrix.all_cells}
    names = [word for word in words if matrix.defaults.get(word, word) in cells]
    if len(names) > 1:
        raise UsageError(
            f"{' and '.join(names)} are several cells", code="usage-several-cells", fix="ask about one at a time"
        )
    name = names[0] if names else ""
    return cells.get(matrix.defaults.get(name, name)), name, [word for word in words if word != name]


def parse_question(
    words: Sequence[str],
    sets: Sequence[str],
    matrix: Matrix,
    vocabulary: Vocabulary,
    *,
    facts: Facts | None = None,
    file: PinnedFile | None = None,
) -> Question:
    """Return the question of the words, one of which may name a cell, and of `--set` options. Raises UsageError.

    `facts` are the facts of the cell that the word names, if its requirements do not state them. With `file`, the
    question is about its pins, and no word may name a cell.
    """
    cell, name, words = split_cell(words, matrix)
    if cell and file:
        message = f"--lock is for a file of pins, and {name} is a cell"
        raise UsageError(message, code="usage-option-conflict", fix="leave out one of them")
    if cell is None:
        return parse_words(words, sets, vocabulary, file=file)
    by_platform = {other.platform: other.id for other in matrix.on_platforms(cell, "all")}
    named = NamedCell(cell.id, facts or facts_of_cell(cell), by_platform, name == cell.id)
    return parse_words(words, sets, vocabulary, named)


def vocabulary_of(matrix: Matrix, harvested: Iterable[str] = ()) -> Vocabulary:
    """Return the vocabulary of a matrix; `harvested` are packages with metadata, components or not."""
    components = matrix.components.values()
    names = {name: name for name in harvested}
    for component in components:
        names |= dict.fromkeys(component.aliases, component.package)
    names |= {component.package: component.package for component in components}
    names |= {name: component.package for name, component in matrix.components.items()}
    gpus = GpuNames(tuple(matrix.gpus.values()), matrix.accelerators)
    bases = {cell.base.name: cell.base for cell in matrix.all_cells}
    systems = {name: System(name, base.glibc, libstdcxx=base.libstdcxx) for name, base in bases.items()}
    for system in matrix.systems.values():
        systems |= {form: system for name in (system.name, *system.aliases) for form in (name, name.replace(".", ""))}
    cells = (*matrix.defaults, *(cell.id for cell in matrix.all_cells))
    written = {plain(name): name for name in (*SURROUNDINGS, *names, *gpus.families, *matrix.systems, *cells)}
    several = (component for component in components if component.index or component.local or component.compiled)
    labelled = frozenset(component.package for component in several)
    from_sources = frozenset(component.package for component in components if component.git or component.compiled)
    return Vocabulary(_plain(names), gpus, _plain(systems), labelled, written, matrix.ngc_images, from_sources)


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
