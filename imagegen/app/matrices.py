"""The project's matrix and the data that rules come from, each loaded at first use."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from imagegen import __version__
from imagegen import compat as compatibility
from imagegen import spec as matrix
from imagegen.app.project import ProjectContext
from imagegen.compat import metadata
from imagegen.compat import package_names as api
from imagegen.compat.package_names import PackageNames
from imagegen.compat.rule import Rule
from imagegen.core.data import is_source_tree
from imagegen.core.errors import MatrixError, MatrixErrors
from imagegen.core.text import counted
from imagegen.spec.cells import Matrix
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.compat import Knowledge, MetadataCache
    from imagegen.compat.models import Models
    from imagegen.compat.scans import PackageDemands
    from imagegen.compat.statements import StatementTable
    from imagegen.wheels.catalogue import Catalogue


class Matrices:
    """The matrix of a project, with metadata, wheel scans and names of packages."""

    def __init__(self, project: ProjectContext) -> None:
        self.project = project
        self._api_rules: dict[str, list[Rule]] = {}  # by package

    @cached_property
    def matrix(self) -> Matrix:
        return self.project.kept("matrix", "", self._load_matrix)

    def _load_matrix(self) -> Matrix:
        try:
            loaded = matrix.load(self.project.matrix_directories)
        except MatrixErrors as error:
            if self.project.has_matrices and is_source_tree(self.project.directory):
                raise _other_version(self.project, error) from error
            raise
        compatibility.check_rules(loaded.rules, loaded.places)
        return loaded

    def select_groups(self, pattern: str, platforms: str | None) -> list[tuple[Cell, ...]]:
        """Return the selected cells one by one, or with `platforms` the cells of each index. Raises UsageError."""
        chosen = self.matrix.select(pattern)
        if platforms is None:
            return [(cell,) for cell in chosen]
        groups = [self.matrix.on_platforms(cell, platforms) for cell in chosen]
        return list({group[0].id: group for group in groups}.values())

    @cached_property
    def knowledge(self) -> Knowledge:
        """All data that rules come from."""
        return compatibility.Knowledge(
            self.matrix.rules,
            self.metadata,
            self.matrix.builds,
            self.matrix.pin_overrides,
            self.api_rules,
            lambda: self.model_types,
        )

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules about any cell."""
        return compatibility.rules_of_cells(self.knowledge)

    def api_rules(self, packages: Collection[str] | None) -> list[Rule]:
        """Return the rules about names that pairs of these packages share; None stands for the components."""
        if packages is None:
            return self._api_rules_of_components
        rules = chain.from_iterable(self._api_rules_of(name) for name in self._api_packages if name in packages)
        return [rule for rule in rules if rule.packages <= set(packages)]

    @cached_property
    def _api_packages(self) -> list[str]:
        return list(api.names(self.project.matrix_directories))

    def _api_rules_of(self, name: str) -> list[Rule]:
        if name not in self._api_rules:
            self._api_rules[name] = self.project.kept(
                "api-rules", name, lambda: compatibility.api_rules(self.project.matrix_directories, name)
            )
        return self._api_rules[name]

    @cached_property
    def _api_rules_of_components(self) -> list[Rule]:
        return self.api_rules({component.package for component in self.matrix.components.values()})

    def api_names(self, package: str) -> PackageNames | None:
        """Return the names that a package shares with others; None where none were harvested. Raises MatrixError."""
        return self.project.kept("api-names", package, lambda: api.load(self.project.matrix_directories, package))

    @cached_property
    def harvested(self) -> frozenset[str]:
        """The packages that have harvested metadata."""
        return frozenset(metadata.names(self.project.matrix_directories))

    @cached_property
    def metadata(self) -> MetadataCache:
        """The statements of the harvested package metadata, and the demands of scanned wheels."""
        from imagegen.compat import wheel_scans as scans  # late: what earlier runs have answered needs none

        project, directories = self.project, self.project.matrix_directories
        scanned = frozenset(scans.names(directories))

        def demands(name: str) -> PackageDemands | None:
            if name not in scanned:
                return None
            return project.kept("demands", name, lambda: compatibility.load_demands(directories, name))

        def statements(name: str) -> StatementTable | None:
            if name not in self.harvested:
                return None
            return project.kept("statements", name, lambda: compatibility.load_table(directories, name))

        return compatibility.MetadataCache(statements, compatibility.ScanCache(demands))

    @cached_property
    def model_types(self) -> Models:
        """The model types of checkpoints, with the releases that support them. Raises MatrixError."""
        from imagegen.compat import models as model_types  # late: questions alone need it

        return self.project.kept("model-types", "", lambda: model_types.load(self.project.matrix_directories))

    @cached_property
    def wheel_catalogue(self) -> Catalogue:
        """The prebuilt wheels whose addresses are known."""
        from imagegen.wheels import catalogue  # late: few commands need it

        directories = [directory for directory in self.project.matrix_directories if directory.name == "wheels"]
        return self.project.kept("catalogue", "", lambda: catalogue.load(directories))


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
