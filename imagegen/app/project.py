"""One invocation in a project: its directories, settings and store, and results that earlier runs kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from imagegen.core import net
from imagegen.core.compiled import ResultCache, TreeResults
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import shipped
from imagegen.core.errors import UsageError
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.spec.model import Cell

SHIPPED = ("matrices", "wheels")


class ProjectContext:
    """The environment, the directory and the store of an invocation. Messages go to `progress`."""

    def __init__(self, env: Mapping[str, str], directory: Path, progress: Progress) -> None:
        self.env = env
        self.directory = directory
        self.progress = progress

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_environment(self.env)

    def settings_for(self, cell: Cell) -> Settings:
        """Return the settings with an address for each index that the cell names by alias."""
        return net.with_indexes(self.settings, cell.indexes)

    @cached_property
    def store(self) -> Store:
        return Store(self.settings.store)

    @property
    def context(self) -> Context:
        """The context of steps that concern no single cell."""
        return Context(self.store, self.settings, self.progress)

    def context_for(self, cell: Cell) -> Context:
        """Return the context of steps for the cell, with the settings of `settings_for`."""
        return Context(self.store, self.settings_for(cell), self.progress)

    @cached_property
    def matrix_directories(self) -> list[Path]:
        """The directories of matrices and recipes, first the shipped ones, then the project's."""
        directories = [shipped(name) for name in SHIPPED]
        shipped_directories = {directory.resolve() for directory in directories}
        project_directories = (self.directory / directory.name for directory in directories)
        return [
            *directories,
            *(path for path in project_directories if exists(path) and path.resolve() not in shipped_directories),
        ]

    @property
    def has_matrices(self) -> bool:
        """True if the project has matrices or recipes of its own."""
        return len(self.matrix_directories) > len(SHIPPED)

    def with_matrices(self, directory: Path) -> ProjectContext:
        """Return the context with the matrix files of one more directory; it keeps no results."""
        other = ProjectContext(self.env, self.directory, self.progress)
        other.results = ResultCache(None)
        other.matrix_directories = [*self.matrix_directories, directory]
        return other

    @cached_property
    def results(self) -> ResultCache:
        """Results over files of matrices and locks that earlier runs kept."""
        try:
            return ResultCache(self.settings.store.parent / "compiled")
        except UsageError:  # questions about a matrix need no settings
            return ResultCache(None)

    @cached_property
    def matrix_results(self) -> TreeResults:
        """Results over all files of matrices and recipes.

        All projects without matrices and recipes of their own share one result.
        """
        owner = os.path.abspath(self.directory) if self.has_matrices else ""
        return TreeResults(self.results, self.matrix_directories, owner)


def exists(path: Path) -> bool:
    """Return whether a path exists; True also for one that cannot be read, so that reading it reports why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
