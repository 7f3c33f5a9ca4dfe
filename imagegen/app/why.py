"""Answer a question about each environment of an image, with the state of its cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from imagegen.app.cell_states import CellStatus
from imagegen.app.session import Session
from imagegen.app.states import CellState, cell_state
from imagegen.compat.answers import QuestionAnswer, answer
from imagegen.compat.cells import cell_answer
from imagegen.spec.model import Cell
from imagegen.spec.questions import split_cell


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
    cell, name, _ = split_cell(words, session.matrix)
    subjects = {"": (cell, words)}
    if cell and cell.environments:
        subjects = {
            environment.name: (environment.cell, [environment.cell.id if word == name else word for word in words])
            for environment in cell.environments
        }
    answers = {}
    for environment_name, (subject, subject_words) in subjects.items():
        facts = session.judge.facts_of(subject) if subject else None
        question_answer = answer(session.matrices, subject_words, sets, model, facts)
        answers[environment_name] = WhyAnswer(question_answer, _state(session, subject, question_answer))
    return answers


def _state(session: Session, cell: Cell | None, question_answer: QuestionAnswer) -> CellState | None:
    """Return the state of the cell that is asked about; a changed one has no lock, and on another base none at all."""
    question, whole = question_answer.question, cell_answer(question_answer.explanation)
    if cell is None or "base" in question.requested:
        return None
    return cell_state(whole) if question.requested else CellStatus(session, cell, whole).state
