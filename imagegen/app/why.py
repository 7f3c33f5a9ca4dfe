"""Answer a question about each environment of an image, with the state of its cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from imagegen.app.matrices import Matrices
from imagegen.app.session import Session
from imagegen.compat.answers import QuestionAnswer, answer
from imagegen.compat.question import Question
from imagegen.compat.verdict import CellAnswer, reasons_of
from imagegen.compat.why import Explanation
from imagegen.spec.cells import Matrix

if TYPE_CHECKING:
    from imagegen.app.states import CellState


class WhyAnswer(NamedTuple):
    """The answer to a question, with the state of its cell."""

    answer: QuestionAnswer
    state: CellState | None

    @property
    def exit_code(self) -> int:
        return 1 if self.state and self.state.name == "conflict" else self.answer.exit_code


def answer_by_environment(
    session: Session, words: Sequence[str], sets: Sequence[str], model: str
) -> dict[str, WhyAnswer]:
    """Return the answer about each environment of the image that the words name, by its name.

    The name is "" if they name no image with several environments. `sets` are changes of a cell, `model` is a model
    type or "". Raises UsageError, MatrixError.
    """
    answers = {}
    for name, words_of_cell in _words_by_environment(session.matrix, words).items():
        matrix = _with_locked_versions(session.matrices, words_of_cell)
        question_answer = answer(session.matrices, words_of_cell, sets, model, matrix)
        state = _state_of_cell(session, question_answer.question, question_answer.explanation)
        answers[name] = WhyAnswer(question_answer, state)
    return answers


def _words_by_environment(matrix: Matrix, words: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the words that ask about each environment of the image that they name, by its name.

    If they name no image with several environments, return them by the name "".
    """
    word_of = {matrix.defaults.get(word, word): word for word in words}
    cells = (cell for cell in matrix.all_cells if cell.environments and cell.id in word_of)
    if (cell := next(cells, None)) is None:
        return {"": words}
    return {
        environment.name: tuple(environment.cell.id if word == word_of[cell.id] else word for word in words)
        for environment in cell.environments
    }


def _with_locked_versions(matrices: Matrices, words: Sequence[str]) -> Matrix:
    """Return the matrix; cells that the words name have the versions of the lock file that is their stack."""
    cell_ids = {matrices.matrix.defaults.get(word, word) for word in words}
    if not any(cell.stack and cell.id in cell_ids for cell in matrices.matrix.all_cells):
        return matrices.matrix
    from imagegen.lock.stack import with_known_versions  # late: few cells have such a file

    return replace(
        matrices.matrix,
        all_cells=tuple(
            with_known_versions(cell, matrices.project.directory, matrices.knowledge_files.metadata)
            if cell.stack and cell.id in cell_ids
            else cell
            for cell in matrices.matrix.all_cells
        ),
    )


def _state_of_cell(session: Session, question: Question, explanation: Explanation) -> CellState | None:
    """Return the state of the cell that is asked about; a changed one has no lock, and on another base none at all."""
    if question.cell is None or "base" in question.requested:
        return None
    cell = session.matrix.select_one(question.cell.id)  # of the matrix, as locks are compared with it
    from imagegen.app import cell_states, states  # late, for locks, builds and attestations

    unknown = "" if explanation.answer == "incompatible" else " ".join(explanation.unknown)
    reasons = unknown or reasons_of(explanation.answer, explanation.conflicts)
    cell_answer = CellAnswer(explanation.answer, reasons)
    if question.requested:
        return states.cell_state(cell_answer)
    return cell_states.CellStatus(session, cell, cell_answer).state
