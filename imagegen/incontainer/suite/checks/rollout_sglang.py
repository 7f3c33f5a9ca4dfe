"""SGLang generates for the tiny model, agrees with the trainer, and takes new weights (see suite.rollout)."""

from __future__ import annotations

from suite import engines, rollout
from suite.program import Details, Spec


def check(_: Spec) -> Details:
    return rollout.check_engine(engines.SGLang, rollout.BFLOAT16)
