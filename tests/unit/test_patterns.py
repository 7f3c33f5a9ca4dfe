"""The time of every regular expression of imagegen grows with the text that it is applied to, and no faster."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from imagegen.audit import catalogue
from imagegen.compat.package_data import package_data
from imagegen.lock import distributions
from imagegen.run.doctor.messages import known_messages, version_patterns
from imagegen.trust import licences
from tests.support.code_patterns import Pattern, collect
from tests.support.patterns import Automaton
from tests.support.timing import TooSlowError, within

PACKAGE = Path(__file__).parents[2] / "imagegen"
# These programs run in containers, on the output of the same container.
IN_CONTAINERS = "imagegen/checks/"
_SIZES = 2_000, 8_000  # letters
_LEAST = 0.01  # seconds; shorter times are not compared
_MOST = 8  # times as long for 4 times the text: linear is 4, quadratic is 16
_TOO_LONG = 0.2  # seconds


@cache
def _elsewhere() -> dict[tuple[str, str], list[str]]:
    """Patterns of data files and tables, by the file and the expression that apply them."""
    libraries = catalogue.data("libraries")
    projects = yaml.safe_load((PACKAGE / "projects/data/projects.yaml").read_text(encoding="utf-8"))
    restricted = licences.data("restricted")
    entries = [*restricted["licences"], *restricted["open"]]
    return {
        ("imagegen/audit/catalogue.py", "pattern"): [
            *libraries["driver"]["libraries"],
            *libraries["required"]["libraries"],
        ],
        ("imagegen/audit/libraries.py", "single.pattern"): [single.pattern for single in catalogue.singles()],
        ("imagegen/audit/catalogue.py", "entry['package']"): [entry["package"] for entry in libraries["optional"]],
        ("imagegen/audit/catalogue.py", "entry['files']"): [entry["files"] for entry in libraries["optional"]],
        ("imagegen/lock/distributions.py", "archive.addresses"): [
            archive.addresses for archive in distributions.archives().values()
        ],
        ("imagegen/projects/names.py", "entry['image']"): [entry["image"] for entry in projects["images"]],
        ("imagegen/projects/names.py", "pattern"): projects["systems"],
        ("imagegen/projects/names.py", "entry['names']"): [
            accelerator["names"] for accelerator in projects["accelerators"].values()
        ],
        ("imagegen/compat/demands.py", "entry['library']"): [
            entry["library"] for entry in package_data()["cuda-libraries"]["distributions"]
        ],
        ("imagegen/compat/demands.py", "entries[0]['library']"): [
            entry["library"] for entry in package_data()["library-for-each-cuda"]
        ],
        ("imagegen/audit/api/source.py", "expression"): [rb"^[ \t]{0,8}+[^ \t\f\r\n)\]}#]"],
        ("imagegen/run/doctor/messages.py", "message.pattern"): [message.pattern for message in known_messages()],
        ("imagegen/run/doctor/log.py", "pattern"): list(version_patterns().values()),
        ("imagegen/trust/restrictions.py", "pattern"): [
            text for entry in entries for text in entry.get("packages", ())
        ],
    }


@cache
def patterns() -> tuple[Pattern, ...]:
    applied: set[Pattern] = set()
    for pattern in collect(PACKAGE):
        if isinstance(pattern, Pattern):
            applied.add(pattern)
        elif not pattern.file.startswith(IN_CONTAINERS):
            applied |= {pattern.with_text(text) for text in _elsewhere()[pattern.file, pattern.expression]}
    outside = (pattern for pattern in applied if not pattern.where.startswith(IN_CONTAINERS))
    return tuple(sorted(outside, key=lambda pattern: (pattern.where, pattern.method, str(pattern.text))))


@cache
def _automaton(pattern: Pattern) -> Automaton:
    return Automaton(pattern.text, pattern.flags, pattern.method)


def test_the_ways_through_a_pattern_are_bounded() -> None:
    growths = {pattern: _automaton(pattern).growth() for pattern in patterns()}
    assert {pattern: growth for pattern, growth in growths.items() if growth} == {}
    assert len(growths) > 300  # none were overlooked


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("search", "(a*)*b"),
        ("match", "(a|a)*b"),
        ("fullmatch", r"(\./|X[Xa]*/?)(X[Xa]*/?)*"),
        ("match", "([a-z]+[0-9]*)*;"),
        ("match", "(a{0,3})*;"),
    ],
)
def test_exponential_patterns_are_found(method: str, text: str) -> None:
    growth = Automaton(text, 0, method).growth()
    assert growth is not None and growth[0] == "exponential"


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("match", "a*a*b"),
        ("search", "a+b"),
        ("search", "a++b"),  # from each letter to the end
        ("search", "a{0,5000}b"),
        ("fullmatch", "([ab]+){0,3}"),
        ("search", r"(?:^|\s+)#.*$"),
        ("search", "x(?=.*y)z"),
        ("search", "ab[a-z]+z"),
        ("search", r"(\S+) is not a model"),
        ("sub", r"[^/]+\.data/"),
        ("findall", "(?i)<A[^>]*>"),
        ("finditer", r"BEGIN (\w+)[\s\S]*?END \1"),
        ("fullmatch", r"\s*(.*)"),
        ("fullmatch", "(.+?) stays (.+?)(?:, not (.+?))?: (.*)"),
    ],
)
def test_quadratic_patterns_are_found(method: str, text: str) -> None:
    growth = Automaton(text, 0, method).growth()
    assert growth is not None and growth[0] == "polynomial"


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("match", "a+b"),
        ("match", "a*+a*b"),
        ("match", r'(?:[^\\"]|\\.)*"'),
        ("match", r"\s*(.*)"),
        ("fullmatch", "[a-z]+(-[a-z]+)*"),
        ("fullmatch", r"\s*+(.*)"),
        ("search", "a+"),
        ("search", "^a+b"),
        ("search", "(?<!a)a+b"),
        ("search", r"\b\w++b"),
        ("search", r"(?<!\S)(\S+) is not a model"),
        ("search", "a{0,200}b"),
        ("findall", "(?i)<A[^<>]*>"),
    ],
)
def test_linear_patterns_pass(method: str, text: str) -> None:
    assert Automaton(text, 0, method).growth() is None


# The same measured: texts that repeat letters and words of the pattern.


def _texts(pattern: Pattern, size: int) -> Iterator[str]:
    """Yield texts of letters and words of the pattern, repeated, which it matches or not because of their ends."""
    source = pattern.text if isinstance(pattern.text, str) else pattern.text.decode("latin-1")
    words = re.findall(r"[A-Za-z]{2,}|[^\w\s\\()\[\]{}|?*+^$]", source)
    automaton = _automaton(pattern)
    letters = automaton.alphabet if automaton.is_endless else ()
    for unit in dict.fromkeys((*letters, *words, *(f"{word}0" for word in words), *(f"{word} " for word in words))):
        for start in ("", *words[:1]):
            for end in ("", "\0"):
                yield start + unit * (size // len(unit)) + end


def _seconds(pattern: Pattern, text: str) -> float:
    subject = text if isinstance(pattern.text, str) else text.encode("latin-1", "replace")
    method = pattern.method if pattern.method in ("match", "fullmatch", "search") else "findall"
    apply = getattr(re.compile(pattern.text, pattern.flags), method)
    start = time.process_time()
    apply(subject)
    return time.process_time() - start


def _is_slow(pattern: Pattern) -> bool:
    """Return whether four times the text takes much more than four times as long, in the best of three runs."""
    small, large = _SIZES
    for short, long in zip(_texts(pattern, small), _texts(pattern, large), strict=True):
        try:
            with within(_TOO_LONG):
                if _seconds(pattern, long) < _LEAST:
                    continue
                shorter = min(_seconds(pattern, short) for _ in range(3))
                longer = min(_seconds(pattern, long) for _ in range(3))
        except TooSlowError:
            return True
        if longer > _MOST * max(shorter, _LEAST / _MOST):
            return True
    return False


@pytest.mark.fault(
    "Matrices, rules, locks",
    "texts on which regular expressions would backtrack",
    "the time grows with the length of the text, and no faster",
)
def test_times_of_patterns_grow_with_the_text() -> None:
    assert [pattern for pattern in patterns() if _is_slow(pattern)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        Pattern(r"(\./|[a-z][a-z._-]*/?)([a-z][a-z._-]*/?)*", 0, "fullmatch", "a base's sources.list"),
        Pattern(r"(\S+) is not a local folder and is not a valid model identifier", 0, "search", "a log"),
        Pattern("(.+?) stays (.+?)(?:, not (.+?))?: (.*)", re.DOTALL, "fullmatch", "a changelog"),
        Pattern(r"(?:^|\s+)#.*$", 0, "sub", "requirements.txt"),
    ],
)
def test_slow_patterns_are_measured_as_slow(pattern: Pattern) -> None:
    assert _is_slow(pattern)
