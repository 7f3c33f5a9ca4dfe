"""The project's matrix and the data that rules come from, each loaded at first use."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from imagegen import __version__
from imagegen import compat as compatibility
from imagegen import spec as matrix
from imagegen.app.project import SHIPPED, ProjectContext
from imagegen.compat.rule import Rule
from imagegen.core.context import Context
from imagegen.core.data import is_source_tree, shipped
from imagegen.core.errors import Location, MatrixError, MatrixErrors
from imagegen.core.text import counted
from imagegen.spec.cells import Matrix
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.compat import Knowledge, KnowledgeFiles
    from imagegen.wheels.catalogue import Catalogue


class Matrices:
    """The matrix of a project, with metadata, wheel scans and names of packages."""

    def __init__(self, project: ProjectContext) -> None:
        self.project = project

    @cached_property
    def matrix(self) -> Matrix:
        return self.project.matrix_results.of("matrix", "", self._load_matrix)

    def _load_matrix(self) -> Matrix:
        try:
            loaded = matrix.load(self.project.matrix_directories)
        except MatrixErrors as error:
            if self.project.has_matrices and is_source_tree(self.project.directory):
                raise _other_version(self.project, error) from error
            raise
        compatibility.check_rules(loaded.rules, loaded.places)
        return loaded

    def is_in_project(self, image: str) -> bool:
        """Return whether the entry of an image is in the project. In imagegen's source tree the shipped ones are."""
        file, directory = Path(self.matrix.image_places[image].file), self.project.directory
        names = [name for name in SHIPPED if file.is_relative_to(shipped(name))]
        return all(shipped(name).resolve() == (directory / name).resolve() for name in names)

    def location(self, image: str, key: tuple[str, ...]) -> Location | None:
        """Return the location of a key in an image's entry; None if the entry does not have it."""
        return matrix.key_location(Path(self.matrix.image_places[image].file), ("images", image, *key))

    def select_groups(self, pattern: str, platforms: str | None) -> list[tuple[Cell, ...]]:
        """Return the selected cells one by one, or with `platforms` the cells of each index. Raises UsageError."""
        chosen = self.matrix.select(pattern)
        if platforms is None:
            return [(cell,) for cell in chosen]
        groups = [self.matrix.on_platforms(cell, platforms) for cell in chosen]
        return list({group[0].id: group for group in groups}.values())

    @property
    def context(self) -> Context:
        return self.project.context

    @cached_property
    def knowledge_files(self) -> KnowledgeFiles:
        """The harvested data of packages."""
        return compatibility.KnowledgeFiles(self.project.matrix_results)

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

    @cached_property
    def wheel_catalogue(self) -> Catalogue:
        """The prebuilt wheels whose addresses are known."""
        from imagegen.wheels import catalogue  # late: few commands need it

        directories = [directory for directory in self.project.matrix_directories if directory.name == "wheels"]
        return self.project.matrix_results.of("catalogue", "", lambda: catalogue.load(directories))


def _other_version(project: ProjectContext, errors: MatrixErrors) -> MatrixError:
    """Return the error about a clone whose matrices differ from the matrices of the running imagegen."""
    first = errors.errors[0]
    return MatrixError(
        "this is imagegen's own source tree, and its matrices differ from the matrices of the installed imagegen",
        code="matrix-other-version",
        where=str(project.directory.resolve()),
        why=f"{counted(len(errors.errors), 'error')} with imagegen {__version__}; {first.where}: {first.what}",
        fix="`make setup` there, then use its .venv/bin/imagegen; or use another directory: `imagegen --project DIR`",
    )
