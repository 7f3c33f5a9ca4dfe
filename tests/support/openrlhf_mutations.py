"""Break OpenRLHF's trainer one way at a time, and see that the check `openrlhf-grpo` finds each break; needs a GPU.

In an image, beside the package `smoke` and trainer_mutations.py:   python openrlhf_mutations.py NAME

Prints one JSON line: the mutation's name, the findings that must be among those found, those found, and seconds. The
mutation "none" must find nothing. Faults in OpenRLHF reach its Ray workers by a `sitecustomize` module on PYTHONPATH.
"""

from __future__ import annotations

import sys

from smoke.checks import openrlhf_grpo
from trainer_mutations import report

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
    if name == "dead-reward":
        openrlhf_grpo.REWARD = openrlhf_grpo.REWARD.replace("[score(query, prompt)", "[0.0 * score(query, prompt)")
    if name == "no-generation-prompt":
        openrlhf_grpo.TEMPLATE = openrlhf_grpo.TEMPLATE.partition("{% if")[0]
    report(name, FAULTS, EXPECTED[name], openrlhf_grpo.check)


if __name__ == "__main__":
    main(*sys.argv[1:])
