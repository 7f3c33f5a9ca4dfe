"""uv's explanation of why there is no resolution, told as a conflict is: which pins, and who asks for what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_AT_MOST = 24  # reasons that are told
# Of uv 0.13: "Because A and B, we can conclude that C.", then "And because D, we can conclude that E." and so on; a
# conclusion that ends in a list has no full stop.
_STEP = re.compile(
    r"(?:Because|[Aa]nd because) (.+?),? we can conclude that (.+?)"
    r"(?:\.(?: \(\d+\))?(?= [A-Z]|$)|(?= And because ))"
)
_PACKAGE, _RANGE = r"[\w.-]+", r"(?:\[[\w,-]+\])?(?:[=<>!~]\S*)?"
_NAME = _PACKAGE + _RANGE
_BEGINS = (
    r"(?:all versions of |there (?:is|are) no |only |we know from |"
    rf"{_NAME} (?:depends? on|was not|was published|has no|requires?) )"
)
_LIST = re.compile(r"(one of|all of|available):\n((?: {10,}\S+(?:\n|$))+)")  # an item to a line
_BETWEEN = {"one of": " or ", "all of": " and ", "available": ", "}
_LATE = "uploaded after the lock's time"
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
    (re.compile(r"^(.+) (was|were) published after the exclude newer time$"), rf"\1 \2 {_LATE}"),
)
# Of uv 0.13: "The requested version, v1.0, was published at T." or "The latest version satisfying the requirement is
# v1.0, published at T."; without "published at" where the index gives no upload time.
_EXCLUDED = re.compile(
    r"`([^`]+)` was filtered by `exclude-newer` to only include packages uploaded before (\S+)\."
    r"(?: The (?:requested|latest) version[^`]*? v(\S+),(?: was)? published at (\S+)\.)?"
)
_UNDATED = re.compile(rf"(?<![\w.-])({_PACKAGE}){_RANGE} (?:has|have) no publish time")  # of a version that a lock has


@dataclass(frozen=True)
class Excluded:
    """A package of which uv ignored files that would have served, since `cutoff` (RFC 3339).

    `version` was uploaded at `uploaded`; both are empty where the index gives no upload time.
    """

    package: str
    cutoff: str
    version: str = ""
    uploaded: str = ""

    def __str__(self) -> str:
        return f"{self.package} {self.version} was uploaded at {self.uploaded}"


@dataclass(frozen=True)
class Unmet:
    """`asked` are requirements of whatever was resolved itself, `reasons` sentences about everybody else's."""

    asked: tuple[str, ...]
    reasons: tuple[str, ...]
    hints: tuple[str, ...] = ()
    late: bool = False  # whether files were ignored that a later time admits

    def __str__(self) -> str:
        lines = [f"error: {', '.join(self.asked)}", *(f"  because: {reason}" for reason in self.reasons[:_AT_MOST])]
        lines += [f"  … ({len(self.reasons) - _AT_MOST} more)"] if len(self.reasons) > _AT_MOST else []
        lines.append("  source: the index, as uv reads it")
        lines += [f"  hint: {hint}" for hint in self.hints]
        later = ", or lock as of a later time (--as-of)" if self.late else ""
        return "\n".join([*lines, f"  fix: change {' or '.join(self.asked)}{later}"])


def excluded(explanation: str) -> list[Excluded]:
    """Return what uv's hints name as ignored for its upload time, or for the lack of one."""
    return [Excluded(*found) for found in _EXCLUDED.findall(" ".join(explanation.split()))]


def undated(explanation: str) -> list[str]:
    """Return the packages of which uv ignored files since the index gives no upload time, each once."""
    hinted = [each.package for each in excluded(explanation) if not each.uploaded]
    return list(dict.fromkeys([*hinted, *_UNDATED.findall(" ".join(explanation.split()))]))


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
    late = [each for each in excluded(explanation) if each.uploaded]
    reasons = [_reworded(each, late) for each in premises if not re.fullmatch(own, each)]
    reasons += map(str, late)
    ignored = bool(late) or any(_LATE in each for each in reasons)
    return Unmet(tuple(dict.fromkeys(asked)), tuple(reasons), tuple(_hints(hints)), ignored) if asked else None


def _in_line(found: re.Match[str]) -> str:
    begin = "available: " if found[1] == "available" else ""
    return f"{begin}{_BETWEEN[found[1]].join(found[2].split())}\n"


def _premises(step: str) -> Iterator[str]:
    for each in re.split(rf" and (?={_BEGINS})", step):
        if not each.startswith("we know from "):  # a conclusion of before
            yield each.strip()


def _reworded(premise: str, late: Iterable[Excluded]) -> str:
    for pattern, words in _WORDS:
        premise = pattern.sub(words, premise)
    lacking = re.match(r"the index has (?:no|only) ([\w.-]+)", premise)
    cutoffs = [each.cutoff for each in late if lacking and lacking[1] == each.package]
    return f"{premise} uploaded before {cutoffs[0]}" if cutoffs else premise


def _hints(hints: list[str]) -> Iterator[str]:
    for hint in hints:
        line = " ".join(hint.split())
        if not _EXCLUDED.match(line):  # it names an option of uv
            yield line.replace("You require", "the cell is for")
