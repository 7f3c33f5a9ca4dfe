"""Where the wheel of a compiled component comes from: who is asked, and what stands in the lock for the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from packaging.utils import parse_wheel_filename

from imagegen.errors import LockError
from imagegen.lock import indexes
from imagegen.lock.model import LINKS, URL, File, LockedWheel
from imagegen.lock.recipes import Compiled
from imagegen.lock.target import Target
from imagegen.wheels.model import Candidate, Place

COMPILED = frozenset({Place.WHEELHOUSE, Place.TEAM, Place.SOURCE})  # whose wheels stand in a lock as builds


@dataclass(frozen=True)
class Need:
    """What a wheel of a compiled component has to fit."""

    package: str
    version: str
    target: Target
    torch: str | None  # its release in the cell, "2.11.0"; None: it has none
    cuda: str | None  # of the cell: "13.0"
    index: str  # alias of the index that the component comes from
    key: str | None  # of the source build; None: there can be none
    source: str | None  # what that begins with: "flash_attn-2.8.3.tar.gz"


class Chooser(Protocol):
    """Knows where wheels are."""

    def versions(self, package: str) -> Iterable[str]:
        """Releases of which there may be a wheel, besides those that a recipe knows."""

    def choose(self, need: Need) -> Candidate:
        """The first that fits; the source build where none does. Raises FetchError."""


def wheel_of(each: Compiled, found: Candidate, via: tuple[str, ...]) -> LockedWheel:
    """What stands in the lock for a wheel that was found. Raises LockError where nobody has told its hash."""
    if found.sha256 is None or found.size is None:
        raise LockError(f"{found.filename} cannot be locked", why=f"{found.where} does not tell its hash and size")
    index = {Place.CATALOGUE: URL, Place.LINKS: LINKS}.get(found.place, each.requirement.index)
    file = File(
        found.filename,
        found.sha256,
        found.size,
        index,
        indexes.hint(found.where) if found.place is Place.INDEX else None,
        found.where if found.place is Place.CATALOGUE else None,
    )
    name, version, _, _ = parse_wheel_filename(found.filename)
    return LockedWheel(name, str(version), file, via, each.requirement.because, choice=f"{found.place}: {found.reason}")
