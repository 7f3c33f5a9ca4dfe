"""verl's own trainer; the check "verl-NAME" runs the variant NAME (see suite.verl_run)."""

from __future__ import annotations

from suite import verl_run
from suite.program import Details, Spec


def check(spec: Spec) -> Details:
    return verl_run.check_variant(spec, spec.check.removeprefix("verl-"))
