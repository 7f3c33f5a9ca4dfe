"""Break verl's trainer one way at a time, and see that the check `verl-grpo` finds each break; needs a GPU.

In an image, beside the package `smoke` and trainer_mutations.py:   python verl_mutations.py NAME [VARIANT]

Prints one JSON line: the mutation's name, the findings that must be among those found, those found, and seconds. The
mutation "none" must find nothing. Faults in verl reach its Ray workers by a `sitecustomize` module on PYTHONPATH.
"""

from __future__ import annotations

import sys

from smoke.checks import verl_trainer
from trainer_mutations import report

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
    if name == "dead-reward":
        verl_trainer.REWARD = (
            "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):\n    return 0.0\n"
        )
    if name == "no-generation-prompt":
        verl_trainer.TEMPLATE = verl_trainer.TEMPLATE.partition("{% if")[0]
    report(name, FAULTS, EXPECTED[name], lambda spec: verl_trainer.check_variant(spec, variant), variant)


if __name__ == "__main__":
    main(*sys.argv[1:])
