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
from imagegen.core import registry
from imagegen.plan.lock.model import Lock, LockedBuild, LockedWheel
from imagegen.supply.trust import spdx
from imagegen.supply.trust.sbom import KnownLicences
from imagegen.supply.trust.spdx import data

_PROPRIETARY = re.compile(r"licenseref|proprietary", re.IGNORECASE)


@dataclass(frozen=True)
class Restriction:
    """A licence, what it covers in an image ("nvidia-cublas 13.1.0.3"), and its conditions for redistribution."""

    licence: str
    covers: tuple[str, ...]
    asks: tuple[str, ...]
    source: str

    def __str__(self) -> str:
        asks = "".join(f"\n    - {each}" for each in self.asks)
        return f"{self.licence}: {', '.join(self.covers)}{asks}\n    source: {self.source}"


def restricted(lock: Lock, known: KnownLicences) -> tuple[Restriction, ...]:
    """Return the packages under terms that restrict redistribution; empty where none is known."""
    found = []
    for entry in data("restricted")["licences"]:
        covers = [f"{each.name} {each.version}" for each in lock.packages if _covers(entry, each)]
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
    for wheel in lock.wheels:
        words = list(_words(stated.get(wheel.file.sha256, Licence())))
        if any(map(_PROPRIETARY.search, words)) and not any(_covers(entry, wheel) for entry in entries):
            asks = ("imagegen's data does not cover its terms: read them before others can pull the image",)
            yield Restriction(", ".join(words), (f"{wheel.name} {wheel.version}",), asks, "the wheel's METADATA")


def _words(licence: Licence) -> Iterable[str]:
    terms = spdx.of_wheel(licence)
    return (terms.expression,) if terms.expression else terms.names
