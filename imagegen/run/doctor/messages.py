"""Explain messages of a log whose text hides their cause (data/messages.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from imagegen.checks.preflight.model import Finding
from imagegen.compat.model_types import model_type_summary
from imagegen.compat.models import Models

_LONGEST = 80  # characters of a group in a text


@dataclass(frozen=True)
class KnownMessage:
    """`pattern` is searched in a log; `{0}` in a text is the first group of the match. Read on `date`."""

    id: str
    pattern: str
    meaning: str
    fix: str
    source: str
    date: str
    general: bool = False  # whether a rule with a message for the same line explains it better
    effect: bool = False  # whether it only reports that something else failed
    model: bool = False  # whether the first group is a model type
    finding: str = ""  # the finding of the audit with the same cause

    def explain(self, match: re.Match[str], models: Models) -> Finding:
        groups = [group[:_LONGEST] for group in match.groups() if group]
        meaning, fix = (_fill(text, groups) for text in (self.meaning, self.fix))
        if self.model:
            fix = f"{model_type_summary(models, ''.join(groups[:1]))}: {fix}"
        if self.finding:
            fix += f"; `imagegen audit --explain {self.finding}` has more"
        return Finding("log", "error", f"{meaning} [{self.id}; {self.source}, {self.date}]", fix)


def _fill(text: str, groups: Sequence[str]) -> str:
    """Replace `{0}` and so on in a text by groups; a group that took no part leaves no empty parentheses."""
    for number in range(3):
        text = text.replace(f"{{{number}}}", groups[number] if number < len(groups) else "")
    return re.sub(r" ?\( ?[^\w()]{0,3}\)| (?=[,:;])| {1,9}$", "", text)


@cache
def _data() -> Any:
    return yaml.load((Path(__file__).parent / "data/messages.yaml").read_bytes(), Loader=yaml.CSafeLoader)


@cache
def known_messages() -> tuple[KnownMessage, ...]:
    """Return all entries of the file, in its order. It is shipped: a fault in it is a bug."""
    return tuple(KnownMessage(**entry) for entry in _data()["messages"])


def version_patterns() -> dict[str, str]:
    """Return the patterns of versions in a log by the names of their subjects."""
    return dict(_data()["versions"])


def find_messages(log: str, *, effect: bool = False) -> Iterator[tuple[KnownMessage, re.Match[str]]]:
    """Yield the known messages in a log with their matches, in the order of the file: effects, or the others.

    A match that overlaps one of an earlier entry is left out.
    """
    explained: list[tuple[int, int]] = []
    for message in known_messages():
        match = re.search(message.pattern, log) if message.effect == effect else None
        if match and not any(start < match.end() and match.start() < end for start, end in explained):
            explained.append(match.span())
            yield message, match


def explain_messages(log: str, models: Models) -> list[Finding]:
    """Return a finding for each known message in the log, whatever rules say about it."""
    return [message.explain(match, models) for message, match in find_messages(log)]
