"""vLLM generates for the tiny model, agrees with the trainer, and takes new weights (see smoke.rollout)."""

from __future__ import annotations

from smoke import engines, rollout
from smoke.program import Details, Spec


def check(_: Spec) -> Details:
    return rollout.check_engine(engines.Vllm, rollout.BFLOAT16)
