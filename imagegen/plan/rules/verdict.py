"""The answer about a combination, with its reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from imagegen.plan.matrix.rule import Rule

Answer = Literal["compatible", "incompatible", "unknown"]
WORST_FIRST: tuple[Answer, ...] = ("incompatible", "unknown", "compatible")


@dataclass(frozen=True)
class Conflict:
    """A smallest set of rules that the facts cannot obey together; mostly it is one rule."""

    rules: tuple[Rule, ...]  # sorted by id
    facts: Mapping[str, str]  # package or surrounding that the rules speak of -> what is known of it
    doubt: bool = False  # it rests on what wheels there are, and other wheels could be built

    @property
    def weight(self) -> Literal["error", "warning", "suspicion"]:
        """A chain is as strong as its weakest rule: what is only remembered cannot refuse."""
        if self.doubt or any(rule.evidence == "remembered" for rule in self.rules):
            return "suspicion"
        return "warning" if any(rule.severity == "warning" for rule in self.rules) else "error"

    def __str__(self) -> str:
        facts = ", ".join(f"{name} {text}" for name, text in sorted(self.facts.items()))
        lines = [f"{self.weight}: {facts}"]
        for number, rule in enumerate(self.rules):
            lines.append(f"  {'and' if number else 'because'}: {rule.reason} [{rule.id}]")
            lines.append(f"  source: {rule.source} ({rule.evidence}, {rule.date})")
            lines.append(f"  fix: {rule.fix}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """The verdict. `incompatible`: no choice within the facts satisfies the rules. `compatible`: every choice does.

    `unknown`: it depends on versions that are not chosen yet, or only a remembered rule rejects it.
    """

    answer: Answer
    conflicts: tuple[Conflict, ...] = ()
