"""The exported and required names of a distribution, read while its files pass by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imagegen.audit.api.exports import OPEN, Module, module, with_namespaces
from imagegen.audit.api.requirements import RequiredName, requirements
from imagegen.audit.api.source import is_package, module_name
from imagegen.audit.catalogue import data


def providers() -> Mapping[str, str]:
    """Return the distributions whose names are compared, with the top-level module of each."""
    found: Mapping[str, str] = data("api")["providers"]
    return found


def starts(distribution: str) -> Mapping[str, Sequence[str]]:
    """Return the modules that runs of a distribution import first, as `requirements` takes them; none for most."""
    found: Mapping[str, Sequence[str]] = data("api")["users"].get(distribution, {})
    return found


class ApiScanner:
    """Collects the names of a distribution. Of most, nothing is compared: it `reads` none of their files."""

    def __init__(self, distribution: str) -> None:
        self._top, self._starts = providers().get(distribution), starts(distribution)
        self._modules: dict[str, Module] = {}
        self._sources: dict[str, bytes] = {}

    def reads(self, path: str) -> bool:
        """Return whether the file at `path`, relative to site-packages, is to be added."""
        return bool((self._top or self._starts) and path.endswith(".py") and module_name(path))

    def add(self, path: str, source: bytes) -> None:
        """Add a Python file. Of a provider, only its names are kept."""
        name = module_name(path)
        if name and name.partition(".")[0] == self._top:
            self._modules[name] = module(source, name, package=is_package(path))
        if self._starts:
            self._sources[path] = source

    def exports(self, paths: Sequence[str]) -> dict[str, Module]:
        """Return the modules by name; `paths` are all files of the distribution, compiled modules among them."""
        names = (module_name(path) for path in paths if not path.endswith(".py"))
        compiled = {name: OPEN for name in names if name and self._top and name.partition(".")[0] == self._top}
        return with_namespaces(self._modules | compiled)

    def required_names(self) -> tuple[RequiredName, ...]:
        """Return the required names of other distributions."""
        return requirements(self._sources, self._starts) if self._starts else ()
