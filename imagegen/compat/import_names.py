"""matrices/imports/<package>.json: names that `import` of a package needs of others, and the releases that lack them.

`tools.harvest --imports` writes these files. Each also says which releases were read, so that an answer about two
releases can say whether their names were compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field

from packaging.specifiers import SpecifierSet

from imagegen.compat import harvested
from imagegen.compat.package_names import SharedName
from imagegen.core.deferred import dataclass


@dataclass(frozen=True)
class ImportNames:
    """The names that importing a package needs of others. Releases are PEP 440 specifiers, one for each span.

    A name that is empty stands for a statement that raises because of the provider's version.
    """

    package: str
    read: str  # the day of that, ISO 8601
    releases: tuple[str, ...] = ()  # of the package
    providers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # provider -> its releases
    names: tuple[SharedName, ...] = ()

    def examined(self, release: str, provider: str, provider_release: str) -> bool:
        """Return whether all names that the release needs of the provider were looked up in its release.

        A provider that is not listed was asked for nothing.
        """
        return _contains(self.releases, release) and (
            provider not in self.providers or _contains(self.providers[provider], provider_release)
        )


def parse(raw: bytes) -> ImportNames:
    """Raises ValueError for anything that `tools.harvest` does not write."""
    try:
        document = json.loads(raw)
        names = []
        for provider, rows in document["names"].items():
            for name, module, path, line, required_by, lacked_by in rows:
                row = SharedName(
                    provider, name, bool(module), path, int(line), True, tuple(required_by), tuple(lacked_by)
                )
                names.append(row)
        return ImportNames(
            document["package"],
            document["read"],
            tuple(document["releases"]),
            {provider: tuple(spans) for provider, spans in document["providers"].items()},
            tuple(names),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a table of imports: {error}") from error


def _contains(spans: Iterable[str], release: str) -> bool:
    return any(SpecifierSet(span).contains(release, prereleases=False) for span in spans)


_FILES = harvested.Folder("imports", lambda raw, *_: parse(raw))
load, names, path_of = _FILES.load, _FILES.names, _FILES.path_of
