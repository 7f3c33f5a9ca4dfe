"""The catalogue of findings, data/findings/*.yaml, with the meaning, fix and source of each finding id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from imagegen.audit.model import Severity
from imagegen.core.errors import UsageError
from imagegen.core.text import did_you_mean, unprintable

FOLDER = Path(__file__).parent / "data" / "findings"
_ID = re.compile("[a-z0-9]+(-[a-z0-9]+)*")


def _line(text: str) -> str:
    """Return the text as one line: YAML's folded texts end with a line break, and keep those before indented lines."""
    line = " ".join(text.split())
    if not line:
        raise ValueError("is empty")
    if bad := unprintable(line):
        raise ValueError(f"holds the control character {bad!r}")
    return line


@dataclass(frozen=True)
class FindingText:
    """The explanation of one finding id. Each text is one line."""

    severity: Severity  # the usual one; a finding states its own
    title: str  # a few words, without a full stop
    meaning: str
    fix: str
    source: str  # the source of the statement, with a date if it is a page


def _entry(name: str, values: Mapping[str, str]) -> FindingText:
    """Return the entry of an id from its fields in the file. Raises ValueError if they are invalid."""
    if not _ID.fullmatch(name):
        raise ValueError(f"{name} is not an id")
    names = [field.name for field in fields(FindingText)]
    if sorted(values) != sorted(names):
        raise ValueError(f"{name} has the fields {', '.join(values)}, and must have {', '.join(names)}")
    texts = {text_name: _line(values[text_name]) for text_name in names[1:]}
    return FindingText(Severity(values["severity"]), **texts)


def explain(name: str) -> FindingText:
    """Return the entry of an id. Raises UsageError with the nearest id if the id does not exist."""
    entries = catalogue()
    if name not in entries:
        fix = did_you_mean(name, entries) or "`imagegen audit --explain` lists all ids"
        raise UsageError(f'there is no finding "{name}"', code="usage-unknown-finding", fix=fix)
    return entries[name]


@cache
def catalogue() -> Mapping[str, FindingText]:
    """Return all entries by id, sorted. They are shipped, so an invalid one is a bug and raises ValueError."""
    entries: dict[str, FindingText] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        file_entries = {name: _entry(name, values) for name, values in _read(path).items()}
        if twice := entries.keys() & file_entries.keys():
            raise ValueError(f"{path.name}: {', '.join(sorted(twice))} is in another file too")
        entries |= file_entries
    return dict(sorted(entries.items()))


def _read(path: Path) -> dict[str, Any]:
    document = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader) or {}
    if not isinstance(document, dict):
        raise ValueError(f"{path.name} is not a mapping")  # noqa: TRY004 - all errors in a file are ValueErrors
    return document
