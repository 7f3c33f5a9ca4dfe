"""The answer about a combination or a cell, with its reasons: what commands keep and print, without the solver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from imagegen.core.deferred import dataclass
from imagegen.plan.matrix.model import Kind, PinOverride, Rule

Answer = Literal["compatible", "incompatible", "unknown"]
WORST_FIRST: tuple[Answer, ...] = ("incompatible", "unknown", "compatible")
AnswerKind = Kind | Literal["unknown"]
_WEAKEST_FIRST: tuple[Kind, ...] = ("degrades", "pip-refuses", "breaks")


@dataclass(frozen=True)
class Conflict:
    """A smallest set of rules that the facts cannot obey together; mostly it is one rule."""

    rules: tuple[Rule, ...]  # sorted by id
    facts: Mapping[str, str]  # package or surrounding that the rules speak of -> what is known of it
    doubt: bool = False  # it rests on what wheels there are, and other wheels could be built
    override: str = ""  # the requirements that, as overrides, install the combination all the same
    overridden_by: tuple[PinOverride, ...] = ()

    @property
    def severity(self) -> Literal["error", "warning", "suspicion"]:
        """A chain is as strong as its weakest rule: what is only remembered cannot refuse."""
        if self.doubt or any(rule.evidence == "remembered" for rule in self.rules):
            return "suspicion"
        return "warning" if any(rule.severity == "warning" for rule in self.rules) else "error"

    @property
    def kind(self) -> AnswerKind:
        """Return what happens to the combination: a chain that holds a declared requirement ends where it is
        overridden. One that only brings a package that fails is none to pip.
        """
        if self.severity == "suspicion":
            return "unknown"
        brought = self._brought()
        counted = (
            rule for rule in self.rules if rule.kind != "pip-refuses" or not rule.then or rule.then.keys() - brought
        )
        return min((each.kind for each in counted), key=_WEAKEST_FIRST.index)

    def _brought(self) -> set[str]:
        """Return the packages, named by no fact, of which a rule says that they fail, and those that require them."""
        found = {name for rule in self.rules if rule.kind != "pip-refuses" for name in rule.leaders}
        while more := {name for rule in self.rules if rule.then.keys() & found for name in rule.leaders} - found:
            found |= more
        return found - self.facts.keys()

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
            f"  overridden by: {each.project}, {each.how} [{each.source}, {each.date}]" for each in self.overridden_by
        ]
        return "\n".join(lines)


def kind_in_words(kind: AnswerKind) -> str:
    return kind.replace("-", " ")


def kind_of(answer: Answer, conflicts: Iterable[Conflict]) -> AnswerKind | None:
    """Return the kind of a whole answer; None where nothing speaks against the combination.

    It breaks where one of the errors says so; pip refuses it where all errors hold a declared requirement. A compatible
    combination with warnings degrades.
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


def worst_answer(answers: Mapping[str, CellAnswer]) -> CellAnswer:
    """Return the worst of several cells' answers, by cell, with the cell in its reason."""
    order = ("incompatible", "unknown", "compatible")
    name, worst = min(answers.items(), key=lambda each: order.index(each[1].answer))
    return CellAnswer(worst.answer, f"{name}: {worst.reason}" if worst.reason else "")
