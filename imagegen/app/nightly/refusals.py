"""The reason for a rejected set of versions, in one line: the rule with its source, or uv's message, shortened."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from packaging.utils import canonicalize_name

from imagegen.app.nightly.search import Refusal
from imagegen.core.errors import ErrorGroup, ImagegenError
from imagegen.core.gpu import Gpu
from imagegen.core.text import cut
from imagegen.plan import rules as compat
from imagegen.plan.matrix.rule import Rule

_LONGEST = 600  # characters of an error in one line
# A name with a version, or with bounds: that alone is about a package, and not a word of the sentence.
_NAMED = re.compile(r"(?<![\w.-])([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w,-]+\])?(?:[=<>!~]=?| (?=\d))")


def by_rules(rules: Iterable[Rule], facts: compat.Facts, gpus: Iterable[Gpu]) -> Refusal | None:
    """The refusal where a rule leaves no choice, else None."""
    verdict = compat.judge_on(gpus, rules, facts)
    if verdict.answer != "incompatible":
        return None
    errors = [each for each in verdict.conflicts if each.weight == "error"]
    said = [f"{rule.because} [{rule.id}; {rule.source}, {rule.date}]" for each in errors for rule in each.rules]
    facts_known = ", ".join(f"{name} {text}" for each in errors for name, text in sorted(each.facts.items()))
    names = frozenset(name for each in errors for name in each.facts)
    return Refusal(f"{facts_known}: {' '.join(dict.fromkeys(said))}", names)


def by_error(error: ImagegenError, known: Collection[str]) -> Refusal:
    """Return the rejection that an error stands for; it blames those of the `known` packages that the error names."""
    parts = error.errors if isinstance(error, ErrorGroup) else [error]
    names = frozenset(canonicalize_name(found) for found in _NAMED.findall(str(error)))
    return Refusal("; ".join(_line(part) for part in parts), names & set(known))


def _line(error: ImagegenError) -> str:
    return cut(": ".join(filter(None, [error.what, " ".join((error.why or "").split())])), _LONGEST)
