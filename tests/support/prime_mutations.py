"""Break prime-rl one way at a time, and see that the check `prime-rl-grpo` finds each break; needs a GPU.

In an image, beside the package `smoke`:   python prime_mutations.py NAME [VARIANT]

Prints one JSON line: the mutation's name, the findings that must be among those found, those found, and seconds. The
mutation "none" must find nothing. Faults reach prime-rl's processes by a `sitecustomize` module on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

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
FAULTS = {
    # The first weights stay in the engine.
    "weights-not-sent": """\
MODULE = "prime_rl.inference.vllm.worker.filesystem"
def change(module):
    worker = module.FileSystemWeightUpdateWorker
    update = worker.update_weights_from_path
    def stale(self, weight_path):
        if weight_path.rstrip("/").endswith("step_0"):
            update(self, weight_path)
    worker.update_weights_from_path = stale
""",
    "advantage-sign": """\
MODULE = "prime_rl.orchestrator.algo.grpo"
def change(module):
    assign = module.assign_advantages
    module.assign_advantages = lambda trace, advantage: assign(trace, -advantage)
""",
}
EXPECTED = {
    "none": set(),
    "weights-not-sent": {"learns"},
    "advantage-sign": {"learns"},
    "dead-reward": {"learns", "reward"},
}


def main(name: str, variant: str = "grpo") -> None:
    from smoke import prime_run  # of the image's checks
    from smoke.program import Failed, Spec

    start = time.monotonic()
    spec = json.loads(Path("spec.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        if name in FAULTS:
            (Path(folder) / "sitecustomize.py").write_text(FAULTS[name] + HOOK, encoding="utf-8")
            os.environ["PYTHONPATH"] = folder
        if name == "dead-reward":
            prime_run.ENVIRONMENT = prime_run.ENVIRONMENT.partition("def score")[0] + (
                "def score(answer: str) -> float:\n    return 0.0\n"
            )
        found, details, log = set(), {}, ""
        try:
            details = prime_run.check_variant(
                Spec("cuda", spec["python"], spec["prefix"], {}, spec["versions"], {}), variant
            )
        except Failed as failed:
            details, log = failed.details, failed.details.pop("log", "")
            found = set(failed.details["wrong"])
    print(log[-3000:], file=sys.stderr)  # noqa: T201
    expected = EXPECTED[name]
    detected = expected <= found if expected else not found
    result = {"mutation": name, "variant": variant, "expected": sorted(expected), "found": sorted(found)}
    print(json.dumps({**result, "detected": detected, "seconds": round(time.monotonic() - start), "details": details}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
