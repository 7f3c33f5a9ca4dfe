"""Imports in a process of their own: `python -m smoke.importing NAME PREFIX TARGET ...` prints one JSON object.

A target is a module's name, or the path of an extension module, which is loaded by itself, without its package.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

from smoke.program import Details, Findings, Spec, answer, step


def main(name: str, prefix: str, *targets: str) -> None:
    spec = Spec("cpu", "", prefix, {}, {}, {})
    status, reason, details = answer(lambda _: check(prefix, targets), spec)
    print(json.dumps({"check": name, "status": status, "reason": reason, "details": details}), flush=True)
    sys.exit(status == "fail")


def check(prefix: str, targets: tuple[str, ...]) -> Details:
    findings = Findings()
    for target in targets:
        step(f"import {target}")
        try:
            module = _extension(Path(target)) if "/" in target else importlib.import_module(target)
        except Exception as error:  # noqa: BLE001  # a module may raise anything while it is imported
            findings.expect(target, False, f"import {target}: {type(error).__name__}: {error}")
        else:
            places = _places(module)
            inside = bool(places) and all(place.startswith(f"{prefix}/") for place in places)
            findings.expect(target, inside, f"{target} comes from {places}, outside {prefix}")
    return findings.done({})


def _extension(path: Path) -> ModuleType:
    name = path.name.partition(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=str(path)))
    loader.exec_module(module)
    return module


def _places(module: ModuleType) -> list[str]:
    """The module's file, or the folders of a namespace package."""
    if getattr(module, "__file__", None):
        return [str(module.__file__)]
    return [str(place) for place in getattr(module, "__path__", ())]


if __name__ == "__main__":
    main(*sys.argv[1:])
