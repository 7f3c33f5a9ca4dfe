"""Convert the licence fields of packages to SPDX expressions if they are unambiguous, else keep their text.

Sources: SPDX specification 2.3, annex D (expressions), PEP 639, Debian's machine-readable copyright format 1.0;
data/spdx.yaml has the meanings of words. A licence is unambiguous if a package states an expression, or a name that
only one licence has, and if its other fields do not contradict it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from imagegen.audit.model import InstalledDeb, Licence, OsRelease


@cache
def data(name: str) -> Any:
    """Read a shipped data file. It is not validated, because a fault in it is a bug."""
    path = Path(__file__).parent / "data" / f"{name}.yaml"
    return yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)


_LONGEST_NAME = 200  # characters
_OPERATORS = {"AND", "OR", "WITH"}
# Lines that may precede the text of a quoted licence.
_HEADING = re.compile(
    r"(the )?[\w .,()-]{0,40}licen[cs]e[\w .,()-]{0,20}|[-*\s]*(copyright|\(c\)|©).*|all rights reserved\.?"
)
_STRAIGHT = str.maketrans("\u201c\u201d\u2019", '""\'')
_NOTICE = re.compile(r"[-*\s]*(copyright|\(c\)|©)", re.IGNORECASE)
_APPENDIX = "appendix: how to apply the apache license to your work."


@dataclass(frozen=True)
class Terms:
    """A licence as an SPDX expression, or the stated names if an expression is not certain.

    `declared` is true if the package states it in these words. `text` is the whole licence with the first name. Without
    expression and names the licence is not known.
    """

    expression: str | None = None
    names: tuple[str, ...] = ()
    declared: bool = False
    text: str | None = None


@dataclass(frozen=True)
class KnownLicences:
    """The known licences of packages. A missing licence is reported as unknown."""

    wheels: Mapping[str, Licence] = field(default_factory=dict)  # by the wheel's sha256
    debs: Mapping[str, InstalledDeb] = field(default_factory=dict)  # by name, as dpkg has them in the base
    release: OsRelease | None = None  # of the base


def wheel_terms(stated: Licence) -> Terms:
    """Return the licence terms of METADATA, from its newest field with a licence."""
    if stated.expression:
        valid = _canonical(stated.expression)
        return Terms(valid, () if valid else (stated.expression[:_LONGEST_NAME],), declared=True)
    text = stated.text or ""
    expression = _meaning(text) if text else _only(stated.classifiers)
    if expression and all(_fits(expression, classifier) for classifier in stated.classifiers):
        return Terms(expression, declared=expression == text)
    names = tuple(classifier.rpartition(" :: ")[2] for classifier in stated.classifiers)
    lines = [line for line in text.splitlines() if line]
    if not lines:
        return Terms(names=names, declared=True)
    title, *body = lines
    if body and names and _NOTICE.match(title):  # a licence without a title
        return Terms(names=names, declared=True, text=text)
    return Terms(names=(title[:_LONGEST_NAME], *names), declared=True, text=text if body else None)


def deb_terms(short_names: Iterable[str]) -> Terms:
    """Return the terms of a Debian package, which combine the licences of all its files."""
    names = tuple(short_names)
    licences = [_debian(name) for name in names]
    if not names or not all(licences):
        return Terms(names=names, declared=bool(names))
    distinct = sorted({licence for licence in licences if licence})
    return Terms(
        _canonical(" AND ".join(f"({part})" if " OR " in part and len(distinct) > 1 else part for part in distinct))
    )


def _canonical(expression: str) -> str | None:
    try:
        return str(canonicalize_license_expression(expression))
    except (InvalidLicenseExpression, MemoryError, RecursionError):  # packaging parses it with Python's compiler
        return None


def _meaning(text: str) -> str | None:
    """Return the expression for a License field, which has an expression, a name, or the whole text of a licence."""
    if "\n" in text:
        return _match_text(text)
    named_licence: str | None = data("spdx")["names"].get(text.lower())
    return named_licence or _canonical(text)


def _match_text(text: str) -> str | None:
    flat = " ".join(text.lower().translate(_STRAIGHT).split())
    for entry in data("spdx")["texts"]:
        start, end = flat.find(entry["from"]), flat.find(entry["upto"])
        if start < 0 or end < start:
            continue
        end += len(entry["upto"])
        body, remainder = flat[start:end], flat[end:].strip()
        above = text[: _position(text, entry["from"])].lower().splitlines()
        headed = all(_HEADING.fullmatch(line) for raw in above if (line := " ".join(raw.split())))
        if headed and (not remainder or remainder.startswith(_APPENDIX)) and _sha256(body) == entry["sha256"]:
            return str(entry["is"])
    return None


def _position(text: str, words: str) -> int:
    """Return the position of words in a text with any line breaks."""
    match = re.search(r"\s+".join(map(re.escape, words.split())), text, re.IGNORECASE)
    return match.start() if match else 0


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _only(classifiers: tuple[str, ...]) -> str | None:
    """Return the licence of the only classifier. Several classifiers can mean that all apply, or that one is chosen."""
    ids: list[str] = data("spdx")["classifiers"].get(classifiers[0], []) if len(classifiers) == 1 else []
    return ids[0] if len(ids) == 1 and "*" not in ids[0] else None


def _fits(expression: str, classifier: str) -> bool:
    """Return whether the expression has a licence that the classifier stands for."""
    ids = [word for word in re.findall(r"[\w.+-]+", expression) if word not in _OPERATORS]
    patterns = data("spdx")["classifiers"].get(classifier, ())
    return any(fnmatchcase(licence_id, pattern) for licence_id in ids for pattern in patterns)


def _debian(name: str) -> str | None:
    """Return the expression for short names that are joined by "and" or by "or"; None for other texts."""
    words = re.split(r"(?<!\s)\s+(and|or)\s+", name, flags=re.IGNORECASE)
    conjunctions = {word.upper() for word in words[1::2]}
    licence_names = [data("spdx")["debian"].get(word.lower(), word) for word in words[::2]]
    ids = [_canonical(name) if name and " " not in name else None for name in licence_names]
    if len(conjunctions) > 1 or not all(ids):
        return None
    return f" {conjunctions.pop() if conjunctions else ''} ".join(licence_id for licence_id in ids if licence_id)
