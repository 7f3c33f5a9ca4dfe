"""Every module of every declared component imports, and comes from the image's own environment."""

from __future__ import annotations

import importlib
from types import ModuleType

from suite.program import Details, Findings, Spec, step


def check(spec: Spec) -> Details:
    """One process for all of them: a stack must also stand each other's company."""
    findings = Findings()
    modules = [(component, module) for component, names in sorted(spec.imports.items()) for module in names]
    findings.expect("any", bool(modules), "the lock's components declare no modules: nothing was proven")
    for component, name in modules:
        step(f"import {name} ({component})")
        try:
            module = importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  # a module may raise anything while it is imported
            findings.expect(name, False, f"{name} ({component}): {type(error).__name__}: {error}")
        else:
            places = _places(module)
            inside = bool(places) and all(place.startswith(f"{spec.prefix}/") for place in places)
            findings.expect(name, inside, f"{name} ({component}) comes from {places}, outside {spec.prefix}")
    return findings.done({"modules": [name for _, name in modules]})


def _places(module: ModuleType) -> list[str]:
    """The module's file, or the folders of a namespace package."""
    if getattr(module, "__file__", None):
        return [str(module.__file__)]
    return [str(place) for place in getattr(module, "__path__", ())]
