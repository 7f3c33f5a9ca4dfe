"""The harvested data below directories of matrices; each file is read when a question needs it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from imagegen import compat
from imagegen.compat import import_names, metadata, package_names
from imagegen.compat.import_names import ImportNames
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.package_names import PackageNames
from imagegen.compat.published_builds import Builds
from imagegen.compat.rule import PinOverride, Rule
from imagegen.core.compiled import TreeResults

if TYPE_CHECKING:
    from imagegen.compat.models import Models
    from imagegen.compat.scans import PackageDemands
    from imagegen.compat.statements import MetadataCache, StatementTable


class KnowledgeFiles:
    """Harvested data of packages, below `results.directories`. Methods and properties raise MatrixError."""

    def __init__(self, results: TreeResults) -> None:
        self._results, self._directories = results, results.directories
        self._api_rules: dict[str, list[Rule]] = {}  # by package

    def knowledge(
        self, rules: Sequence[Rule], builds: Builds, overrides: Sequence[PinOverride], components: Collection[str]
    ) -> Knowledge:
        """Return all data that rules come from; `components` are the packages that cells can have."""

        def shared_names(packages: Collection[str] | None) -> list[Rule]:
            return self.api_rules(components if packages is None else packages)

        return Knowledge(rules, self.metadata, builds, overrides, shared_names, lambda: self.model_types)

    @cached_property
    def harvested(self) -> frozenset[str]:
        """The packages that have harvested metadata."""
        return frozenset(metadata.names(self._directories))

    @cached_property
    def metadata(self) -> MetadataCache:
        """The statements of the harvested package metadata, and the demands of scanned wheels."""
        from imagegen.compat import wheel_scans  # late: answers of earlier runs need none

        scanned = frozenset(wheel_scans.names(self._directories))

        def demands(name: str) -> PackageDemands | None:
            if name not in scanned:
                return None
            return self._results.of("demands", name, lambda: compat.load_demands(self._directories, name))

        def statements(name: str) -> StatementTable | None:
            if name not in self.harvested:
                return None
            return self._results.of("statements", name, lambda: compat.load_table(self._directories, name))

        return compat.MetadataCache(statements, compat.ScanCache(demands))

    @cached_property
    def model_types(self) -> Models:
        """The model types of checkpoints, with the releases that support them."""
        from imagegen.compat import models  # late: only questions need it

        return self._results.of("model-types", "", lambda: models.load(self._directories))

    def api_names(self, package: str) -> PackageNames | None:
        """Return the names that a package shares with others; None if none were harvested."""
        return self._results.of("api-names", package, lambda: package_names.load(self._directories, package))

    @cached_property
    def _imports(self) -> frozenset[str]:
        return frozenset(import_names.names(self._directories))

    def examined(self, package: str, release: str, provider: str, provider_release: str) -> bool:
        """Return whether the names that importing a release needs of a provider's release were looked up."""
        if not {package, provider} <= self._imports:
            return False
        table: ImportNames | None = self._results.of(
            "import-names", package, lambda: import_names.load(self._directories, package)
        )
        return table is not None and table.examined(release, provider, provider_release)

    def api_rules(self, packages: Collection[str]) -> list[Rule]:
        """Return the rules about names that pairs of these packages share."""

        def rules_of(name: str) -> list[Rule]:
            if name not in self._api_rules:
                rules = self._results.of("api-rules", name, lambda: compat.api_rules(self._directories, name))
                self._api_rules[name] = rules
            return self._api_rules[name]

        users = self._imports | set(package_names.names(self._directories))
        return [
            rule
            for name in sorted(users.intersection(packages))
            for rule in rules_of(name)
            if {*rule.when, *rule.conflict} <= set(packages)
        ]
