"""The catalogue of prebuilt wheels, wheels/catalogue/*.yaml: files on release pages that no index serves.

Two kinds of entries: `releases`, whose files have an address that follows from the cell (their hash is not published,
so a file is fetched and hashed before it is used), and `files`, each with its address and its sha256, because third
parties use one name for different bytes. catalogue_file.py reads the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from packaging.version import Version

from imagegen.core.deferred import dataclass
from imagegen.core.types import minor
from imagegen.wheels.offers import Candidate, Offer, WheelSource

if TYPE_CHECKING:
    from imagegen.wheels.naming import WheelRequirement


@dataclass(frozen=True)
class CatalogueRelease:
    """Wheels of one version under addresses that follow one pattern; an empty field is not known."""

    package: str  # normalised (PEP 503)
    version: str
    url: (
        str  # with {torch} (a minor) or {release} (as torch calls itself), {cuda} (a major), {abi}, {python}, {machine}
    )
    torch: tuple[str, ...]  # "2.8"
    cuda: tuple[str, ...]  # majors: "12"
    python: tuple[str, ...]  # "3.11"
    source: str


@dataclass(frozen=True)
class KnownFile:
    """One file, by address and hash."""

    package: str
    version: str
    offer: Offer
    source: str


@dataclass(frozen=True)
class Catalogue:
    releases: tuple[CatalogueRelease, ...] = ()
    files: tuple[KnownFile, ...] = ()

    def versions(self, package: str) -> tuple[str, ...]:
        """Return the versions that the catalogue has wheels of, oldest first."""
        known_versions = {release.version for release in self.releases if release.package == package}
        known_versions |= {file.version for file in self.files if file.package == package}
        return tuple(sorted(known_versions, key=Version))

    def covers(self, package: str, version: str, torch: str | None) -> bool:
        """Return whether wheels of a release may be for this minor of torch; for any, if it is None."""
        required = (package, Version(version))
        releases = [release for release in self.releases if (release.package, Version(release.version)) == required]
        files = [file.offer.filename for file in self.files if (file.package, Version(file.version)) == required]
        if torch is None:
            return bool(releases or files)
        pattern = re.compile(rf"torch{re.escape(torch)}(?![0-9])")
        return any(not release.torch or torch in release.torch for release in releases) or any(
            map(pattern.search, files)
        )

    def offers(self, need: WheelRequirement) -> Sequence[Offer | Candidate]:
        """Return the offers for a cell, and unfit releases as candidates with the reason."""
        required = (need.package, Version(need.version))
        computed = [
            _computed(release, need)
            for release in self.releases
            if (release.package, Version(release.version)) == required
        ]
        return [*computed, *(file.offer for file in self.files if (file.package, Version(file.version)) == required)]


def load(directories: Sequence[Path]) -> Catalogue:
    """Read wheels/catalogue below each of the directories called wheels. Raises MatrixErrors with all that is wrong."""
    from imagegen.wheels import catalogue_file  # late: results of earlier runs stand for most files

    return catalogue_file.read(directories)


def _computed(release: CatalogueRelease, need: WheelRequirement) -> Offer | Candidate:
    torch = minor(need.torch) if need.torch else ""
    values = {
        "torch": torch,
        "release": quote(_own_name(need), safe=""),
        "cuda": (need.cuda or "").partition(".")[0],
        "abi": "TRUE" if need.new_abi else "FALSE",
        "python": f"cp{need.python.replace('.', '')}",
        "machine": need.platform.partition("-")[0],
    }
    url = release.url.format_map(values)
    filename = unquote(urlsplit(url).path.rpartition("/")[2])
    why = _outside(release, need, torch, values["cuda"])
    if why:
        return Candidate(WheelSource.CATALOGUE, filename, url, fits=False, reason=why)
    return Offer(filename, url)


def _own_name(need: WheelRequirement) -> str:
    """Return torch.__version__. CUDA builds have a label, also if the index leaves it out, as PyPI does."""
    if need.torch is None or need.cuda is None or "+" in need.torch:
        return need.torch or ""
    return f"{need.torch}+cu{need.cuda.replace('.', '')}"


def _outside(release: CatalogueRelease, need: WheelRequirement, torch: str, cuda: str) -> str | None:
    """Return in one clause the part of the cell that the release has no wheel for."""
    text = "the wheels of this release are for {} {}, the cell has {}"
    if not torch or not cuda:
        return "its wheels are for torch and CUDA, the cell has none"
    for label, value, covered in (
        ("Python", need.python, release.python),
        ("torch", torch, release.torch),
        ("CUDA", cuda, release.cuda),
    ):
        if covered and value not in covered:
            return text.format(label, _span(covered), value)
    return None


def _span(values: tuple[str, ...]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 2 else " and ".join(values)
