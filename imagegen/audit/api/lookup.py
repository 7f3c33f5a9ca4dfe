"""Look up dotted names in the modules of a release, as the import system and attribute lookups do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagegen.audit.api.exports import GETATTR, Module

# Names that every module has. Source: The Python Language Reference, "Import-related attributes on module objects"
_ALWAYS = {
    "__name__",
    "__spec__",
    "__package__",
    "__loader__",
    "__path__",
    "__file__",
    "__doc__",
    "__dict__",
    "__all__",
}


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
        module, *components = name.split(".")
        if module not in self.modules:
            return None
        for length, part in enumerate(components, 2):
            child = f"{module}.{part}"
            if child not in self.modules or (length > modules and part in self.modules[module].names):
                parent = self.modules[module]
                if length <= modules:
                    exists = part in parent.names or (parent.open and GETATTR not in parent.names)
                else:
                    exists = part in parent.names or part in _ALWAYS or self._defines(module, part)
                return None if exists else child
            module = child
        return None

    def _defines(self, module: str, name: str) -> bool:
        """Return whether the module, or one of which it imports every name, defines the name or may define it."""
        pending, visited = [module], set[str]()
        while pending:
            current = pending.pop()
            if current in visited:
                continue
            visited.add(current)
            definition = self.modules.get(current)
            if definition is None:  # of another package, or not of this release, so the import itself fails
                return True
            if definition.open or name in definition.names or f"{current}.{name}" in self.modules:
                return True
            if definition.below and self._is_below(current, name):
                return True
            pending += definition.stars
        return False

    def _is_below(self, package: str, name: str) -> bool:
        inside = f"{package}."
        return any(name in self.modules[module].names for module in self.modules if module.startswith(inside))
