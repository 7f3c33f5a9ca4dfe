"""One invocation: the project, the settings, and what both provide, loaded when first used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from imagegen import __version__
from imagegen.core import data
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import is_source_tree, shipped
from imagegen.core.errors import IncompatibleError, LockError, MatrixError, MatrixErrors, PackagesGoneError
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.plan import lock, matrix
from imagegen.plan.lock.builds import keyed
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix import metadata, scans
from imagegen.plan.matrix.model import Cell, Rule
from imagegen.plan.rules import (
    Conflict,
    Facts,
    MetadataCache,
    ScanCache,
    check_rules,
    evaluate_cell,
    facts_of_lock,
    nearest_cell,
)
from imagegen.plan.rules.api import api_rules
from imagegen.wheels import catalogue
from imagegen.wheels.catalogue import Catalogue

_SHIPPED = ("matrices", "wheels")


class Session:
    """One invocation: what every use case takes. Messages go to `progress`."""

    def __init__(self, env: Mapping[str, str], project: Path, progress: Progress) -> None:
        self.env = env
        self.project = project
        self.progress = progress
        self._warnings: dict[str, tuple[Conflict, ...]] = {}  # by cell

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_environment(self.env)

    def settings_for(self, cell: Cell) -> Settings:
        """Return the settings with an address for each index that the cell names by alias."""
        return lock.with_indexes(self.settings, cell.indexes)

    @cached_property
    def store(self) -> Store:
        return Store(self.settings.store)

    def context_for(self, cell: Cell) -> Context:
        """Return the context of steps for the cell, with the settings of `settings_for`."""
        return Context(self.store, self.settings_for(cell), self.progress)

    @cached_property
    def matrix_directories(self) -> list[Path]:
        """The directories of matrices and recipes: the shipped ones, then those of the project."""
        directories = [shipped(name) for name in _SHIPPED]
        theirs = {directory.resolve() for directory in directories}
        own = (self.project / directory.name for directory in directories)
        return [*directories, *(each for each in own if _there(each) and each.resolve() not in theirs)]

    @cached_property
    def matrix(self) -> matrix.Matrix:
        try:
            loaded = matrix.load(self.matrix_directories)
        except MatrixErrors as error:
            if len(self.matrix_directories) > len(_SHIPPED) and is_source_tree(self.project):
                raise _other_version(self.project, error) from error
            raise
        check_rules(loaded)
        return loaded

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the matrix, and those on names that its packages share, as far as these can reject."""
        packages = {each.package for each in self.matrix.components.values()}
        shared = api_rules(self.matrix_directories, packages)
        return (*self.matrix.rules, *(rule for rule in shared if rule.binding))

    @cached_property
    def metadata(self) -> MetadataCache:
        """The harvested package metadata, and the scans of wheels."""
        scanned = ScanCache(lambda package: scans.load(self.matrix_directories, package))
        return MetadataCache(lambda package: metadata.load(self.matrix_directories, package), scanned)

    @cached_property
    def wheel_catalogue(self) -> Catalogue:
        """The prebuilt wheels whose addresses are known."""
        return catalogue.load([each for each in self.matrix_directories if each.name == "wheels"])

    def lock_path(self, cell: Cell) -> Path:
        """Return the path of the project's lock, else of the shipped one; of the project's where neither exists."""
        own = self.project / "locks" / f"{cell.id}.toml"
        theirs = shipped("locks") / f"{cell.id}.toml"
        return theirs if theirs.exists() and not _there(own) else own

    def has_lock(self, cell: Cell) -> bool:
        """Return whether anything is at the path of the cell's lock."""
        return _there(self.lock_path(cell))

    def find_lock(self, cell: Cell) -> Lock | None:
        path = self.lock_path(cell)
        return lock.read(path, data.project_directory(path.parent)) if self.has_lock(cell) else None

    def fresh_lock(self, cell: Cell) -> Lock:
        """Return the cell's lock. Raises LockError or IncompatibleError when it is missing, stale or breaks a rule."""
        found, where = self.find_lock(cell), str(self.lock_path(cell))
        if found is None:
            raise LockError(
                f"{cell.id} has no lock", code="lock-missing", where=where, fix=f"`imagegen lock {cell.id}`"
            )
        lock.require_fresh(found, cell, where)
        self.require_unedited(found, cell)
        self.require_compatible(cell, facts_of_lock(found, cell.base.glibc))
        return found

    def require_unedited(self, found: Lock, cell: Cell) -> None:
        """Raise LockError where a lock contradicts rules or catalogue, or its record does not follow from the rest.

        The lock is neither stale nor does it contradict its cell.
        """
        from imagegen.image import layers  # late, here and below: a question about no cell needs neither
        from imagegen.wheels import resolve

        wrong: list[str] = []
        if found.gpu != resolve.gpus_of(cell, self.matrix.rules, facts_of_lock(found, cell.base.glibc)):
            wrong.append("gpu.driver")
        if any(wheel.file.url for wheel in found.wheels):
            wrong += resolve.uncatalogued(found, cell, self.wheel_catalogue)
        wrong += layers.record_contradictions(found)
        if wrong:
            raise LockError(
                f"the lock of {cell.id} was edited",
                code="lock-edited",
                where=str(self.lock_path(cell)),
                why=f"rules, catalogue and the rest of the lock say otherwise about {', '.join(wrong)}",
                fix=f"restore it from version control, or lock again: `imagegen lock {cell.id} --record`, with "
                "--upgrade-package NAME for a direct download",
            )

    def scratch_lock(self, cell: Cell, locked: Lock, error: PackagesGoneError) -> Lock:
        """Return the lock with today's Debian packages, and write it beside the store, not into the project."""
        from imagegen.image import base

        moved = replace(locked, base=base.resolve(cell.base, self.settings, self.progress), record=None)
        fresh = replace(
            moved, builds=tuple(keyed(build, moved) for build in moved.builds)
        )  # its compilers may be others
        self.require_compatible(cell, facts_of_lock(fresh, cell.base.glibc))
        path = self.settings.store.parent / "scratch" / f"{cell.id}.toml"
        lock.write(fresh, path)
        self.progress.say(f"NOTE: {error}")
        self.progress.say(f"NOTE: the base was locked anew for this build alone ({path}).")
        self.progress.say(
            f"NOTE: the image is not the recorded one; `imagegen lock {cell.id} --upgrade-base` moves the lock."
        )
        return fresh

    def require_compatible(self, cell: Cell, facts: Facts) -> None:
        """Raise IncompatibleError when a rule rejects the cell; keep warnings for `print_warnings`."""
        verdict = evaluate_cell(self.rules_about(facts), cell, facts)
        self._warnings[cell.id] = verdict.conflicts
        if verdict.answer == "incompatible":
            text = "\n".join(map(str, self._warnings.pop(cell.id)))
            near = nearest_cell(self.rules, cell, self.matrix.cells())
            fix = f"the nearest cell that no rule refuses is {near.id}" if near else None
            raise IncompatibleError(f"{cell.id} cannot work", code="incompatible", why=text, fix=fix)

    def rules_about(self, facts: Facts) -> tuple[Rule, ...]:
        """Return `rules`, and those of wheel scans about the releases that the facts name."""
        return (*self.rules, *self.metadata.scans.rules_of(facts))

    def print_warnings(self, *, explain: bool) -> None:
        """Print the warnings of rules about the judged cells: in full, or one line per cell."""
        for name, conflicts in self._warnings.items():
            if conflicts and explain:
                self.progress.say(f"{name}:\n" + "\n".join(map(str, conflicts)))
            elif conflicts:
                rules = ", ".join(rule.id for conflict in conflicts for rule in conflict.rules)
                self.progress.say(f"warning: {name}: {rules}; explained by `imagegen show {name}`")


def _other_version(project: Path, errors: MatrixErrors) -> MatrixError:
    """The one error about a clone whose matrices are not those of the imagegen that runs."""
    first = errors.errors[0]
    return MatrixError(
        "this is imagegen's own source tree, whose matrices are not those of the installed imagegen",
        code="matrix-other-version",
        where=str(project.resolve()),
        why=f"{counted(len(errors.errors), 'error')} beside imagegen {__version__}; {first.where}: {first.what}",
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
