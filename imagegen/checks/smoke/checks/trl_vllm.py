"""TRL's own GRPOTrainer learns with vLLM as its sampler, in the trainer's process and on its GPU.

Model, data and reward are those of `trl_grpo`. TRL gives vLLM the policy's weights before each batch (`colocate`), and
logs how far the log-probabilities of the sampled tokens in vLLM are from the trainer's. Options and metrics are those
of trl 1.16.0, read.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from smoke import engines
from smoke.checks import trl_grpo
from smoke.program import Details, Findings, Spec, finite, step
from smoke.rollout import HEAD_WIDTH, SHARE
from smoke.tinylm import CONTEXT

OPTIONS = {
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": SHARE,
    "vllm_max_model_length": CONTEXT,
}
METRIC = "sampling/sampling_logp_difference/mean"
BATCHES = trl_grpo.STEPS // trl_grpo.ITERATIONS
# At most, that metric in each batch. Measured on H100: 0.0015, and 0.64 with weights that never reach vLLM
# (docs/internals/measurements.md).
DIFFERENCE = 0.02


def check(spec: Spec) -> Details:
    os.environ.update(engines.ALONE)
    findings = Findings()
    details: Details = {"trl": trl_grpo.import_trl(spec.device)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step("make a model")
        trl_grpo.write_model(folder / "model", HEAD_WIDTH)
        step("vLLM starts")
        trainer = trl_grpo.make_trainer(folder, spec.device, trl_grpo.STEPS, **OPTIONS)
        start = trl_grpo.parameters(trainer)
        step("train")
        trainer.train()
        details |= trl_grpo.judge_run(trainer, start, findings)
        details |= judge_sampler(trainer, findings)
    return findings.done(details)


def judge_sampler(trainer: Any, findings: Findings) -> Details:
    """Expect vLLM to have sampled each batch, with the weights of the trainer; return the metric's figures."""
    found = trl_grpo.column(trainer, METRIC)
    findings.expect("engine", len(found) >= BATCHES, f"{len(found)} of {BATCHES} batches have vLLM's log-probabilities")
    findings.expect("finite", finite(found), f"{METRIC} is missing or not finite: {found[:5]}")
    largest = max(found, default=0.0)
    wrong = f"log-probabilities in vLLM and in the trainer differ by up to {largest:.4f} in the mean of a batch"
    findings.expect("sampler", largest <= DIFFERENCE, wrong)
    return {"difference": [round(value, 5) for value in (*found[:1], largest)]}
