"""Answer whether a combination or a cell can work, why not, and which nearest combinations do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from imagegen.app.matrices import Matrices
from imagegen.app.session import Session
from imagegen.compat import (
    CellAnswer,
    Explanation,
    Question,
    complete,
    complete_names,
    explain,
    missing_metadata,
    suggest,
)
from imagegen.compat.model_types import split_model_types
from imagegen.core.context import Context
from imagegen.core.errors import UsageError
from imagegen.spec.cells import Matrix
from imagegen.spec.questions import parse_question, platform_choices, vocabulary_of

if TYPE_CHECKING:
    from imagegen.app.states import CellState
    from imagegen.wheels.compiling import NeededBuild

if TYPE_CHECKING:
    from imagegen.app.states import CellState
    from imagegen.wheels.compiling import NeededBuild


class WorkingCombination(NamedTuple):
    """A combination that works, with its changes by name, the command that asks about it, and its builds."""

    changes: dict[str, str]
    command: str
    builds: tuple[NeededBuild, ...]


class WhyAnswer(NamedTuple):
    """The answer to a question, with the state of its cell and the nearest combinations that work."""

    question: Question
    explanation: Explanation
    state: CellState | None
    nearest: Sequence[WorkingCombination]

    @property
    def exit_code(self) -> int:
        if self.explanation.answer == "incompatible" or (self.state and self.state.name == "conflict"):
            return 1
        return 2 if self.explanation.answer == "unknown" else 0


def answer_by_environment(
    session: Session, words: Sequence[str], sets: Sequence[str], model: str
) -> dict[str, WhyAnswer]:
    """Return the answer about each environment of the image that the words name, by its name.

    The name is "" if they name no image with several environments. `sets` are changes of a cell, `model` is a model
    type or "". Raises UsageError, MatrixError.
    """
    return {name: answer(session, asked, sets, model) for name, asked in _environments(session.matrices, words).items()}


def answer(session: Session, words: Sequence[str], sets: Sequence[str], model: str) -> WhyAnswer:
    """Return the answer about a combination or a cell. The arguments are as in `answer_by_environment`."""
    question = replace(_question(session.matrices, words, sets), model=model)
    explanation = explain(question, session.matrices.knowledge)
    state = _state(session, question, explanation)
    nearest = [] if explanation.answer == "compatible" else _nearest(session.matrices, question)
    return WhyAnswer(question, explanation, state, nearest)


def _environments(matrices: Matrices, words: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the words that ask about each environment of the image that they name, by its name.

    If they name no image with several environments, return them by the name "".
    """
    word_of = {matrices.matrix.defaults.get(word, word): word for word in words}
    cells = (cell for cell in matrices.matrix.all_cells if cell.environments and cell.id in word_of)
    if (cell := next(cells, None)) is None:
        return {"": words}
    return {
        environment.name: tuple(environment.cell.id if word == word_of[cell.id] else word for word in words)
        for environment in cell.environments
    }


def _question(matrices: Matrices, words: Sequence[str], sets: Sequence[str]) -> Question:
    """Return the question; the index is asked for the packages and releases that are not known here."""
    matrix = _with_locked_versions(matrices, words)
    parse = partial(parse_question, words, sets, matrix)
    metadata, harvested = matrices.metadata, sorted(matrices.harvested)
    question = complete_names(parse(vocabulary_of(matrix, harvested)), metadata)
    if missing := missing_metadata(question, metadata):
        from imagegen.index_metadata import on_demand  # late, for the network

        context = Context(matrices.project.store, matrices.project.settings, matrices.project.progress)
        packages = on_demand.look_up(missing, context, today(), question.facts.extras)
        for package in packages.values():
            metadata.add(package)
        question = complete_names(parse(vocabulary_of(matrix, [*harvested, *packages])), metadata)
    return complete(question, matrices.knowledge)


def _with_locked_versions(matrices: Matrices, words: Sequence[str]) -> Matrix:
    """Return the matrix; cells that the words name have the versions of the lock file that is their stack."""
    cell_ids = {matrices.matrix.defaults.get(word, word) for word in words}
    if not any(cell.stack and cell.id in cell_ids for cell in matrices.matrix.all_cells):
        return matrices.matrix
    from imagegen.projects.stack import with_known_versions  # late: few cells have such a file

    return replace(
        matrices.matrix,
        all_cells=tuple(
            with_known_versions(cell, matrices.project.directory, matrices.metadata)
            if cell.stack and cell.id in cell_ids
            else cell
            for cell in matrices.matrix.all_cells
        ),
    )


def today() -> str:
    return str(dt.datetime.now(dt.UTC).date())


def _state(session: Session, question: Question, explanation: Explanation) -> CellState | None:
    """Return the state of the cell that is asked about; a changed one has no lock, and on another base none at all."""
    if question.cell is None or "base" in question.requested:
        return None
    cell = session.matrix.select_one(question.cell.id)  # of the matrix, as locks are compared with it
    from imagegen.app import cell_states, states  # late, for locks, builds and attestations

    reasons = explanation.unknown
    if explanation.answer == "incompatible" or not reasons:
        worst = "error" if explanation.answer == "incompatible" else "suspicion"
        rule_groups = (conflict.rules for conflict in explanation.conflicts if conflict.severity == worst)
        reasons = tuple(rule.because for rules in rule_groups for rule in rules)
    answer = CellAnswer(explanation.answer, " ".join(reasons))
    if question.requested:
        return states.cell_state(answer)
    return cell_states.CellStatus(session, cell, answer).state


def _nearest(matrices: Matrices, question: Question) -> Sequence[WorkingCombination]:
    """Return the nearest combinations that work. Each is judged as a question, so that none has an unknown answer."""
    nearest = []
    for suggestion in suggest(question, matrices.knowledge, platform_choices(matrices.matrix)):
        from imagegen.wheels.compiling import needed_builds  # late, for the readers of wheels

        changed = complete(question.changed(suggestion.changes), matrices.knowledge)
        if explain(changed, matrices.knowledge).rest == "compatible":
            builds = tuple(needed_builds(changed, matrices.matrix, lambda: matrices.wheel_catalogue))
            command = question.command(suggestion.changes)
            nearest.append(WorkingCombination(dict(suggestion.changes), command, builds))
    return nearest


def split_model_type(words: Sequence[str], sets: Sequence[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the model type among the words and `--set` options ("": none), and the rest of each."""
    (in_words, words), (in_sets, sets) = split_model_types(words), split_model_types(sets)
    names = sorted({*in_words, *in_sets})
    if len(names) > 1:
        raise UsageError(
            f"{' and '.join(names)} are several model types", code="usage-several-models", fix="ask about one at a time"
        )
    return names[0] if names else "", tuple(words), tuple(sets)
