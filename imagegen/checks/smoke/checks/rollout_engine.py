"""An engine generates for the tiny model, agrees with the trainer, and takes new weights (see smoke.rollout).

The check "rollout-NAME" is of the engine NAME.
"""

from __future__ import annotations

from smoke import engines, rollout
from smoke.program import Details, Spec

_ENGINES = {"rollout-sglang": engines.SGLang, "rollout-vllm": engines.Vllm}


def check(spec: Spec) -> Details:
    return rollout.check_engine(_ENGINES[spec.check], rollout.BFLOAT16)
