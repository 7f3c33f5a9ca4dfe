"""The catalogue of findings, data/findings/*.yaml: for each id what it means, what helps, and where that comes from."""

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

_FOLDER = Path(__file__).parent / "data" / "findings"
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

    severity: Severity  # the usual one; a finding says its own
    title: str  # a few words, without a full stop
    meaning: str
    fix: str
    source: str  # where it is known from, with a date where that is a page


def _entry(name: str, found: Mapping[str, str]) -> FindingText:
    """Return the entry of an id, of its fields in the file. Raises ValueError."""
    if not _ID.fullmatch(name):
        raise ValueError(f"{name} is no id")
    names = [field.name for field in fields(FindingText)]
    if sorted(found) != sorted(names):
        raise ValueError(f"{name} has the fields {', '.join(found)}, and must have {', '.join(names)}")
    texts = {each: _line(found[each]) for each in names[1:]}
    return FindingText(Severity(found["severity"]), **texts)


def explain(name: str) -> FindingText:
    """The entry of an id. Raises UsageError, which offers the nearest one, for an id that there is not."""
    entries = catalogue()
    if name not in entries:
        fix = did_you_mean(name, entries) or "`imagegen audit --explain` lists all ids"
        raise UsageError(f'there is no finding "{name}"', code="usage-unknown-finding", fix=fix)
    return entries[name]


@cache
def catalogue() -> Mapping[str, FindingText]:
    """Return all entries by id, sorted. They are shipped, so an invalid one is a bug: a ValueError."""
    entries: dict[str, FindingText] = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        found = {name: _entry(name, each) for name, each in _read(path).items()}
        if twice := entries.keys() & found.keys():
            raise ValueError(f"{path.name}: {', '.join(sorted(twice))} is in another file too")
        entries |= found
    return dict(sorted(entries.items()))


def _read(path: Path) -> dict[str, Any]:
    found = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is no mapping")  # noqa: TRY004 - as for all that is wrong with a file
    return found
