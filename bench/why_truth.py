"""Ask `imagegen why` about sets that projects ship and sets that users reported broken, and write how true it answers.

    python bench/why_truth.py [--wrong] [PAGE]

Reads tests/truth/*.yaml and asks each case in this process, as the command does, with all that a command loads. Prints
the tables as Markdown, or replaces the part of PAGE below its mark. --wrong lists the cases that are not right instead.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import click
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from imagegen.cli.app import App
from imagegen.cli.why_command import command
from imagegen.compat import metadata
from imagegen.core.data import shipped
from imagegen.core.errors import ImagegenError

TRUTH = Path(__file__).parents[1] / "tests/truth"
MARK = "<!-- bench/why_truth.py writes what follows -->"
GOOD = {"P": "a lock or pip resolves it", "O": "the project overrides a declared pin", "H": "other hardware"}
BAD = {
    "S": "symbols and ABI",
    "A": "imports and API",
    "H": "GPU architecture",
    "D": "driver",
    "R": "resolver",
    "G": "glibc",
    "W": "silent fallback",
}
_LISTED = 4  # reasons of a wrong answer that the page lists
SECONDS = 0.5  # that one question may take
_AGAIN = 2  # times that it is asked again for its seconds; the least counts, since other programs only add some


@dataclass(frozen=True)
class Case:
    """A combination from the field. `names` are patterns that one conflict of a right answer matches, for broken ones.

    `never` are versions by package that a proposal must not name, because the source says that they fail too; of
    several packages, versions that must not be together.
    """

    id: str
    kind: str  # one of GOOD or BAD
    ask: str
    source: str
    date: str
    broken: bool
    because: str = ""
    names: tuple[str, ...] = ()
    never: Mapping[str, SpecifierSet] = field(default_factory=dict)
    held: bool = False
    drawn: str = ""  # the day on which a new case was asked for the first time
    first: str = ""  # the outcome of that: right, wrong (half right ones too) or unknown
    side: str = ""  # "outside": the fault is about a package outside of torch, its wheels and the engines


@dataclass(frozen=True)
class Answer:
    """The exit code of `imagegen why --json`, what it printed, and the CPU seconds that it took."""

    code: int
    said: dict[str, Any]
    seconds: float
    error: str = ""

    @cached_property
    def conflicts(self) -> list[str]:
        """The text of each conflict: its components and all its rules."""
        texts: dict[int, list[str]] = {}
        for each in self.said.get("conflicts", []):
            facts = " ".join(f"{name} {text}" for name, text in each["components"].items())
            columns = [each["severity"], facts, each["rule"], each["reason"], each.get("message") or "", each["fix"]]
            texts.setdefault(each["conflict"], []).append(" ".join(columns))
        return [" ".join(parts) for parts in texts.values()]

    @property
    def rules(self) -> frozenset[str]:
        """The ids of the rules in the answer, without the requirements that lead to them from other releases."""
        ids = (each["rule"] for each in self.said.get("conflicts", []))
        return frozenset(each for each in ids if not each.startswith("pypi:"))

    @property
    def is_refusal_of_pip(self) -> bool:
        """Return whether the answer is only that pip refuses, with the way around each declared pin."""
        errors = [each for each in self.said.get("conflicts", []) if each["severity"] == "error"]
        return self.said.get("kind") == "pip-refuses" and all(each.get("override") for each in errors)

    def gives(self, names: Iterable[str]) -> bool:
        """Return whether one conflict matches all patterns."""
        return any(all(re.search(name, text, re.IGNORECASE) for name in names) for text in self.conflicts)


@dataclass(frozen=True)
class Proposal:
    changes: Mapping[str, str]
    fault: str  # "" if it is right


@dataclass(frozen=True)
class Result:
    case: Case
    answer: Answer
    outcome: str  # right, half, wrong, unknown
    is_named: bool  # the thread's reason is
    proposals: tuple[Proposal, ...]
    seconds: float  # of the processor's, asked again


def load(name: str) -> list[Case]:
    """Return the cases of a file: "shipped" or "broken"."""
    rows = yaml.safe_load((TRUTH / f"{name}.yaml").read_text(encoding="utf-8"))["cases"]
    return [
        Case(
            id=row["id"],
            kind=row["class"],
            ask=row["ask"],
            source=row["source"],
            date=row["date"],
            broken=name == "broken",
            because=row.get("because", ""),
            names=tuple(row.get("names", ())),
            never={each: SpecifierSet(versions) for each, versions in row.get("never", {}).items()},
            held=row.get("held", False),
            drawn=row.get("drawn", ""),
            first=row.get("first", ""),
            side=row.get("side", ""),
        )
        for row in rows
    ]


@cache
def store() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="why-truth-")  # for packages that `why` asks the index about


def new_app() -> App:
    env = {**os.environ, "NO_COLOR": "1", "XDG_CACHE_HOME": store().name}
    return App(env, Path(__file__).parent)  # a project without matrices of its own


def ask(words: Sequence[str], app: App) -> Answer:
    """Return what `imagegen why --json` answers; an app that has answered before has the matrix loaded."""
    start = time.process_time()
    out = io.StringIO()
    code, error = 0, ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = command.main(["--json", *words], standalone_mode=False, obj=app)
        except ImagegenError as problem:
            code, error = problem.exit_code, str(problem)
        except click.ClickException as problem:
            code, error = 64, problem.format_message()
    seconds = time.process_time() - start
    text = out.getvalue()
    return Answer(code, json.loads(text) if text else {}, seconds, error)


def judge(case: Case) -> Result:
    app, words = new_app(), shlex.split(case.ask)
    answer = ask(words, app)
    seconds = min(ask(words, new_app()).seconds for _ in range(_AGAIN))
    is_named = case.broken and answer.gives(case.names)
    proposals = tuple(
        Proposal(each["changes"], fault(case, answer, each["changes"], shlex.split(each["command"])[2:], app))
        for each in answer.said.get("nearest", [])
    )
    return Result(case, answer, outcome(case, answer, is_named=is_named), is_named, proposals, seconds)


def outcome(case: Case, answer: Answer, *, is_named: bool) -> str:
    if answer.code not in {0, 1}:
        return "unknown"
    if case.broken:
        if answer.code == 1 or (case.kind == "W" and is_named):
            return "right"
        return "half" if is_named else "wrong"
    return "right" if answer.code == 0 or (case.kind == "O" and answer.is_refusal_of_pip) else "wrong"


def fault(case: Case, first: Answer, changes: Mapping[str, str], words: Sequence[str], app: App) -> str:
    """Return what is wrong with a proposal, which is asked again; "" where it is right. `first` proposed it."""
    if failing := fails_too(case, changes, words):
        return f"{failing} fails too"
    for name, specifier in changes.items():
        version = specifier.removeprefix("==")
        if not exists(name, version):
            return f"no {name} {version} is known"
    again = ask(words, app)
    if again.code:
        return f"asked again, it ends with {again.code}"
    warned = sorted(again.rules - first.rules)
    return f"{warned[0]} warns of it" if warned else ""


def fails_too(case: Case, changes: Mapping[str, str], words: Sequence[str]) -> str:
    """Return the changed versions in `words`, the question that is proposed, if the source says no to them; else ""."""
    versions = {name: version for name, _, version in (word.partition("==") for word in words)}
    versions |= {name: specifier.removeprefix("==") for name, specifier in changes.items()}
    changed = [f"{name} {versions[name]}" for name in case.never if name in changes]
    refused = all(name in versions and versions[name] in never for name, never in case.never.items())
    return ", ".join(changed) if refused else ""


def exists(name: str, version: str) -> bool:
    """Return whether a release is known; True where the name has no releases (cuda, python, base).

    Releases before the shipped ones come from the index. One that it does not have is unknown when it is asked again.
    """
    known = releases(name)
    if not known:
        return True
    try:
        return Version(version).public in known or Version(version) < min(map(Version, known))
    except InvalidVersion:
        return True


@cache
def releases(name: str) -> frozenset[str]:
    found = metadata.load([shipped("matrices")], name)
    return frozenset(found.releases) if found else frozenset()


def share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)" if whole else "-"


def by_class(results: Sequence[Result], classes: Mapping[str, str], *, broken: bool) -> Iterator[str]:
    named = " with the thread's reason |" if broken else ""
    yield f"| class | cases | right |{named} half | wrong | unknown |"
    yield f"| --- | --- | --- |{' --- |' if broken else ''} --- | --- | --- |"
    results = [each for each in results if each.case.broken == broken]
    for key, text in classes.items():
        if group := [each for each in results if each.case.kind == key]:
            yield row(f"{key}: {text}", group, broken=broken)
    yield row("**all**", results, broken=broken)


def row(title: str, results: Sequence[Result], *, broken: bool) -> str:
    right = [each for each in results if each.outcome == "right"]
    cells = [title, str(len(results)), share(len(right), len(results))]
    cells += [str(sum(each.is_named for each in right))] if broken else []
    cells += [str(count(results, name)) for name in ("half", "wrong", "unknown")]
    return f"| {' | '.join(cells)} |"


def goals(results: Sequence[Result]) -> Iterator[str]:
    good = [each for each in results if not each.case.broken]
    bad = [each for each in results if each.case.broken]
    refused = [each for each in bad if each.outcome == "right"]
    proposals = [each for one in results for each in one.proposals]
    yield "| goal | is | wanted | reached |"
    yield "| --- | --- | --- | --- |"
    yield goal("shipped sets refused", count(good, "wrong"), len(good), most=0)
    yield goal("shipped sets answered right", count(good, "right"), len(good), least=0.9)
    overridden = [each.answer.said for each in good if each.outcome == "right" and each.answer.code == 1]
    yield f"| of these, as a pin that pip refuses and an override ignores | {len(overridden)} | | |"
    named = sum(bool(each.get("overridden_by")) for each in overridden)
    yield f"| of these, with a project that does so | {named} | | |"
    yield goal("broken sets called compatible", count(bad, "wrong") + count(bad, "half"), len(bad), most=0)
    yield goal("broken sets refused", len(refused), len(bad), least=0.85)
    yield goal("of these, with the thread's reason", sum(each.is_named for each in refused), len(refused), least=0.8)
    yield goal("proposals right", sum(not each.fault for each in proposals), len(proposals), least=0.95)
    seconds = [each.seconds for each in results]
    yield f"| CPU seconds for one question | {spread(seconds)} | {SECONDS} | {reached(max(seconds) < SECONDS)} |"
    first = spread([each.answer.seconds for each in results])
    yield f"| the first time, with empty caches and modules to import | {first} | | |"


def spread(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.2f}, at most {max(seconds):.2f}"


def goal(title: str, number: int, of: int, *, least: float = 0.0, most: int | None = None) -> str:
    """Return a row: at least that share of the cases, or at most that number of them."""
    wanted = f"{most}" if most is not None else f"{least:.0%}"
    is_reached = number <= most if most is not None else number >= least * of
    return f"| {title} | {share(number, of)} of {of} | {wanted} | {reached(is_reached)} |"


def reached(yes: bool) -> str:
    return "yes" if yes else "**no**"


def count(results: Iterable[Result], name: str) -> int:
    return sum(each.outcome == name for each in results)


def page(results: Sequence[Result]) -> str:
    lines: list[str] = []
    for title, group in (("All cases", results), ("Held-out cases", [each for each in results if each.case.held])):
        lines += [f"## {title}", "", *goals(group), ""]
        lines += ["Sets that projects ship:", "", *by_class(group, GOOD, broken=False), ""]
        lines += ["Sets that users reported broken:", "", *by_class(group, BAD, broken=True), ""]
    for day in sorted({each.case.drawn for each in results} - {""}):
        lines += [f"## Cases drawn on {day}", "", *drawn([each for each in results if each.case.drawn == day]), ""]
    wrong = list(listed(sorted(results, key=lambda each: each.case.held)))
    return "\n".join([*lines, "## What is not right", "", *(wrong or ["Nothing."]), ""])


def drawn(results: Sequence[Result]) -> Iterator[str]:
    """Yield the outcomes of cases when they were asked for the first time, beside those of now."""
    yield "| sets | cases | right, first asking | wrong, first asking | right | wrong | unknown |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for title, broken in (("shipped", False), ("broken", True)):
        for side in ("", "inside", "outside"):
            group = [each for each in results if each.case.broken == broken and side in ("", each.case.side)]
            before = [sum(each.case.first == name for each in group) for name in ("right", "wrong")]
            now = [count(group, "right"), count(group, "wrong") + count(group, "half"), count(group, "unknown")]
            text = f"{title}, {side} of the stack" if side else f"**{title}**"
            shares = (share(number, len(group)) for number in (*before, *now))
            yield f"| {' | '.join([text, str(len(group)), *shares])} |"


def listed(results: Iterable[Result]) -> Iterator[str]:
    for each in results:
        case = each.case
        mark = f"**{case.id}** ({case.kind}{', held out' if case.held else ''}, [source]({case.source}))"
        if each.outcome != "right":
            expected = f" Expected: {case.because}" if case.broken else ""
            yield f"- {mark}: `{case.ask}`: {answered(each.answer)}{expected}"
        elif case.broken and not each.is_named:
            answer = answered(each.answer)
            yield f"- {mark}: refused for another reason than the thread's: {answer} Expected: {case.because}"
        for proposal in each.proposals:
            if proposal.fault:
                changes = " ".join(f"{name}{version}" for name, version in proposal.changes.items())
                yield f"- {mark}: proposes {changes}: {proposal.fault}."


def answered(answer: Answer) -> str:
    if answer.error:
        return f"no answer: {answer.error.splitlines()[0]}."
    reasons = [f"{each['rule']} ({each['severity']})" for each in answer.said.get("conflicts", [])]
    reasons += answer.said.get("unknown", [])
    return f"answered {answer.said.get('verdict')}{': ' if reasons else ''}{'; '.join(reasons[:_LISTED])}."


def main(arguments: Sequence[str]) -> None:
    cases = [*load("shipped"), *load("broken")]
    results = [judge(case) for case in cases]
    if "--wrong" in arguments:
        print("\n".join(listed(results)))
        return
    text = page(results)
    target = next((Path(word) for word in arguments), None)
    if target is None:
        print(text)
        return
    before = target.read_text(encoding="utf-8").partition(MARK)[0]
    target.write_text(f"{before}{MARK}\n\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
