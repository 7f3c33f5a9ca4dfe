"""Rules that were last confirmed too long ago: new releases may have made them too strict or too weak."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from imagegen.plan.matrix.model import Rule

CONFIRMED_FOR = dt.timedelta(days=183)  # six months


def unconfirmed(rules: Iterable[Rule], today: dt.date) -> tuple[Rule, ...]:
    """Return the rules whose last check is more than six months old, the oldest first."""
    old = [rule for rule in rules if dt.date.fromisoformat(rule.last_checked) + CONFIRMED_FOR < today]
    return tuple(sorted(old, key=lambda rule: (rule.last_checked, rule.id)))
