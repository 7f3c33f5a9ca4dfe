"""Rules without a confirmation for six months, and the field that confirms one."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from imagegen.compat import unconfirmed
from imagegen.compat.rule import Rule
from imagegen.core.errors import MatrixErrors
from tests.support.matrix_samples import RULE, SMALL, load

TODAY = dt.date(2026, 11, 24)


def rule(name: str, date: str, checked: str | None = None) -> Rule:
    when, conflict = {"torch": "<2.3"}, {"numpy": ">=2"}
    return Rule(name, when, {}, conflict, "b", "s", date, "error", "measured", "f", checked=checked)


def test_old_rules_are_those_that_were_last_checked_six_months_ago_the_oldest_first() -> None:
    old, older = rule("old", "2026-05-01"), rule("older", "2025-01-01", checked="2026-04-01")
    rules = [old, rule("confirmed", "2025-01-01", checked="2026-11-01"), rule("fresh", "2026-05-25"), older]
    assert unconfirmed(rules, TODAY) == (older, old)


def test_a_rule_is_as_old_as_its_date_unless_it_was_checked_later(tmp_path: Path) -> None:
    (plain,) = load(tmp_path, SMALL + RULE).rules
    (confirmed,) = load(tmp_path, SMALL + RULE.replace("severity", 'checked: "2026-11-24"\n    severity')).rules
    assert (plain.last_checked, confirmed.last_checked) == ("2026-11-20", "2026-11-24")


def test_a_check_before_the_date_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixErrors) as caught:
        load(tmp_path, SMALL + RULE.replace("severity", 'checked: "2026-11-19"\n    severity'))
    assert [error.code for error in caught.value.errors] == ["matrix-invalid-value"]
