"""Verdicts of the rules on cells and on facts of locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from imagegen import compat as compatibility
from imagegen import spec as matrix
from imagegen.app.matrices import Matrices
from imagegen.app.project import ProjectContext
from imagegen.core.errors import IncompatibleError, LockError, ProjectFileError
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.compat import CellAnswer, Conflict, Facts, Verdict


class Judge:
    """The judge of cells and locks; it keeps the warnings of its verdicts for `print_warnings`."""

    def __init__(self, project: ProjectContext, matrices: Matrices) -> None:
        self._project, self._matrices = project, matrices
        self._warnings: dict[str, tuple[Conflict, ...]] = {}  # by cell

    def verdict(self, facts: Facts) -> Verdict:
        """Return the verdict of the rules on facts of a cell or of a lock."""
        return compatibility.judge(self._matrices.knowledge, facts)

    def cell_answers(self, cells: Sequence[Cell]) -> dict[str, CellAnswer]:
        """Return the answers of rules and metadata for cells of the matrix, by cell id."""
        resolved = [cell for cell in cells if not cell.stack and not cell.environments]
        names = ",".join(cell.id for cell in resolved)
        answers = self._project.matrix_results.of(
            "answers", names, lambda: matrix.cell_answers(resolved, self._matrices.knowledge)
        )
        for cell in cells:
            if cell.stack:
                answers = answers | {cell.id: self._stack_answer(cell)}
            elif cell.environments:
                parts = self.cell_answers([environment.cell for environment in cell.environments])
                answers = answers | {cell.id: compatibility.worst_answer(parts)}
        return answers

    def _stack_answer(self, cell: Cell) -> CellAnswer:
        try:
            facts = self.facts_of(cell)
        except (LockError, ProjectFileError) as error:
            return compatibility.CellAnswer("unknown", error.summary)
        return compatibility.answer_each({cell.id: facts}, self._matrices.knowledge)[cell.id]

    def facts_of(self, cell: Cell) -> Facts:
        """Return the facts of a cell before it is locked, which every verdict on the cell is about.

        Raises LockError, ProjectFileError.
        """
        if not cell.stack:
            return matrix.facts_of_cell(cell)
        from imagegen.lock.stack import facts_of_stack  # late: few cells have such a file

        return facts_of_stack(cell, self._project.directory, self._matrices.knowledge_files.metadata)

    def require_acceptable(self, cell: Cell) -> None:
        """Raise IncompatibleError if the cell breaks, or if its own lock file has versions that pip refuses.

        uv decides about requirements between packages of other cells. Raises as `facts_of`.
        """
        explanation = compatibility.explain(compatibility.Question({}, self.facts_of(cell)), self._matrices.knowledge)
        if explanation.kind == "breaks" or cell.stack:
            self.require_accepted(cell, compatibility.Verdict(explanation.answer, explanation.conflicts))

    def require_compatible(self, cell: Cell, facts: Facts) -> None:
        """Raise IncompatibleError when a rule rejects the cell; keep warnings for `print_warnings`."""
        self.require_accepted(cell, self.verdict(facts))

    def require_accepted(self, cell: Cell, verdict: Verdict) -> None:
        """Raise IncompatibleError if the verdict rejects the cell; keep its warnings."""
        self._warnings[cell.id] = verdict.conflicts
        if verdict.answer == "incompatible":
            text = "\n".join(map(str, self._warnings.pop(cell.id)))
            near = matrix.nearest_cell(self._matrices.rules, cell, self._matrices.matrix.cells())
            fix = f"the nearest cell that no rule refuses is {near.id}" if near else None
            raise IncompatibleError(f"{cell.id} cannot work", code="incompatible", why=text, fix=fix)

    def print_warnings(self, *, explain: bool) -> None:
        """Print the warnings of rules about the judged cells: in full, or one line per cell."""
        for name, conflicts in self._warnings.items():
            if conflicts and explain:
                self._project.progress.say(f"{name}:\n" + "\n".join(map(str, conflicts)))
            elif conflicts:
                rules = ", ".join(rule.id for conflict in conflicts for rule in conflict.rules)
                self._project.progress.say(f"warning: {name}: {rules}; explained by `imagegen show {name}`")
