"""Explain a rejected set of versions in one line, by the rule with its source or a part of uv's message."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from packaging.utils import canonicalize_name

from imagegen.app.nightly.subset_search import Rejection
from imagegen.compat import Facts, Knowledge, judge
from imagegen.compat.rule import Rule
from imagegen.core.errors import ErrorGroup, ImagegenError
from imagegen.core.text import cut

_LONGEST = 600  # characters of an error in one line
# A name with a version or with bounds, which is a package and not a word of the sentence.
_NAMED = re.compile(r"(?<![\w.-])([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w,-]+\])?(?:[=<>!~]=?| (?=\d))")


def rejection_by_rules(rules: Iterable[Rule], facts: Facts) -> Rejection | None:
    """Return the rejection if the rules refuse the facts, else None."""
    verdict = judge(Knowledge(tuple(rules)), facts)
    if verdict.answer != "incompatible":
        return None
    errors = [conflict for conflict in verdict.conflicts if conflict.severity == "error"]
    reasons = [f"{rule.because} [{rule.id}; {rule.source}, {rule.date}]" for error in errors for rule in error.rules]
    facts_known = ", ".join(f"{name} {text}" for error in errors for name, text in sorted(error.facts.items()))
    names = frozenset(name for error in errors for name in error.facts)
    return Rejection(f"{facts_known}: {' '.join(dict.fromkeys(reasons))}", names)


def rejection_by_error(error: ImagegenError, packages: Collection[str]) -> Rejection:
    """Return the rejection for an error; it blames the packages that the error names."""
    errors = error.errors if isinstance(error, ErrorGroup) else [error]
    names = frozenset(canonicalize_name(name) for name in _NAMED.findall(str(error)))
    lines = (": ".join(filter(None, [part.what, " ".join((part.why or "").split())])) for part in errors)
    return Rejection("; ".join(cut(line, _LONGEST) for line in lines), names & set(packages))
