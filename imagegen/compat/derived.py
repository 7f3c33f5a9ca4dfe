"""Rules that follow from data about releases; the rules of matrices are written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from imagegen.compat.rule import Kind, Rule


def derived_rule(
    rule_id: str,
    because: str,
    *,
    source: str,
    date: str,
    fix: str,
    when: Mapping[str, str] | None = None,
    then: Mapping[str, str] | None = None,
    conflict: Mapping[str, str] | None = None,
    unless: Mapping[str, str] | None = None,
    warns_with: Mapping[str, str] | None = None,
    severity: Literal["error", "warning"] = "error",
    evidence: Literal["measured", "documented", "remembered"] = "documented",
    kind: Kind = "breaks",
    message: str = "",
) -> Rule:
    """Return a rule. The arguments are the fields of Rule; without others, it is documented, and breaking it breaks."""
    return Rule(
        rule_id,
        when or {},
        then or {},
        conflict or {},
        because,
        source,
        date,
        severity,
        evidence,
        fix,
        kind=kind,
        message=message,
        unless=unless or {},
        warns_with=warns_with or {},
    )


def release_span(versions: Sequence[str]) -> tuple[str, str]:
    """Return consecutive releases in words and as a specifier: "1.0 to 1.2" and ">=1.0,<=1.2"."""
    first, last = versions[0], versions[-1]
    return (first, f"=={first}") if first == last else (f"{first} to {last}", f">={first},<={last}")
