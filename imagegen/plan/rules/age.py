"""Rules that were last confirmed too long ago: the field moves, and releases come that nobody has tried."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from imagegen.plan.matrix.model import Rule

CONFIRMED_FOR = dt.timedelta(days=183)  # six months


def unconfirmed(rules: Iterable[Rule], today: dt.date) -> tuple[Rule, ...]:
    """Return the rules that nobody has confirmed for six months, the oldest first."""
    old = [rule for rule in rules if dt.date.fromisoformat(rule.last_checked) + CONFIRMED_FOR < today]
    return tuple(sorted(old, key=lambda rule: (rule.last_checked, rule.id)))
