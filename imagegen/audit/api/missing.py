"""Resolve dotted names in the modules of a release, as the import system and attribute lookups do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagegen.audit.api.exports import Module


@dataclass(frozen=True)
class Api:
    """The modules of a release, by name."""

    modules: Mapping[str, Module]

    def missing(self, name: str, modules: int = 1) -> str | None:
        """Return the first part of a dotted name that does not exist; None where all of it exists, or may.

        The first `modules` parts must be modules, since an import statement names them. The search ends at an object:
        attributes of classes and functions are not looked up. A name of a module hides its submodule of the same name
        from attribute lookups, not from import statements.
        """
        module, *parts = name.split(".")
        if module not in self.modules:
            return None
        for length, part in enumerate(parts, 2):
            child = f"{module}.{part}"
            if child not in self.modules or (length > modules and part in self.modules[module].names):
                found = self.modules[module]
                exists = part in found.names or found.open or (length > modules and self._defines(module, part, set()))
                return None if exists else child
            module = child
        return None

    def _defines(self, module: str, name: str, seen: set[str]) -> bool:
        found = self.modules.get(module)
        if found is None:  # of another package, or not of this release: the import statement itself fails
            return True
        if module in seen:
            return False
        seen.add(module)
        if found.open or name in found.names or any(self._defines(star, name, seen) for star in found.stars):
            return True
        return found.below and self._is_below(module, name)

    def _is_below(self, package: str, name: str) -> bool:
        inside = f"{package}."
        return any(name in found.names for module, found in self.modules.items() if module.startswith(inside))
