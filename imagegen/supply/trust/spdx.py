"""Data about licences and releases: data/*.yaml, with sources and dates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from imagegen.audit.model import Licence


@cache
def data(name: str) -> Any:
    """A file as it stands. It is shipped: what is wrong with it is a bug."""
    path = Path(__file__).parent / "data" / f"{name}.yaml"
    return yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)


# From what packages state of their licences to SPDX expressions, where that is sure; else their own words.
#
# Sources: the SPDX specification 2.3, annex D (expressions), PEP 639, Debian's machine-readable copyright format 1.0;
# the meanings of words stand in data/spdx.yaml. Sure means: stated as such, or by a name that only one licence has,
# and nothing else that is stated contradicts it.

_LONGEST_NAME = 200  # characters
_OPERATORS = {"AND", "OR", "WITH"}
# What may stand above a quoted licence's first words.
_HEADING = re.compile(
    r"(the )?[\w .,()-]{0,40}licen[cs]e[\w .,()-]{0,20}|[-*\s]*(copyright|\(c\)|©).*|all rights reserved\.?"
)
_STRAIGHT = str.maketrans("\u201c\u201d\u2019", '""\'')
_NOTICE = re.compile(r"[-*\s]*(copyright|\(c\)|©)", re.IGNORECASE)
_APPENDIX = "appendix: how to apply the apache license to your work."


@dataclass(frozen=True)
class Terms:
    """The licence of something: an SPDX expression, or, where none is certain, the stated names.

    `declared`: the package states it in these words. `text` is a whole licence that the first name is of. Without
    expression and names nothing is known.
    """

    expression: str | None = None
    names: tuple[str, ...] = ()
    declared: bool = False
    text: str | None = None


def of_wheel(stated: Licence) -> Terms:
    """Return the licence terms of METADATA, by its newest field that has them."""
    if stated.expression:
        valid = _canonical(stated.expression)
        return Terms(valid, () if valid else (stated.expression[:_LONGEST_NAME],), declared=True)
    text = stated.text or ""
    found = _meaning(text) if text else _only(stated.classifiers)
    if found and all(_fits(found, classifier) for classifier in stated.classifiers):
        return Terms(found, declared=found == text)
    classes = tuple(each.rpartition(" :: ")[2] for each in stated.classifiers)
    lines = [line for line in text.splitlines() if line]
    if not lines:
        return Terms(names=classes, declared=True)
    title, *more = lines
    if more and classes and _NOTICE.match(title):  # a licence without a title
        return Terms(names=classes, declared=True, text=text)
    return Terms(names=(title[:_LONGEST_NAME], *classes), declared=True, text=text if more else None)


def of_deb(short_names: Iterable[str]) -> Terms:
    """The licences of a package's files, all of which count."""
    names = tuple(short_names)
    parts = [_debian(name) for name in names]
    if not names or not all(parts):
        return Terms(names=names, declared=bool(names))
    found = sorted({part for part in parts if part})
    return Terms(_canonical(" AND ".join(f"({part})" if " OR " in part and len(found) > 1 else part for part in found)))


def _canonical(expression: str) -> str | None:
    try:
        return str(canonicalize_license_expression(expression))
    except (InvalidLicenseExpression, MemoryError, RecursionError):  # packaging has Python's compiler parse it
        return None


def _meaning(text: str) -> str | None:
    """The expression that a License field stands for: it is one, a name for one, or a licence as a whole."""
    if "\n" in text:
        return _quoted(text)
    known: str | None = data("spdx")["names"].get(text.lower())
    return known or _canonical(text)


def _quoted(text: str) -> str | None:
    flat = " ".join(text.lower().translate(_STRAIGHT).split())
    for each in data("spdx")["texts"]:
        start, end = flat.find(each["from"]), flat.find(each["upto"])
        if start < 0 or end < start:
            continue
        end += len(each["upto"])
        body, rest = flat[start:end], flat[end:].strip()
        above = text[: _place(text, each["from"])].lower().splitlines()
        headed = all(_HEADING.fullmatch(line) for raw in above if (line := " ".join(raw.split())))
        if headed and (not rest or rest.startswith(_APPENDIX)) and _sha256(body) == each["sha256"]:
            return str(each["is"])
    return None


def _place(text: str, words: str) -> int:
    """Return where words begin, however they are broken into lines."""
    match = re.search(r"\s+".join(map(re.escape, words.split())), text, re.IGNORECASE)
    return match.start() if match else 0


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _only(classifiers: tuple[str, ...]) -> str | None:
    """Return the licence if there is one classifier; several do not say whether all apply or one is to be chosen."""
    ids: list[str] = data("spdx")["classifiers"].get(classifiers[0], []) if len(classifiers) == 1 else []
    return ids[0] if len(ids) == 1 and "*" not in ids[0] else None


def _fits(expression: str, classifier: str) -> bool:
    """Return whether the expression has a licence that the classifier stands for."""
    ids = [word for word in re.findall(r"[\w.+-]+", expression) if word not in _OPERATORS]
    patterns = data("spdx")["classifiers"].get(classifier, ())
    return any(fnmatchcase(each, pattern) for each in ids for pattern in patterns)


def _debian(name: str) -> str | None:
    """A short name, or several that are joined in one way; more than that, and commas, are for human readers."""
    words = re.split(r"\s+(and|or)\s+", name, flags=re.IGNORECASE)
    joints = {word.upper() for word in words[1::2]}
    known = [data("spdx")["debian"].get(word.lower(), word) for word in words[::2]]
    ids = [_canonical(each) if each and " " not in each else None for each in known]
    if len(joints) > 1 or not all(ids):
        return None
    return f" {joints.pop() if joints else ''} ".join(each for each in ids if each)
