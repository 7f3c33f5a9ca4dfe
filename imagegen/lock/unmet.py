"""uv's explanation of why there is no resolution, told as a conflict is: which pins, and who asks for what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_AT_MOST = 24  # reasons that are told
# Of uv 0.13: "Because A and B, we can conclude that C.", then "And because D, we can conclude that E." and so on; a
# conclusion that ends in a list has no full stop.
_STEP = re.compile(
    r"(?:Because|[Aa]nd because) (.+?),? we can conclude that (.+?)"
    r"(?:\.(?: \(\d+\))?(?= [A-Z]|$)|(?= And because ))"
)
_NAME = r"[\w.-]+(?:\[[\w,-]+\])?(?:[=<>!~]\S*)?"
_BEGINS = (
    rf"(?:all versions of |there (?:is|are) no |only |we know from |{_NAME} (?:depends? on|was not|has no|requires?) )"
)
_LIST = re.compile(r"(one of|all of|available):\n((?: {10,}\S+(?:\n|$))+)")  # an item to a line
_BETWEEN = {"one of": " or ", "all of": " and ", "available": ", "}
_WORDS = (
    (
        re.compile(r"^all versions of (\S+) (?:depend on|require) (.+)"),
        r"every \1 that comes into question requires \2",
    ),
    (re.compile(r"^(\S+) depends? on (.+)"), r"\1 requires \2"),
    (re.compile(r"^there (?:is|are) no versions? of (\S+)$"), r"the index has no \1"),
    (re.compile(r"^only the following versions of \S+ are available: (.+)$"), r"the index has only \1"),
    (re.compile(r"^only (.+) (?:is|are) available$"), r"the index has only \1"),
    (re.compile(r"^(\S+) was not found in the package registry$"), r"the index has no package \1"),
)


@dataclass(frozen=True)
class Unmet:
    """`asked` are requirements of whatever was resolved itself, `reasons` sentences about everybody else's."""

    asked: tuple[str, ...]
    reasons: tuple[str, ...]
    hints: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"error: {', '.join(self.asked)}", *(f"  because: {reason}" for reason in self.reasons[:_AT_MOST])]
        lines += [f"  … ({len(self.reasons) - _AT_MOST} more)"] if len(self.reasons) > _AT_MOST else []
        lines.append("  source: the index, as uv reads it")
        lines += [f"  hint: {hint}" for hint in self.hints]
        return "\n".join([*lines, f"  fix: change {' or '.join(self.asked)}"])


def told(explanation: str, project: str) -> Unmet | None:
    """What uv says of `project`, the name of what was resolved; None for any other text than such an explanation."""
    body, *hints = re.split(r"\n\s*\n?hint: ", explanation)
    found = re.search(r"\bcause: (.*)", body, re.DOTALL)
    if not found:
        return None
    steps = _STEP.findall(" ".join(_LIST.sub(_in_line, found[1]).split()))
    if not steps or "unsatisfiable" not in steps[-1][1]:
        return None
    premises = list(dict.fromkeys(each for step, _ in steps for each in _premises(step)))
    own = rf"{re.escape(project)} depends on (.+)"
    asked = [one for each in premises if (said := re.fullmatch(own, each)) for one in said[1].split(" and ")]
    reasons = [_reworded(each) for each in premises if not re.fullmatch(own, each)]
    return Unmet(tuple(dict.fromkeys(asked)), tuple(reasons), tuple(_hints(hints))) if asked else None


def _in_line(found: re.Match[str]) -> str:
    begin = "available: " if found[1] == "available" else ""
    return f"{begin}{_BETWEEN[found[1]].join(found[2].split())}\n"


def _premises(step: str) -> Iterator[str]:
    for each in re.split(rf" and (?={_BEGINS})", step):
        if not each.startswith("we know from "):  # a conclusion of before
            yield each.strip()


def _reworded(premise: str) -> str:
    for pattern, words in _WORDS:
        premise = pattern.sub(words, premise)
    return premise


def _hints(hints: list[str]) -> Iterator[str]:
    for hint in hints:
        yield " ".join(hint.split()).replace("You require", "the cell is for")
