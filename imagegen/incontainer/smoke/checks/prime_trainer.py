"""prime-rl's own trainer; the check "prime-rl-NAME" runs the variant NAME (see smoke.prime_run)."""

from __future__ import annotations

from smoke import prime_run
from smoke.program import Details, Spec


def check(spec: Spec) -> Details:
    return prime_run.check_variant(spec, spec.check.removeprefix("prime-rl-"))
