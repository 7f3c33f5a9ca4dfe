"""The catalogue of findings, data/findings/*.yaml: for each id what it means, what helps, and where that comes from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, TypeAdapter

from imagegen.audit.model import Severity
from imagegen.core.errors import UsageError
from imagegen.core.strict import Strict
from imagegen.core.text import did_you_mean, unprintable
from imagegen.core.types import Name

_FOLDER = Path(__file__).parent / "data" / "findings"


def _line(text: str) -> str:
    """Return the text as one line: YAML's folded texts end with a line break, and keep those before indented lines."""
    line = " ".join(text.split())
    if not line:
        raise ValueError("is empty")
    if bad := unprintable(line):
        raise ValueError(f"holds the control character {bad!r}")
    return line


_Text = Annotated[str, AfterValidator(_line)]


class FindingText(Strict):
    """The explanation of one finding id. Each text is one line."""

    severity: Annotated[Severity, Field(strict=False)]  # text in YAML; the usual one; a finding says its own
    title: _Text  # a few words, without a full stop
    meaning: _Text
    fix: _Text
    source: _Text  # where it is known from, with a date where that is a page


_FILE = TypeAdapter(dict[Name, FindingText])


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
        found = _FILE.validate_python(_read(path))
        if twice := entries.keys() & found.keys():
            raise ValueError(f"{path.name}: {', '.join(sorted(twice))} is in another file too")
        entries |= found
    return dict(sorted(entries.items()))


def _read(path: Path) -> Any:
    return yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader) or {}
