"""Break OpenRLHF's trainer one way at a time, and see that the check `openrlhf-grpo` finds each break; needs a GPU.

In an image, beside the package `smoke` and verl_mutations.py:   python openrlhf_mutations.py NAME

Prints one JSON line: the mutation's name, the findings that must be among those found, those found, and seconds. The
mutation "none" must find nothing. Faults in OpenRLHF reach its Ray workers by a `sitecustomize` module on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from smoke.checks import openrlhf_grpo
from smoke.program import Failed, Spec
from verl_mutations import HOOK

FAULTS = {
    "weights-not-synchronised": """\
MODULE = "openrlhf.trainer.ray.vllm_worker_wrap"
def change(module):
    # The sleeping engine keeps a copy of its first weights, and wakes up with it.
    module.WorkerWrap.update_weight_cuda_ipc = lambda self, *args, **kwargs: None
""",
    "advantage-sign": """\
MODULE = "openrlhf.trainer.ppo_utils.experience_maker"
def change(module):
    maker = module.RemoteExperienceMaker
    compute = maker.compute_advantages_and_returns
    def negated(self, experiences):
        experiences = compute(self, experiences)
        for experience in experiences:
            experience.advantages = -experience.advantages
        return experiences
    maker.compute_advantages_and_returns = negated
""",
}
EXPECTED = {
    "none": set(),
    "weights-not-synchronised": {"weights"},
    "advantage-sign": {"learns"},
    "dead-reward": {"learns", "reward"},
    "no-generation-prompt": {"template"},
}


def main(name: str) -> None:
    start = time.monotonic()
    spec = json.loads(Path("spec.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        if name in FAULTS:
            (Path(folder) / "sitecustomize.py").write_text(FAULTS[name] + HOOK, encoding="utf-8")
            os.environ["PYTHONPATH"] = folder
        if name == "dead-reward":
            openrlhf_grpo.REWARD = openrlhf_grpo.REWARD.replace("[score(query, prompt)", "[0.0 * score(query, prompt)")
        if name == "no-generation-prompt":
            openrlhf_grpo.TEMPLATE = openrlhf_grpo.TEMPLATE.partition("{% if")[0]
        found, details, log = set(), {}, ""
        try:
            details = openrlhf_grpo.check(Spec("cuda", spec["python"], spec["prefix"], {}, spec["versions"], {}))
        except Failed as failed:
            details, log = failed.details, failed.details.pop("log", "")
            found = set(failed.details["wrong"])
    print(log[-3000:], file=sys.stderr)  # noqa: T201
    expected = EXPECTED[name]
    detected = expected <= found if expected else not found
    result = {"mutation": name, "expected": sorted(expected), "found": sorted(found)}
    print(json.dumps({**result, "detected": detected, "seconds": round(time.monotonic() - start), "details": details}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
