"""The locks of cells: find and read their files, and check whether builds accept them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from imagegen import lock
from imagegen.app.judge import Judge
from imagegen.app.matrices import Matrices
from imagegen.app.project import ProjectContext, exists
from imagegen.core import compiled, data
from imagegen.core.data import shipped
from imagegen.core.deferred import dataclass
from imagegen.core.errors import LockError
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.compat import Verdict
    from imagegen.lock.model import Lock


@dataclass(frozen=True)
class LockCheck:
    """The first kind of fault that a lock has, as names of inputs or fields; else the verdict of the rules on it."""

    stale: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()  # with its cell
    edited: tuple[str, ...] = ()
    verdict: Verdict | None = None


class LockFiles:
    """The locks of the project and the shipped ones, by cell. A lock of the project hides a shipped one."""

    def __init__(self, project: ProjectContext, matrices: Matrices, judge: Judge) -> None:
        self.project, self._matrices, self._judge = project, matrices, judge
        self._read: dict[str, tuple[Lock, str]] = {}  # by cell, its lock and the digest of the file

    def path(self, cell: Cell) -> Path:
        """Return the path of the project's lock, or of the shipped one if only that exists."""
        project_lock = self._project_path(cell)
        shipped_lock = shipped("locks") / f"{cell.id}.toml"
        return shipped_lock if shipped_lock.exists() and not exists(project_lock) else project_lock

    def _project_path(self, cell: Cell) -> Path:
        return self.project.directory / "locks" / f"{cell.id}.toml"

    def is_in_project(self, cell: Cell) -> bool:
        """Return whether the entry of the cell's image, or its lock, is in the project and not only shipped."""
        return exists(self._project_path(cell)) or self._matrices.is_in_project(cell.image)

    def select(self, pattern: str | None) -> Sequence[Cell]:
        """Return the matching cells. Without a pattern return the project's cells, or all cells if it has none."""
        if pattern:
            return self._matrices.matrix.select(pattern)
        cells = self._matrices.matrix.all_cells
        return [cell for cell in cells if self.is_in_project(cell)] or cells

    def require_project_cells(self, command: str) -> Sequence[Cell]:
        """Return the project's cells with a lock. Raises LockError if there are none; `command` takes names."""
        cells = [cell for cell in self._matrices.matrix.all_cells if self.is_in_project(cell) and self.has(cell)]
        if cells:
            return cells
        raise LockError(
            "this project has locked no cell",
            code="lock-missing",
            where=str(self.project.directory / "locks"),
            why="without names, the command takes the cells of the project, and no shipped ones",
            fix="`imagegen lock IMAGE` locks an image of the project's matrices/ or a shipped one; "
            f"`{command} GLOB` takes shipped cells",
        )

    def has(self, cell: Cell) -> bool:
        """Return whether anything is at the path of the cell's lock."""
        return exists(self.path(cell))

    def text(self, cell: Cell) -> str:
        """Return the text of the cell's lock. Raises LockError if it cannot be read."""
        path = self.path(cell)
        return lock.read_text(path, data.project_directory(path.parent))

    def find(self, cell: Cell) -> Lock | None:
        """Return the cell's lock; None if it has none. Raises LockError if it cannot be read."""
        path = self.path(cell)
        if not self.has(cell):
            return None
        text = self.text(cell)
        digest = compiled.digest_of(text)
        read, kept_digest = self._read.get(cell.id, (None, None))
        if read and kept_digest == digest and not cell.environments:
            return read
        if cell.environments:
            locked = self._join(cell, text, path)
        else:
            locked = self.project.results.of("lock", os.path.abspath(path), [digest], lambda: _parse(text, path))
        self._read[cell.id] = locked, digest
        return locked

    def _join(self, cell: Cell, text: str, path: Path) -> Lock:
        """Return the lock of an image with several environments. Raises LockError if a cell of one has none."""
        from imagegen.lock.environments import join

        inputs = [compiled.digest_of(text)]
        file = self.project.results.of(
            "environments", os.path.abspath(path), inputs, lambda: lock.loads_combined(text, path)
        )
        cells = [environment.cell for environment in cell.environments]
        return join(cell, file, [self.find(part) or self._raise_missing(part) for part in cells])

    def _raise_missing(self, cell: Cell) -> NoReturn:
        where = str(self.path(cell))
        raise LockError(f"{cell.id} has no lock", code="lock-missing", where=where, fix=f"`imagegen lock {cell.id}`")

    def digest_of_inputs(self, locked: Lock, cell: Cell) -> str | None:
        """Return the digest of a lock's file, of all matrices and recipes and of the code.

        Return None if one is not known, because the lock was made and not read.
        """
        digests = [compiled.digest_of_code(), self.project.matrix_results.digest, self._digest_of_file(locked, cell)]
        digests += [
            self.digest_of_inputs(environment_lock, part)
            for part, environment_lock in locked.by_cell(cell)
            if environment_lock is not locked
        ]
        return compiled.digest_of(*filter(None, digests)) if all(digests) else None

    def _digest_of_file(self, locked: Lock, cell: Cell) -> str | None:
        read, digest = self._read.get(cell.id, (None, None))
        return digest if read is locked else None

    def check(self, locked: Lock, cell: Cell) -> LockCheck:
        """Check a lock. Raises LockError for a platform without wheels."""
        check, digest_of = self._check, self._digest_of_file
        if cell.environments:
            check, digest_of = self._check_environments, self.digest_of_inputs
        path, digest = os.path.abspath(self.path(cell)), digest_of(locked, cell)
        return self.project.matrix_results.of("lock-check", path, lambda: check(locked, cell), digest)

    def _check(self, locked: Lock, cell: Cell) -> LockCheck:
        if stale := lock.stale(locked, cell):
            return LockCheck(stale=stale)
        if contradictions := lock.contradictions(locked, cell):
            return LockCheck(contradictions=contradictions)
        if edited := self._edited(locked, cell):
            return LockCheck(edited=edited)
        return LockCheck(verdict=self._judge.verdict(lock.facts_of_lock(locked, cell)))

    def _check_environments(self, locked: Lock, cell: Cell) -> LockCheck:
        """Check the lock of an image with several environments, and the locks of their cells."""
        from imagegen.image import layers

        checked = {part.id: self.check(part_lock, part) for part, part_lock in locked.by_cell(cell)}
        stale, contradictions, edited = (
            tuple(f"{name}: {field}" for name, check in checked.items() for field in getattr(check, kind))
            for kind in ("stale", "contradictions", "edited")
        )
        if stale or contradictions or edited:
            return LockCheck(stale, contradictions, edited)
        if locked.moved:
            return LockCheck(stale=tuple(f"environment {name}" for name in locked.moved))
        if wrong := layers.record_contradictions(locked):
            return LockCheck(edited=wrong)
        verdicts = [result.verdict for result in checked.values() if result.verdict]
        refused = (verdict for verdict in verdicts if verdict.answer == "incompatible")
        return LockCheck(
            verdict=next(refused, max(verdicts, key=lambda candidate: len(candidate.conflicts), default=None))
        )

    def _edited(self, locked: Lock, cell: Cell) -> tuple[str, ...]:
        """Return the fields in which a lock contradicts rules or catalogue, or its record the rest of it.

        The lock is neither stale nor does it contradict its cell.
        """
        from imagegen.image import layers  # late, here and below: a question about no cell needs neither
        from imagegen.lock.freshness import gpus_of

        wrong: list[str] = []
        facts = lock.facts_of_lock(locked, cell)
        if locked.gpu != gpus_of(cell, self._matrices.matrix.rules, facts):
            wrong.append("gpu.driver")
        if any(wheel.file.url for wheel in locked.wheels):
            from imagegen.wheels.search import uncatalogued  # late, for the readers of wheels

            wrong += uncatalogued(locked, cell, self._matrices.wheel_catalogue)
        return (*wrong, *layers.record_contradictions(locked))

    def fresh(self, cell: Cell) -> Lock:
        """Return the cell's lock. Raises LockError or IncompatibleError when it is missing, stale or breaks a rule."""
        locked = self.find(cell) or self._raise_missing(cell)
        self.require_fresh(locked, cell)
        return locked

    def require_fresh(self, image_lock: Lock, cell: Cell) -> None:
        """Raise LockError or IncompatibleError if a lock is not sound, or if it has not the project's own packages.

        Those packages come into the store.
        """
        self.require_sound(image_lock, cell)
        for part, locked in image_lock.by_cell(cell):
            from imagegen.lock.model import LOCAL  # late: only a lock needs it

            if any(wheel.file.index == LOCAL for wheel in locked.wheels):  # else no store is needed
                lock.require_own_packages(locked, part, self.project.directory, self.project.store)
            if part.stack:
                from imagegen.lock.stack import read_stack  # late: an ordinary build reads no such file

                read_stack(part.stack, self.project.directory).require_unchanged(locked, part)

    def require_sound(self, image_lock: Lock, cell: Cell) -> None:
        """Raise LockError or IncompatibleError where a lock is stale or edited, or breaks a rule."""
        checked = self.check(image_lock, cell)
        self.require_unedited(checked, image_lock, cell)
        if cell.environments:
            for part, locked in image_lock.by_cell(cell):
                self.require_sound(locked, part)
        elif checked.verdict:
            self._judge.require_accepted(cell, checked.verdict)

    def require_unedited(self, checked: LockCheck, locked: Lock, cell: Cell) -> None:
        """Raise LockError where a lock is stale or was edited."""
        where = str(self.path(cell))
        if checked.stale or checked.contradictions:
            moved = lock.moved_values(locked, cell) if checked.stale and not cell.environments else ()
            rows = [(key, values, self._matrices.location(cell.image, key)) for key, values in moved]
            texts = [
                f"  {' '.join(key)}: {values}{f' ({location})' if location else ''}" for key, values, location in rows
            ]
            raise lock.outdated(cell, checked.stale, checked.contradictions, where, texts)
        if checked.edited:
            raise LockError(
                f"the lock of {cell.id} was edited",
                code="lock-edited",
                where=where,
                why=f"rules, catalogue and the rest of the lock say otherwise about {', '.join(checked.edited)}",
                fix=f"restore it from version control, or lock again: `imagegen lock {cell.id} --record`, with "
                "--upgrade-package NAME for a direct download",
            )


def _parse(text: str, path: Path) -> Lock:
    locked = lock.loads(text, path)
    lock.inputs_hash(locked)  # so that the kept result has it
    return locked
