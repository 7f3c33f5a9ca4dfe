"""The answer about a combination or a cell, with its reasons; it does not import the solver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from imagegen.compat.rule import Kind, PinOverride, Rule
from imagegen.core.deferred import dataclass

Answer = Literal["compatible", "incompatible", "unknown"]
WORST_FIRST: tuple[Answer, ...] = ("incompatible", "unknown", "compatible")
AnswerKind = Kind | Literal["unknown"]
_WEAKEST_FIRST: tuple[Kind, ...] = ("degrades", "pip-refuses", "breaks")


@dataclass(frozen=True)
class Conflict:
    """A minimal set of rules that the facts contradict; mostly it is one rule."""

    rules: tuple[Rule, ...]  # sorted by id
    facts: Mapping[str, str]  # package or surrounding of the rules -> the fact about it
    doubt: bool = False  # it depends on the available wheels, and other wheels could be built
    override: str = ""  # the requirements that install the combination as overrides
    overridden_by: tuple[PinOverride, ...] = ()

    @property
    def severity(self) -> Literal["error", "warning", "suspicion"]:
        """A chain is as strong as its weakest rule; a remembered rule cannot refuse."""
        if self.doubt or any(rule.evidence == "remembered" for rule in self.rules):
            return "suspicion"
        return "warning" if any(rule.severity == "warning" for rule in self.rules) else "error"

    @property
    def kind(self) -> AnswerKind:
        """Return the effect on the combination.

        pip refuses it if all of its rules are declared requirements. Since the set is minimal, it installs any other
        combination, and that has the weakest of the other rules' kinds.
        """
        if self.severity == "suspicion":
            return "unknown"
        effects = [rule.kind for rule in self.rules if rule.kind != "pip-refuses"]
        return min(effects, key=_WEAKEST_FIRST.index, default="pip-refuses")

    def __str__(self) -> str:
        facts = ", ".join(f"{name} {text}" for name, text in sorted(self.facts.items()))
        lines = [f"{self.severity} ({kind_in_words(self.kind)}): {facts}"]
        for number, rule in enumerate(self.rules):
            lines.append(f"  {'and' if number else 'because'}: {rule.reason} [{rule.id}]")
            if rule.message and rule.message not in rule.reason:
                lines.append(f"  message: {rule.message}")
            lines.append(f"  source: {rule.source} ({', '.join(filter(None, [rule.evidence, rule.date]))})")
            lines.append(f"  fix: {rule.fix}")
        if self.override:
            lines.append(f"  override: {self.override} (uv pip install --override FILE, or pip install --no-deps)")
        lines += [
            f"  overridden by: {override.project}, {override.how} [{override.source}, {override.date}]"
            for override in self.overridden_by
        ]
        return "\n".join(lines)


def kind_in_words(kind: AnswerKind) -> str:
    return kind.replace("-", " ")


def kind_of(answer: Answer, conflicts: Iterable[Conflict]) -> AnswerKind | None:
    """Return the kind of a whole answer; None if nothing speaks against the combination.

    It is "breaks" if one of the errors breaks, and "pip-refuses" if all errors hold a declared requirement. A
    compatible combination with warnings degrades.
    """
    if answer == "unknown":
        return "unknown"
    conflicts = tuple(conflicts)
    if answer == "compatible":
        return "degrades" if conflicts else None
    return (
        "breaks"
        if any(conflict.severity == "error" and conflict.kind == "breaks" for conflict in conflicts)
        else "pip-refuses"
    )


@dataclass(frozen=True)
class Verdict:
    """The verdict. `incompatible`: no choice within the facts satisfies the rules. `compatible`: every choice does.

    `unknown`: it depends on versions that are not chosen yet, or only a remembered rule rejects it.
    """

    answer: Answer
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True)
class CellAnswer:
    """The answer for one cell; `reason` is one line, empty for "compatible"."""

    answer: Answer
    reason: str = ""


def reasons_of(answer: Answer, conflicts: Iterable[Conflict]) -> str:
    """Return the reasons of an answer: of the errors if it is "incompatible", else of the suspicions."""
    severity = "error" if answer == "incompatible" else "suspicion"
    return " ".join(rule.because for conflict in conflicts if conflict.severity == severity for rule in conflict.rules)


def worst_answer(answers: Mapping[str, CellAnswer]) -> CellAnswer:
    """Return the worst of several cells' answers, by cell, with the cell in its reason."""
    name, worst = min(answers.items(), key=lambda item: WORST_FIRST.index(item[1].answer))
    return CellAnswer(worst.answer, f"{name}: {worst.reason}" if worst.reason else "")
