"""Licences that restrict redistribution, reported before an image becomes public.

The conditions of licences are in data/restricted.yaml, each with its source. Packages that it does not list are
reported too if their own metadata calls them proprietary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

from imagegen.audit.model import Licence
from imagegen.lock.model import Lock, LockedBuild, LockedWheel
from imagegen.oci import registry
from imagegen.trust.licences import KnownLicences, data, wheel_terms

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
        packages = (package for environment in lock.environments for package in environment.lock.packages)
        covered = (package for package in packages if _covers(entry, package))
        covers = list(dict.fromkeys(f"{package.name} {package.version}" for package in covered))
        if (registry.parse(lock.base.image).name if lock.base.image else None) in entry.get("images", ()):
            covers.insert(0, f"base image {lock.base.image}")
        if covers:
            source = f"{entry['source']} ({entry['date']})"
            restrictions.append(Restriction(entry["title"], tuple(covers), tuple(entry["asks"]), source))
    return (*restrictions, *_proprietary(lock, licences.wheels))


def _covers(entry: Mapping[str, Any], package: LockedWheel | LockedBuild) -> bool:
    versions = SpecifierSet(entry.get("versions", ""))
    has_name = any(re.fullmatch(pattern, package.name) for pattern in entry.get("packages", ()))
    return has_name and versions.contains(package.version.partition("+")[0], prereleases=True)


def _proprietary(lock: Lock, stated: Mapping[str, Licence]) -> Iterator[Restriction]:
    """Yield restrictions of proprietary packages that the data does not list, since their terms are not known."""
    entries = [*data("restricted")["licences"], *data("restricted")["open"]]
    for wheel in lock.distinct_wheels:
        words = list(_words(stated.get(wheel.file.sha256, Licence())))
        if any(map(_PROPRIETARY.search, words)) and not any(_covers(entry, wheel) for entry in entries):
            asks = ("imagegen's data does not cover its terms: read them before others can pull the image",)
            yield Restriction(", ".join(words), (f"{wheel.name} {wheel.version}",), asks, "the wheel's METADATA")


def _words(licence: Licence) -> Iterable[str]:
    terms = wheel_terms(licence)
    return (terms.expression,) if terms.expression else terms.names
