"""Break prime-rl one way at a time, and see that the check `prime-rl-grpo` finds each break; needs a GPU.

In an image, beside the package `smoke` and trainer_mutations.py:   python prime_mutations.py NAME [VARIANT]

Prints one JSON line: the mutation's name, the findings that must be among those found, those found, and seconds. The
mutation "none" must find nothing. Faults reach prime-rl's processes by a `sitecustomize` module on PYTHONPATH.
"""

from __future__ import annotations

import sys

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
    from smoke.checks import prime_trainer  # of the image's checks
    from trainer_mutations import report  # type: ignore[import-not-found]  # it lies beside this file there

    if name == "dead-reward":
        prime_trainer.ENVIRONMENT = prime_trainer.ENVIRONMENT.partition("def score")[0] + (
            "def score(answer: str) -> float:\n    return 0.0\n"
        )
    report(name, FAULTS, EXPECTED[name], lambda spec: prime_trainer.check_variant(spec, variant), variant)


if __name__ == "__main__":
    main(*sys.argv[1:])
