"""Break verl's trainer one way at a time, and see that the check `verl-grpo` finds each break; needs a GPU.

In an image, beside the package `smoke`:   python verl_mutations.py NAME [VARIANT]

Prints one JSON line: the mutation's name, the findings that must be among those found, those found, and seconds. The
mutation "none" must find nothing. Faults in verl reach its Ray workers by a `sitecustomize` module on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from smoke import verl_run
from smoke.program import Failed, Spec

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
    # The first weights again at each synchronisation: without any, the sleeping engine would have none at all.
    "weights-not-synchronised": """\
MODULE = "verl.workers.rollout.vllm_rollout.vllm_rollout"
def change(module):
    adapter, first = module.ServerAdapter, []
    update = adapter.update_weights
    async def stale(self, weights, **kwargs):
        own = [(name, weight.detach().clone()) for name, weight in weights]  # every rank helps to gather them
        if not first:
            first.extend(own)
        return await update(self, iter(first), **kwargs)
    adapter.update_weights = stale
""",
    "advantage-sign": """\
MODULE = "verl.trainer.ppo.core_algos"
def change(module):
    estimate = module.compute_grpo_outcome_advantage
    def negated(*args, **kwargs):
        advantages, returns = estimate(*args, **kwargs)
        return -advantages, returns
    module.compute_grpo_outcome_advantage = negated  # the trainer calls it by name, not by the registry
""",
}
EXPECTED = {
    "none": set(),
    "weights-not-synchronised": {"weights"},
    "advantage-sign": {"learns"},
    "dead-reward": {"learns", "reward"},
    "no-generation-prompt": {"template"},
}


def main(name: str, variant: str = "grpo") -> None:
    start = time.monotonic()
    spec = json.loads(Path("spec.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        if name in FAULTS:
            (Path(folder) / "sitecustomize.py").write_text(FAULTS[name] + HOOK, encoding="utf-8")
            os.environ["PYTHONPATH"] = folder
        if name == "dead-reward":
            verl_run.REWARD = (
                "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):\n    return 0.0\n"
            )
        if name == "no-generation-prompt":
            verl_run.TEMPLATE = verl_run.TEMPLATE.partition("{% if")[0]
        found, details, log = set(), {}, ""
        try:
            details = verl_run.check_variant(
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
