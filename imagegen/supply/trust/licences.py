"""Licences of packages: as SPDX expressions, as conditions for redistribution, and where they are found.

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


@dataclass(frozen=True)
class KnownLicences:
    """The known licences of packages, beside the lock; a missing one is stated as unknown."""

    wheels: Mapping[str, Licence] = field(default_factory=dict)  # by the wheel's sha256
    debs: Mapping[str, InstalledDeb] = field(default_factory=dict)  # by name, as dpkg has them in the base
    release: OsRelease | None = None  # of the base


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
    words = re.split(r"(?<!\s)\s+(and|or)\s+", name, flags=re.IGNORECASE)
    joints = {word.upper() for word in words[1::2]}
    known = [data("spdx")["debian"].get(word.lower(), word) for word in words[::2]]
    ids = [_canonical(each) if each and " " not in each else None for each in known]
    if len(joints) > 1 or not all(ids):
        return None
    return f" {joints.pop() if joints else ''} ".join(each for each in ids if each)


# Licences that restrict redistribution, reported before an image becomes public.
#
# The conditions of licences are in data/restricted.yaml, each with its source. Packages that it does not list are
# reported too if their own metadata calls them proprietary.

_PROPRIETARY = re.compile(r"licenseref|proprietary", re.IGNORECASE)


@dataclass(frozen=True)
class Restriction:
    """A licence, what it covers in an image ("nvidia-cublas 13.1.0.3"), and its conditions for redistribution."""

    licence: str
    covers: tuple[str, ...]
    asks: tuple[str, ...]
    source: str

    def __str__(self) -> str:
        asks = "".join(f"\n    - {ask}" for ask in self.asks)
        return f"{self.licence}: {', '.join(self.covers)}{asks}\n    source: {self.source}"


def restricted(lock: Lock, known: KnownLicences) -> tuple[Restriction, ...]:
    """Return the packages under terms that restrict redistribution; empty where none is known."""
    found = []
    for entry in data("restricted")["licences"]:
        packages = (package for environment in environments(lock) for package in environment.lock.packages)
        covers = list(dict.fromkeys(f"{each.name} {each.version}" for each in packages if _covers(entry, each)))
        if _image(lock) in entry.get("images", ()):
            covers.insert(0, f"base image {lock.base.image}")
        if covers:
            source = f"{entry['source']} ({entry['date']})"
            found.append(Restriction(entry["title"], tuple(covers), tuple(entry["asks"]), source))
    return (*found, *_unread(lock, known.wheels))


def _image(lock: Lock) -> str | None:
    return registry.parse(lock.base.image).name if lock.base.image else None


def _covers(entry: Mapping[str, Any], package: LockedWheel | LockedBuild) -> bool:
    versions = SpecifierSet(entry.get("versions", ""))
    named = any(re.fullmatch(pattern, package.name) for pattern in entry.get("packages", ()))
    return named and versions.contains(package.version.partition("+")[0], prereleases=True)


def _unread(lock: Lock, stated: Mapping[str, Licence]) -> Iterator[Restriction]:
    """Yield restrictions of packages that call themselves proprietary and are not in the data: each may have other
    terms.
    """
    entries = [*data("restricted")["licences"], *data("restricted")["open"]]
    for wheel in distinct_wheels(lock):
        words = list(_words(stated.get(wheel.file.sha256, Licence())))
        if any(map(_PROPRIETARY.search, words)) and not any(_covers(entry, wheel) for entry in entries):
            asks = ("imagegen's data does not cover its terms: read them before others can pull the image",)
            yield Restriction(", ".join(words), (f"{wheel.name} {wheel.version}",), asks, "the wheel's METADATA")


def _words(licence: Licence) -> Iterable[str]:
    terms = of_wheel(licence)
    return (terms.expression,) if terms.expression else terms.names


# Look up the licences of all packages of a lock: from scans of layers and audits, else from the index.
#
# For a wheel that this store has never read, the index may give the metadata without the wheel (PEP 658, or ranges of
# the archive). It is not verified, so only metadata of the very file that the lock pins is used.

_LICENCES = Cache("licence", Licence)
_THREADS = 8


def read_known_licences(lock: Lock, context: Context) -> KnownLicences:
    """Return the licences that the store and the indexes know; unknown ones are missing. No wheel is fetched."""
    known = with_system(lock, stored_licences([lock], context.store), context.store)
    missing = [wheel for wheel in distinct_wheels(lock) if wheel.file.sha256 not in known.wheels and _is_served(wheel)]
    if not missing:
        return known
    with timed(context.progress, f"asking indexes for the licences of {counted(len(missing), 'wheel')}"):
        return replace(known, wheels={**known.wheels, **_asked(missing, context.store, context.settings)})


def stored_licences(locks: Iterable[Lock], store: Store) -> dict[str, Licence]:
    """Return the licences of wheels that the store knows, from scans or from an index, by the wheel's sha256."""
    wheels = {(wheel.file.sha256, lock.python): wheel for lock in locks for wheel in distinct_wheels(lock)}
    found: dict[str, Licence] = {}
    for (sha256, python), wheel in wheels.items():  # scanned perhaps for one of several Pythons alone
        if sha256 not in found and (licence := _recorded(wheel, python, store)):
            found[sha256] = licence
    return found


def with_system(lock: Lock, wheels: Mapping[str, Licence], store: Store) -> KnownLicences:
    """Return the licences of wheels, with those of the lock's base that the store knows."""
    system = known_system(lock, store)
    return KnownLicences(wheels, system.debs, system.release) if system else KnownLicences(wheels)


def _recorded(wheel: LockedWheel, python: str, store: Store) -> Licence | None:
    if package := scan.recorded_scan(store, wheel, python):
        return package.licence
    return _LICENCES.get(store, wheel.file.digest)


def _is_served(wheel: LockedWheel) -> bool:
    return not (wheel.sdist or wheel.original or wheel.build or wheel.file.index == LOCAL)


def _asked(wheels: Iterable[LockedWheel], store: Store, settings: Settings) -> dict[str, Licence]:
    with Client(settings).impatient() as client, ThreadPoolExecutor(_THREADS, thread_name_prefix="licences") as pool:
        answers = pool.map(lambda wheel: (wheel, _said(wheel, client, settings)), wheels)
        found = {wheel: licence for wheel, licence in answers if licence}
    for wheel, licence in found.items():
        _LICENCES.put(store, wheel.file.digest, licence)
    return {wheel.file.sha256: licence for wheel, licence in found.items()}


def _said(wheel: LockedWheel, client: Client, settings: Settings) -> Licence | None:
    """Return the index's metadata of the wheel; None if no index can be reached, or none has the file."""
    url = package_index.url_of(wheel.file.index, settings)
    try:
        links = package_index.project(client, url, wheel.name) if url else []
        link = next((each for each in links if each.sha256 == wheel.file.sha256), None)
        raw = wheel_metadata.read(client, link) if link else None
    except FetchError:
        return None
    return None if raw is None else read_licence(email.parser.HeaderParser().parsestr(raw.decode(errors="replace")))
