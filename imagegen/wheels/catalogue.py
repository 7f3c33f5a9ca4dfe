"""The catalogue of prebuilt wheels, wheels/catalogue/*.yaml: files on release pages that no index serves.

Two kinds of entries: `releases`, whose files have an address that follows from the cell (their hash is not published,
so a file is fetched and hashed before it is used), and `files`, each with its address and its sha256, because third
parties use one name for different bytes.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote, urlsplit

from packaging.version import Version
from pydantic import AfterValidator, Field, ValidationError

from imagegen.core import data
from imagegen.core import types as t
from imagegen.core.errors import ErrorList, MatrixError, MatrixErrors
from imagegen.core.strict import Strict
from imagegen.core.types import minor
from imagegen.plan.matrix import document as documents
from imagegen.plan.matrix.document import explain
from imagegen.wheels import naming
from imagegen.wheels.naming import WheelRequirement
from imagegen.wheels.wheelhouse import Candidate, Offer, WheelSource

FOLDER = "catalogue"  # below a directory "wheels"
_PLACEHOLDERS = {"torch", "release", "cuda", "abi", "python", "machine"}


@dataclass(frozen=True)
class CatalogueRelease:
    """Wheels of one version under addresses that follow one pattern; what is empty is not known."""

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
        known = {each.version for each in self.releases if each.package == package}
        known |= {each.version for each in self.files if each.package == package}
        return tuple(sorted(known, key=Version))

    def covers(self, package: str, version: str, torch: str | None) -> bool:
        """Return whether wheels of a release may be for this minor of torch; for any, if it is None."""
        required = (package, Version(version))
        releases = [each for each in self.releases if (each.package, Version(each.version)) == required]
        files = [each.offer.filename for each in self.files if (each.package, Version(each.version)) == required]
        if torch is None:
            return bool(releases or files)
        named = re.compile(rf"torch{re.escape(torch)}(?![0-9])")
        return any(not each.torch or torch in each.torch for each in releases) or any(map(named.search, files))

    def offers(self, need: WheelRequirement) -> Sequence[Offer | Candidate]:
        """Return what may serve a cell; releases that have nothing for it as candidates with the reason."""
        required = (need.package, Version(need.version))
        computed = [
            _computed(each, need) for each in self.releases if (each.package, Version(each.version)) == required
        ]
        return [*computed, *(each.offer for each in self.files if (each.package, Version(each.version)) == required)]


def load(directories: Sequence[Path]) -> Catalogue:
    """Read wheels/catalogue below each of the directories called wheels. Raises MatrixErrors with all that is wrong."""
    releases: list[CatalogueRelease] = []
    files: list[KnownFile] = []
    errors: ErrorList[MatrixError] = ErrorList()
    files_of = ((path, data.project_directory(each)) for each in directories for path in (each / FOLDER).glob("*.yaml"))
    for path, project in sorted(files_of):
        document, parsed = _read(path, project, errors)
        for name, entry in parsed.catalogue.items():
            source = f"{entry.source}, {entry.date}"
            releases += (_release(entry, version, each, source) for version, each in entry.releases.items())
            for position, file in enumerate(entry.files):
                known = _known_file(entry, file, source)
                if known:
                    files.append(known)
                else:
                    where = document.where(("catalogue", name, "files", position, "url"))
                    errors.append(
                        MatrixError(
                            f"this is no address of a wheel of {entry.package}",
                            code="matrix-invalid-value",
                            where=where,
                        )
                    )
    if errors:
        raise MatrixErrors(errors)
    return Catalogue(tuple(dict.fromkeys(releases)), tuple(dict.fromkeys(files)))  # a clone repeats what is shipped


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
    """Return what torch.__version__ is: CUDA builds have a label, also where the index leaves it out, as PyPI does."""
    if need.torch is None or need.cuda is None or "+" in need.torch:
        return need.torch or ""
    return f"{need.torch}+cu{need.cuda.replace('.', '')}"


def _outside(release: CatalogueRelease, need: WheelRequirement, torch: str, cuda: str) -> str | None:
    """Return what part of the cell the release has no wheel for, in one clause."""
    text = "the wheels of this release are for {} {}, the cell has {}"
    if not torch or not cuda:
        return "its wheels are for torch and CUDA, the cell has none"
    for what, has, known in (
        ("Python", need.python, release.python),
        ("torch", torch, release.torch),
        ("CUDA", cuda, release.cuda),
    ):
        if known and has not in known:
            return text.format(what, _span(known), has)
    return None


def _span(values: tuple[str, ...]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 2 else " and ".join(values)


def _placeholders(text: str) -> str:
    if unknown := sorted({name for _, name, _, _ in string.Formatter().parse(text) if name} - _PLACEHOLDERS):
        raise ValueError(f"unknown placeholder {{{unknown[0]}}}; known are {', '.join(sorted(_PLACEHOLDERS))}")
    if not text.endswith(".whl"):
        raise ValueError("must end in .whl")
    return text


_Url = Annotated[str, t.string(t.HOST + r"(?:/[A-Za-z0-9._~+%-]+)+", 300, meaning=t.HTTPS)]
_Pattern = Annotated[
    str, t.string(t.HOST + r"(?:/[A-Za-z0-9._~+%{}-]+)+", 300, meaning=t.HTTPS), AfterValidator(_placeholders)
]


class _ReleaseEntry(Strict):
    url: _Pattern
    torch: list[t.Minor] = []
    cuda: list[Annotated[str, t.string(r"[1-9][0-9]")]] = []
    python: list[t.Minor] = []


class _FileEntry(Strict):
    url: _Url
    sha256: t.Sha256
    size: Annotated[str, t.string(r"[1-9][0-9]{0,11}")]


class _Entry(Strict):
    """The wheels of one publisher and one package."""

    package: t.Distribution
    description: t.Text
    source: t.Text
    date: t.Date
    releases: dict[t.PackageVersion, _ReleaseEntry] = {}
    files: list[_FileEntry] = []


class _File(Strict):
    catalogue: dict[t.Name, _Entry] = Field(default={})


def _read(path: Path, project: Path | None, errors: list[MatrixError]) -> tuple[documents.YamlDocument, _File]:
    """A file's entries; none of a faulty one, whose faults go to `errors`."""
    try:
        document = documents.parse(path, data.read(path, project, data.MAX_SOURCE_FILE))
    except OSError as error:
        errors.append(
            MatrixError("the file cannot be read", code="matrix-unreadable", where=str(path), why=error.strerror)
        )
        return documents.YamlDocument(path), _File()
    if document.errors:
        errors += document.errors
        return document, _File()
    try:
        return document, _File.model_validate(document.data)
    except ValidationError as invalid:
        errors += explain(document, invalid.errors(include_url=False), _File)
    return document, _File()


def _release(entry: _Entry, version: str, release: _ReleaseEntry, source: str) -> CatalogueRelease:
    known: Iterator[Iterable[str]] = iter((release.torch, release.cuda, release.python))
    torch, cuda, python = (tuple(sorted(each, key=Version)) for each in known)
    return CatalogueRelease(entry.package, version, release.url, torch, cuda, python, source)


def _known_file(entry: _Entry, file: _FileEntry, source: str) -> KnownFile | None:
    filename = unquote(urlsplit(file.url).path.rpartition("/")[2])
    parsed = naming.read(filename)
    if parsed is None or parsed.package != entry.package:
        return None
    return KnownFile(entry.package, str(parsed.version), Offer(filename, file.url, file.sha256, int(file.size)), source)
