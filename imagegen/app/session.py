"""One invocation with its project and settings, and the data of both, loaded at first use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from imagegen import __version__, lock
from imagegen import compat as compatibility
from imagegen import spec as matrix
from imagegen.compat.rule import Rule
from imagegen.core import compiled, data, net
from imagegen.core.compiled import ResultCache, TreeResults
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import is_source_tree, shipped
from imagegen.core.deferred import dataclass
from imagegen.core.errors import (
    IncompatibleError,
    LockError,
    MatrixError,
    MatrixErrors,
    PackagesGoneError,
    ProjectFileError,
    UsageError,
)
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.spec.cells import Matrix
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.compat import CellAnswer, Conflict, Facts, Knowledge, KnowledgeFiles, Verdict
    from imagegen.lock.model import Lock
    from imagegen.wheels.catalogue import Catalogue

_SHIPPED = ("matrices", "wheels")


@dataclass(frozen=True)
class LockCheck:
    """The first kind of fault that a lock has, as names of inputs or fields; else the verdict of the rules on it."""

    stale: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()  # with its cell
    edited: tuple[str, ...] = ()
    verdict: Verdict | None = None


class Session:
    """One invocation, which every use case takes. Messages go to `progress`."""

    def __init__(self, env: Mapping[str, str], project: Path, progress: Progress) -> None:
        self.env = env
        self.project = project
        self.progress = progress
        self._warnings: dict[str, tuple[Conflict, ...]] = {}  # by cell
        self._read: dict[str, tuple[Lock, str]] = {}  # by cell, its lock and the digest of the file

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_environment(self.env)

    def settings_for(self, cell: Cell) -> Settings:
        """Return the settings with an address for each index that the cell names by alias."""
        return net.with_indexes(self.settings, cell.indexes)

    @cached_property
    def store(self) -> Store:
        return Store(self.settings.store)

    def context_for(self, cell: Cell) -> Context:
        """Return the context of steps for the cell, with the settings of `settings_for`."""
        return Context(self.store, self.settings_for(cell), self.progress)

    @cached_property
    def matrix_directories(self) -> list[Path]:
        """The directories of matrices and recipes, first the shipped ones, then the project's."""
        directories = [shipped(name) for name in _SHIPPED]
        shipped_directories = {directory.resolve() for directory in directories}
        project_directories = (self.project / directory.name for directory in directories)
        return [
            *directories,
            *(path for path in project_directories if _there(path) and path.resolve() not in shipped_directories),
        ]

    def with_matrices(self, directory: Path) -> Session:
        """Return a session of this project with the matrix files of one more directory; it keeps no results."""
        other = Session(self.env, self.project, self.progress)
        other.compiled = ResultCache(None)
        other.matrix_directories = [*self.matrix_directories, directory]
        return other

    @cached_property
    def compiled(self) -> ResultCache:
        """Results over files of matrices and locks that earlier runs kept."""
        try:
            return ResultCache(self.settings.store.parent / "compiled")
        except UsageError:  # questions about a matrix need no settings
            return ResultCache(None)

    @cached_property
    def results(self) -> TreeResults:
        """Results over all files of matrices and recipes.

        All projects without matrices and recipes of their own share one result.
        """
        owner = os.path.abspath(self.project) if len(self.matrix_directories) > len(_SHIPPED) else ""
        return TreeResults(self.compiled, self.matrix_directories, owner)

    @cached_property
    def matrix(self) -> Matrix:
        return self.results.of("matrix", "", self._load_matrix)

    def _load_matrix(self) -> Matrix:
        try:
            loaded = matrix.load(self.matrix_directories)
        except MatrixErrors as error:
            if len(self.matrix_directories) > len(_SHIPPED) and is_source_tree(self.project):
                raise _other_version(self.project, error) from error
            raise
        compatibility.check_rules(loaded.rules, loaded.places)
        return loaded

    @cached_property
    def knowledge_files(self) -> KnowledgeFiles:
        """The harvested data of packages."""
        return compatibility.KnowledgeFiles(self.results)

    @cached_property
    def knowledge(self) -> Knowledge:
        """All data that rules come from."""
        components = {component.package for component in self.matrix.components.values()}
        return self.knowledge_files.knowledge(
            self.matrix.rules, self.matrix.builds, self.matrix.pin_overrides, components
        )

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules about any cell."""
        return compatibility.rules_of_cells(self.knowledge)

    def cell_answers(self, cells: Sequence[Cell]) -> dict[str, CellAnswer]:
        """Return the answers of rules and metadata for cells of the matrix, by cell id."""
        resolved = [cell for cell in cells if not cell.stack and not cell.environments]
        names = ",".join(cell.id for cell in resolved)
        found = self.results.of(
            "answers",
            names,
            lambda: matrix.cell_answers(resolved, self.knowledge),
        )
        for cell in cells:
            if cell.stack:
                found = found | {cell.id: self._stack_answer(cell)}
            elif cell.environments:
                answers = self.cell_answers([environment.cell for environment in cell.environments])
                found = found | {cell.id: compatibility.worst_answer(answers)}
        return found

    def _stack_answer(self, cell: Cell) -> CellAnswer:
        """Return the answer of the rules about the packages of the cell's lock file: as they judge a lock of the cell.

        What the packages require of each other is up to the program that wrote the file.
        """
        try:
            facts = self.facts_of(cell)
        except (LockError, ProjectFileError) as error:
            return compatibility.CellAnswer("unknown", error.summary)
        verdict = self.judge(facts)
        refused = verdict.answer == "incompatible"
        worst = [
            conflict for conflict in verdict.conflicts if conflict.severity == ("error" if refused else "suspicion")
        ]
        reason = " ".join(rule.because for each in worst for rule in each.rules)
        return compatibility.CellAnswer("incompatible" if refused else "unknown" if worst else "compatible", reason)

    def facts_of(self, cell: Cell) -> Facts:
        """Return the facts of a cell before it is locked: of the lock file that it takes, else of its requirements.

        Raises LockError, ProjectFileError.
        """
        if not cell.stack:
            return matrix.facts_of_cell(cell)
        from imagegen.lock.stack import facts_of_stack  # late: few cells have such a file

        return facts_of_stack(cell, self.project)

    @cached_property
    def wheel_catalogue(self) -> Catalogue:
        """The prebuilt wheels whose addresses are known."""
        from imagegen.wheels import catalogue  # late: few commands need it

        directories = [
            matrix_directory for matrix_directory in self.matrix_directories if matrix_directory.name == "wheels"
        ]
        return self.results.of("catalogue", "", lambda: catalogue.load(directories))

    def lock_path(self, cell: Cell) -> Path:
        """Return the path of the project's lock, or of the shipped one if only that exists."""
        project_lock = self.project / "locks" / f"{cell.id}.toml"
        shipped_lock = shipped("locks") / f"{cell.id}.toml"
        return shipped_lock if shipped_lock.exists() and not _there(project_lock) else project_lock

    def is_locked_here(self, cell: Cell) -> bool:
        """Return whether the path of the cell's lock is in the project, and not among the shipped locks."""
        return self.lock_path(cell).is_relative_to(self.project)

    def require_project_cells(self, command: str) -> Sequence[Cell]:
        """Return the cells that the project has locked. Raises LockError if there are none; `command` takes names."""
        cells = [cell for cell in self.matrix.all_cells if self.is_locked_here(cell) and self.has_lock(cell)]
        if cells:
            return cells
        raise LockError(
            "this project has locked no cell",
            code="lock-missing",
            where=str(self.project / "locks"),
            why="without names, the command takes the cells of the project, and no shipped ones",
            fix="`imagegen lock IMAGE` locks an image of the project's matrices/ or a shipped one; "
            f"`{command} GLOB` takes shipped cells",
        )

    def has_lock(self, cell: Cell) -> bool:
        """Return whether anything is at the path of the cell's lock."""
        return _there(self.lock_path(cell))

    def lock_text(self, cell: Cell) -> str:
        """Return the text of the cell's lock. Raises LockError where it cannot be read."""
        path = self.lock_path(cell)
        return lock.read_text(path, data.project_directory(path.parent))

    def find_lock(self, cell: Cell) -> Lock | None:
        path = self.lock_path(cell)
        if not self.has_lock(cell):
            return None
        text = self.lock_text(cell)
        digest = compiled.digest_of(text)
        read, kept_digest = self._read.get(cell.id, (None, None))
        if read and kept_digest == digest and not cell.environments:
            return read
        if cell.environments:
            locked = self._join_locks(cell, text, path)
        else:
            locked = self.compiled.of("lock", os.path.abspath(path), [digest], lambda: _parse_lock(text, path))
        self._read[cell.id] = locked, digest
        return locked

    def _join_locks(self, cell: Cell, text: str, path: Path) -> Lock:
        """Return the lock of an image with several environments. Raises LockError where a cell of one has none."""
        from imagegen.lock.environments import join

        file = self.compiled.of(
            "environments", os.path.abspath(path), [compiled.digest_of(text)], lambda: lock.loads_combined(text, path)
        )
        return join(
            cell,
            file,
            [
                self.find_lock(environment.cell) or self._missing_lock(environment.cell)
                for environment in cell.environments
            ],
        )

    def _missing_lock(self, cell: Cell) -> NoReturn:
        where = str(self.lock_path(cell))
        raise LockError(f"{cell.id} has no lock", code="lock-missing", where=where, fix=f"`imagegen lock {cell.id}`")

    def digest_of_inputs(self, locked: Lock, cell: Cell) -> str | None:
        """Return the digest of a lock's file, of all matrices and recipes and of the code.

        Return None if one is not known, because the lock was made and not read.
        """
        read, digest = self._read.get(cell.id, (None, None))
        digests = [compiled.digest_of_code(), self.results.digest, digest if read is locked else None]
        digests += [
            self.digest_of_inputs(environment_lock, part)
            for part, environment_lock in locked.by_cell(cell)
            if environment_lock is not locked
        ]
        return compiled.digest_of(*filter(None, digests)) if all(digests) else None

    def check_lock(self, locked: Lock, cell: Cell) -> LockCheck:
        """Check a lock. Raises LockError for a platform without wheels."""
        path = os.path.abspath(self.lock_path(cell))
        if cell.environments:
            inputs = self.digest_of_inputs(locked, cell)
            return self.results.of("lock-check", path, lambda: self._check_environments(locked, cell), inputs)
        read, digest = self._read.get(cell.id, (None, None))
        return self.results.of(
            "lock-check", path, lambda: self._check_lock(locked, cell), digest if read is locked else None
        )

    def _check_lock(self, locked: Lock, cell: Cell) -> LockCheck:
        if stale := lock.stale(locked, cell):
            return LockCheck(stale=stale)
        if contradictions := lock.contradictions(locked, cell):
            return LockCheck(contradictions=contradictions)
        if edited := self._edited(locked, cell):
            return LockCheck(edited=edited)
        return LockCheck(verdict=self.judge(lock.facts_of_lock(locked, cell)))

    def judge(self, facts: Facts) -> Verdict:
        """Return the verdict of the rules on facts of a lock of the cell, of today or of an earlier one."""
        return compatibility.judge(self.knowledge, facts)

    def _check_environments(self, image_lock: Lock, cell: Cell) -> LockCheck:
        """Check the lock of an image with several environments, and the locks of their cells."""
        from imagegen.image import layers

        checked = {part.id: self.check_lock(locked, part) for part, locked in image_lock.by_cell(cell)}
        stale, contradictions, edited = (
            tuple(f"{name}: {field}" for name, check in checked.items() for field in getattr(check, kind))
            for kind in ("stale", "contradictions", "edited")
        )
        if stale or contradictions or edited:
            return LockCheck(stale, contradictions, edited)
        if image_lock.moved:
            return LockCheck(stale=tuple(f"environment {name}" for name in image_lock.moved))
        if wrong := layers.record_contradictions(image_lock):
            return LockCheck(edited=wrong)
        verdicts = [result.verdict for result in checked.values() if result.verdict]
        refused = (verdict for verdict in verdicts if verdict.answer == "incompatible")
        return LockCheck(
            verdict=next(refused, max(verdicts, key=lambda candidate: len(candidate.conflicts), default=None))
        )

    def fresh_lock(self, cell: Cell) -> Lock:
        """Return the cell's lock. Raises LockError or IncompatibleError when it is missing, stale or breaks a rule."""
        current = self.find_lock(cell)
        if current is None:
            self._missing_lock(cell)

        self.require_sound(current, cell)
        for part, locked in current.by_cell(cell):
            self.require_own_packages(locked, part)
            self.require_unchanged_stack(locked, part)
        return current

    def require_own_packages(self, locked: Lock, cell: Cell) -> None:
        """Bring the project's own packages into the store. Raises LockError if they differ from the lock."""
        from imagegen.lock.model import LOCAL  # late: it is loaded where there is a lock

        if any(wheel.file.index == LOCAL for wheel in locked.wheels):  # else no store is needed
            lock.require_own_packages(locked, cell, self.project, self.store)

    def require_unchanged_stack(self, locked: Lock, cell: Cell) -> None:
        """Raise LockError where the project's lock file no longer has the packages of a lock."""
        if cell.stack:
            from imagegen.lock.stack import read_stack  # late: an ordinary build reads no such file

            read_stack(cell.stack, self.project).require_unchanged(locked, cell)

    def require_sound(self, image_lock: Lock, cell: Cell) -> None:
        """Raise LockError or IncompatibleError where a lock is stale or edited, or breaks a rule."""
        checked = self.check_lock(image_lock, cell)
        self.require_unedited(checked, cell)
        if cell.environments:
            for part, locked in image_lock.by_cell(cell):
                self.require_sound(locked, part)
        elif checked.verdict:
            self._require_compatible(cell, checked.verdict)

    def require_unedited(self, checked: LockCheck, cell: Cell) -> None:
        """Raise LockError where a lock is stale or was edited."""
        where = str(self.lock_path(cell))
        if checked.stale or checked.contradictions:
            raise lock.outdated(cell, checked.stale, checked.contradictions, where)
        if checked.edited:
            raise LockError(
                f"the lock of {cell.id} was edited",
                code="lock-edited",
                where=where,
                why=f"rules, catalogue and the rest of the lock say otherwise about {', '.join(checked.edited)}",
                fix=f"restore it from version control, or lock again: `imagegen lock {cell.id} --record`, with "
                "--upgrade-package NAME for a direct download",
            )

    def _edited(self, locked: Lock, cell: Cell) -> tuple[str, ...]:
        """Return the fields in which a lock contradicts rules or catalogue, or its record the rest of it.

        The lock is neither stale nor does it contradict its cell.
        """
        from imagegen.image import layers  # late, here and below: a question about no cell needs neither
        from imagegen.lock.freshness import gpus_of

        wrong: list[str] = []
        if locked.gpu != gpus_of(cell, self.matrix.rules, lock.facts_of_lock(locked, cell)):
            wrong.append("gpu.driver")
        if any(wheel.file.url for wheel in locked.wheels):
            from imagegen.wheels.search import uncatalogued

            wrong += uncatalogued(locked, cell, self.wheel_catalogue)
        return (*wrong, *layers.record_contradictions(locked))

    def scratch_lock(self, cell: Cell, locked: Lock, error: PackagesGoneError) -> Lock:
        """Return the lock with today's Debian packages, and write it next to the store, not into the project."""
        from imagegen.image import base
        from imagegen.lock.builds import keyed

        moved = replace(locked, base=base.resolve(cell.base, cell.platform, self.settings, self.progress), record=None)
        fresh = replace(
            moved, builds=tuple(keyed(build, moved) for build in moved.builds)
        )  # its compilers may be others
        self.require_compatible(cell, lock.facts_of_lock(fresh, cell))
        path = self.settings.store.parent / "scratch" / f"{cell.id}.toml"
        lock.write(fresh, path)
        self.progress.say(f"NOTE: {error}")
        self.progress.say(f"NOTE: the base was locked again for only this build ({path}).")
        self.progress.say(
            f"NOTE: the image is not the recorded one; `imagegen lock {cell.id} --upgrade-base` moves the lock."
        )
        return fresh

    def require_compatible(self, cell: Cell, facts: Facts) -> None:
        """Raise IncompatibleError when a rule rejects the cell; keep warnings for `print_warnings`."""
        self._require_compatible(cell, self.judge(facts))

    def _require_compatible(self, cell: Cell, verdict: Verdict) -> None:
        self._warnings[cell.id] = verdict.conflicts
        if verdict.answer == "incompatible":
            text = "\n".join(map(str, self._warnings.pop(cell.id)))
            near = matrix.nearest_cell(self.rules, cell, self.matrix.cells())
            fix = f"the nearest cell that no rule refuses is {near.id}" if near else None
            raise IncompatibleError(f"{cell.id} cannot work", code="incompatible", why=text, fix=fix)

    def print_warnings(self, *, explain: bool) -> None:
        """Print the warnings of rules about the judged cells: in full, or one line per cell."""
        for name, conflicts in self._warnings.items():
            if conflicts and explain:
                self.progress.say(f"{name}:\n" + "\n".join(map(str, conflicts)))
            elif conflicts:
                rules = ", ".join(rule.id for conflict in conflicts for rule in conflict.rules)
                self.progress.say(f"warning: {name}: {rules}; explained by `imagegen show {name}`")


def _parse_lock(text: str, path: Path) -> Lock:
    locked = lock.loads(text, path)
    lock.inputs_hash(locked)  # so that the kept result has it
    return locked


def _other_version(project: Path, errors: MatrixErrors) -> MatrixError:
    """Return the error about a clone whose matrices differ from the matrices of the running imagegen."""
    first = errors.errors[0]
    return MatrixError(
        "this is imagegen's own source tree, and its matrices differ from the matrices of the installed imagegen",
        code="matrix-other-version",
        where=str(project.resolve()),
        why=f"{counted(len(errors.errors), 'error')} with imagegen {__version__}; {first.where}: {first.what}",
        fix="`make setup` there, then use its .venv/bin/imagegen; or use another directory: `imagegen --project DIR`",
    )


def _there(path: Path) -> bool:
    """Return whether a path exists; True also for one that cannot be read, so that reading it reports why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
