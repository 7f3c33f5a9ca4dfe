"""verl's own trainer; the check "verl-NAME" runs the variant NAME (see smoke.verl_run)."""

from __future__ import annotations

from smoke import verl_run
from smoke.program import Details, Spec


def check(spec: Spec) -> Details:
    return verl_run.check_variant(spec, spec.check.removeprefix("verl-"))
