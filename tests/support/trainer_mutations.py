"""Run the check of a trainer with a fault, and report whether it finds it: shared by the mutation programs."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from smoke.program import Details, Failed, Spec

# Applied once the module is loaded, in every process that loads it.
HOOK = """\
import importlib.abc, importlib.machinery, sys
class Loader(importlib.abc.Loader):
    def __init__(self, loader): self.loader = loader
    def create_module(self, spec): return self.loader.create_module(spec)
    def exec_module(self, module):
        self.loader.exec_module(module)
        change(module)
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE: return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(spec.loader)
        return spec
sys.meta_path.insert(0, Finder())
"""


def report(
    name: str, faults: Mapping[str, str], expected: set[str], check: Callable[[Spec], Details], variant: str = ""
) -> None:
    """Run the check with the fault of that name, if `faults` has it, and print a JSON line of what was found.

    Faults reach the trainer's processes by a `sitecustomize` module on PYTHONPATH.
    """
    start = time.monotonic()
    spec = json.loads(Path("spec.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        if name in faults:
            (Path(folder) / "sitecustomize.py").write_text(faults[name] + HOOK, encoding="utf-8")
            os.environ["PYTHONPATH"] = folder
        found, details, log = set(), {}, ""
        try:
            details = check(Spec("cuda", spec["python"], spec["prefix"], {}, spec["versions"], {}))
        except Failed as failed:
            details, log = failed.details, failed.details.pop("log", "")
            found = set(failed.details["wrong"])
    print(log[-3000:], file=sys.stderr)  # noqa: T201
    # A run that ended early has most findings whatever the fault was.
    detected = expected <= found and "exit-code" not in found - expected if expected else not found
    result = {"mutation": name, "variant": variant, "expected": sorted(expected), "found": sorted(found)}
    print(json.dumps({**result, "detected": detected, "seconds": round(time.monotonic() - start), "details": details}))  # noqa: T201
