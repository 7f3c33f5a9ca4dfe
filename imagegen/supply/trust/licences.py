"""Find licences of packages, write them as SPDX expressions, and list their conditions for redistribution.

The data are in data/*.yaml, with sources and dates.
"""

from __future__ import annotations

import email.parser
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.specifiers import SpecifierSet

from imagegen.audit.licence import read_licence
from imagegen.audit.model import InstalledDeb, Licence, OsRelease
from imagegen.core import registry
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, package_index
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import counted
from imagegen.image.inventory.subjects import known_system
from imagegen.image.layers import scan
from imagegen.plan.index_metadata import wheel_metadata
from imagegen.plan.lock.environments import distinct_wheels, environments
from imagegen.plan.lock.model import LOCAL, Lock, LockedBuild, LockedWheel


@cache
def data(name: str) -> Any:
    """Read a shipped data file. It is not validated, because a fault in it is a bug."""
    path = Path(__file__).parent / "data" / f"{name}.yaml"
    return yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)


# Convert the licence fields of packages to SPDX expressions if they are unambiguous, else keep their text.
#
# Sources: the SPDX specification 2.3, annex D (expressions), PEP 639, Debian's machine-readable copyright format 1.0;
# data/spdx.yaml has the meanings of words. A licence is unambiguous if a package states an expression, or a name that
# only one licence has, and if its other fields do not contradict it.

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


# Licences that restrict redistribution, reported before an image becomes public.
#
# The conditions of licences are in data/restricted.yaml, each with its source. Packages that it does not list are
# reported too if their own metadata calls them proprietary.

_PROPRIETARY = re.compile(r"licenseref|proprietary", re.IGNORECASE)


@dataclass(frozen=True)
class Restriction:
    """A licence, its packages in an image ("nvidia-cublas 13.1.0.3"), and its conditions for redistribution."""

    licence: str
    covers: tuple[str, ...]
    asks: tuple[str, ...]
    source: str

    def __str__(self) -> str:
        asks = "".join(f"\n    - {ask}" for ask in self.asks)
        return f"{self.licence}: {', '.join(self.covers)}{asks}\n    source: {self.source}"


def find_restrictions(lock: Lock, licences: KnownLicences) -> tuple[Restriction, ...]:
    """Return the licences in a lock that restrict redistribution; empty if none is known."""
    restrictions = []
    for entry in data("restricted")["licences"]:
        packages = (package for environment in environments(lock) for package in environment.lock.packages)
        covered = (package for package in packages if _covers(entry, package))
        covers = list(dict.fromkeys(f"{package.name} {package.version}" for package in covered))
        if _image(lock) in entry.get("images", ()):
            covers.insert(0, f"base image {lock.base.image}")
        if covers:
            source = f"{entry['source']} ({entry['date']})"
            restrictions.append(Restriction(entry["title"], tuple(covers), tuple(entry["asks"]), source))
    return (*restrictions, *_proprietary(lock, licences.wheels))


def _image(lock: Lock) -> str | None:
    return registry.parse(lock.base.image).name if lock.base.image else None


def _covers(entry: Mapping[str, Any], package: LockedWheel | LockedBuild) -> bool:
    versions = SpecifierSet(entry.get("versions", ""))
    has_name = any(re.fullmatch(pattern, package.name) for pattern in entry.get("packages", ()))
    return has_name and versions.contains(package.version.partition("+")[0], prereleases=True)


def _proprietary(lock: Lock, stated: Mapping[str, Licence]) -> Iterator[Restriction]:
    """Yield restrictions of proprietary packages that the data does not list, since their terms are not known."""
    entries = [*data("restricted")["licences"], *data("restricted")["open"]]
    for wheel in distinct_wheels(lock):
        words = list(_words(stated.get(wheel.file.sha256, Licence())))
        if any(map(_PROPRIETARY.search, words)) and not any(_covers(entry, wheel) for entry in entries):
            asks = ("imagegen's data does not cover its terms: read them before others can pull the image",)
            yield Restriction(", ".join(words), (f"{wheel.name} {wheel.version}",), asks, "the wheel's METADATA")


def _words(licence: Licence) -> Iterable[str]:
    terms = wheel_terms(licence)
    return (terms.expression,) if terms.expression else terms.names


# Look up the licences of all packages of a lock in scans of layers and audits, else on the index.
#
# For a wheel that this store has not scanned, the index may give the metadata without the wheel (PEP 658, or ranges of
# the archive). It is not verified, so it is only used for the file that the lock pins.

_LICENCES = Cache("licence", Licence)
_THREADS = 8


def read_known_licences(lock: Lock, context: Context) -> KnownLicences:
    """Return the licences in the store and on the indexes; unknown ones are missing. Wheels are not fetched."""
    licences = with_system(lock, stored_licences([lock], context.store), context.store)
    missing = [
        wheel for wheel in distinct_wheels(lock) if wheel.file.sha256 not in licences.wheels and _is_served(wheel)
    ]
    if not missing:
        return licences
    with timed(context.progress, f"asking indexes for the licences of {counted(len(missing), 'wheel')}"):
        return replace(
            licences, wheels={**licences.wheels, **_fetch_licences(missing, context.store, context.settings)}
        )


def stored_licences(locks: Iterable[Lock], store: Store) -> dict[str, Licence]:
    """Return the licences of wheels in the store, which come from scans or from an index, by the wheel's sha256."""
    wheels = {(wheel.file.sha256, lock.python): wheel for lock in locks for wheel in distinct_wheels(lock)}
    licences: dict[str, Licence] = {}
    for (sha256, python), wheel in wheels.items():  # a wheel may be scanned for only one of several Pythons
        if sha256 not in licences and (licence := _recorded(wheel, python, store)):
            licences[sha256] = licence
    return licences


def with_system(lock: Lock, wheels: Mapping[str, Licence], store: Store) -> KnownLicences:
    """Return the licences of wheels together with the base's licences in the store."""
    system = known_system(lock, store)
    return KnownLicences(wheels, system.debs, system.release) if system else KnownLicences(wheels)


def _recorded(wheel: LockedWheel, python: str, store: Store) -> Licence | None:
    if package := scan.recorded_scan(store, wheel, python):
        return package.licence
    return _LICENCES.get(store, wheel.file.digest)


def _is_served(wheel: LockedWheel) -> bool:
    return not (wheel.sdist or wheel.original or wheel.build or wheel.file.index == LOCAL)


def _fetch_licences(wheels: Iterable[LockedWheel], store: Store, settings: Settings) -> dict[str, Licence]:
    with Client(settings).impatient() as client, ThreadPoolExecutor(_THREADS, thread_name_prefix="licences") as pool:
        answers = pool.map(lambda wheel: (wheel, _fetch_licence(wheel, client, settings)), wheels)
        fetched = {wheel: licence for wheel, licence in answers if licence}
    for wheel, licence in fetched.items():
        _LICENCES.put(store, wheel.file.digest, licence)
    return {wheel.file.sha256: licence for wheel, licence in fetched.items()}


def _fetch_licence(wheel: LockedWheel, client: Client, settings: Settings) -> Licence | None:
    """Return the licence in the index's metadata; None if the index cannot be reached or does not have the file."""
    url = package_index.url_of(wheel.file.index, settings)
    try:
        links = package_index.project(client, url, wheel.name) if url else []
        link = next((item for item in links if item.sha256 == wheel.file.sha256), None)
        raw = wheel_metadata.read(client, link) if link else None
    except FetchError:
        return None
    return None if raw is None else read_licence(email.parser.HeaderParser().parsestr(raw.decode(errors="replace")))
