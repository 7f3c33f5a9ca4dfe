"""Measure the distance of the training smoke checks from their thresholds, over many seeds.

    python bench/smoke_seeds.py grpo llama|plain cpu|cuda float32|bfloat16 SEEDS
    python bench/smoke_seeds.py sb3 SEEDS
    python bench/smoke_seeds.py trl cpu|cuda SEEDS

Prints one JSON line per seed and the extremes at the end. Needs what the image holds, not imagegen.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "imagegen" / "checks"))


def grpo(model: str, device: str, precision: str, seed: int) -> dict[str, float]:
    from smoke import grpo as algorithm
    from smoke import tinylm
    from smoke.checks.grpo import mean_rewards, sampler_error

    make = {"llama": tinylm.llama, "plain": tinylm.PlainModel}[model]
    autocast = torch.bfloat16 if precision == "bfloat16" else None
    run = algorithm.train(make, algorithm.Setup(seed, device=device, autocast=autocast))
    start, end = mean_rewards(run)
    return {
        "rise": end - start,
        "end": end,
        "first_ratio_error": max(update.ratio_error for update in run.updates if update.first),
        "sampler_error": max(map(sampler_error, run.batches)),
        "kl_least": min(update.kl_least for update in run.updates),
        "first_gradient": run.updates[0].gradient,
    }


def sb3(seed: int) -> dict[str, float]:
    from smoke.checks import sb3 as check

    model = check.construct(seed)
    before, _ = check.act(model, masked=True)
    model.learn(check.TRAINING_STEPS)
    after, illegal = check.act(model, masked=True)
    return {"rise": after - before, "illegal": illegal, "unmasked_illegal": check.act(model, masked=False)[1]}


def trl(device: str, seed: int) -> dict[str, float]:
    import tempfile

    from smoke.checks import trl_grpo as check
    from smoke.program import Findings

    check.SEED = seed
    with tempfile.TemporaryDirectory() as folder:
        check.write_model(Path(folder) / "model")
        trainer = check.make_trainer(Path(folder), device, check.STEPS)
        start = check.parameters(trainer)
        trainer.train()
        details = check.judge_run(trainer, start, Findings())
    first, last = details["reward"]
    figures = {"rise": last - first, "end": last, "first_kl": details["kl"][0], "last_kl": details["kl"][1]}
    return {**figures, "first_gradient": details["grad_norm"][0]}


def main(what: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=what != "trl")  # transformers' sampling sums with atomics on a GPU
    *options, seeds = arguments
    measures: dict[str, Callable[..., dict[str, float]]] = {"grpo": grpo, "sb3": sb3, "trl": trl}
    measure = measures[what]
    results = []
    for seed in range(int(seeds)):
        start = time.monotonic()
        result = measure(*options, seed)
        results.append({**result, "seconds": time.monotonic() - start})
        print(json.dumps({"seed": seed, **results[-1]}), flush=True)
    for name in results[0]:
        values = [result[name] for result in results]
        print(f"{what} {' '.join(options)} {name}: {min(values):.4g} to {max(values):.4g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
