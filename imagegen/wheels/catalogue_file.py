"""Read the files of the catalogue of prebuilt wheels, wheels/catalogue/*.yaml."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from packaging.version import Version
from pydantic import AfterValidator, Field, ValidationError

from imagegen.core import data, validation
from imagegen.core import types as t
from imagegen.core.errors import ErrorList, MatrixError, MatrixErrors
from imagegen.core.strict import Strict
from imagegen.spec import document as documents
from imagegen.spec.validation_faults import explain
from imagegen.wheels import naming
from imagegen.wheels.catalogue import Catalogue, CatalogueRelease, KnownFile
from imagegen.wheels.offers import Offer

_FOLDER = "catalogue"  # below a directory "wheels"
_PLACEHOLDERS = {"torch", "release", "cuda", "abi", "python", "machine"}


def read(directories: Sequence[Path]) -> Catalogue:
    """Read wheels/catalogue below each of the directories called wheels. Raises MatrixErrors with all that is wrong."""
    releases: list[CatalogueRelease] = []
    files: list[KnownFile] = []
    errors: ErrorList[MatrixError] = ErrorList()
    files_of = (
        (path, data.project_directory(directory))
        for directory in directories
        for path in (directory / _FOLDER).glob("*.yaml")
    )
    for path, project in sorted(files_of):
        document, parsed = _read(path, project, errors)
        for name, entry in parsed.catalogue.items():
            source = f"{entry.source}, {entry.date}"
            releases += (_release(entry, version, release, source) for version, release in entry.releases.items())
            for position, file in enumerate(entry.files):
                known_file = _known_file(entry, file, source)
                if known_file:
                    files.append(known_file)
                else:
                    where = document.where(("catalogue", name, "files", position, "url"))
                    errors.append(
                        MatrixError(
                            f"this is not the address of a wheel of {entry.package}",
                            code="matrix-invalid-value",
                            where=where,
                        )
                    )
    if errors:
        raise MatrixErrors(errors)
    return Catalogue(tuple(dict.fromkeys(releases)), tuple(dict.fromkeys(files)))  # a clone repeats the shipped files


def _placeholders(text: str) -> str:
    if unknown := sorted({name for _, name, _, _ in string.Formatter().parse(text) if name} - _PLACEHOLDERS):
        raise ValueError(f"unknown placeholder {{{unknown[0]}}}; known are {', '.join(sorted(_PLACEHOLDERS))}")
    if not text.endswith(".whl"):
        raise ValueError("must end in .whl")
    return text


_Url = Annotated[str, validation.string(t.HOST + r"(?:/[A-Za-z0-9._~+%-]+)+", 300, meaning=t.HTTPS)]
_Pattern = Annotated[
    str, validation.string(t.HOST + r"(?:/[A-Za-z0-9._~+%{}-]+)+", 300, meaning=t.HTTPS), AfterValidator(_placeholders)
]


class _ReleaseEntry(Strict):
    url: _Pattern
    torch: list[t.Minor] = []
    cuda: list[Annotated[str, validation.string(r"[1-9][0-9]")]] = []
    python: list[t.Minor] = []


class _FileEntry(Strict):
    url: _Url
    sha256: t.Sha256
    size: Annotated[str, validation.string(r"[1-9][0-9]{0,11}")]


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
    lists: Iterator[Iterable[str]] = iter((release.torch, release.cuda, release.python))
    torch, cuda, python = (tuple(sorted(versions, key=Version)) for versions in lists)
    return CatalogueRelease(entry.package, version, release.url, torch, cuda, python, source)


def _known_file(entry: _Entry, file: _FileEntry, source: str) -> KnownFile | None:
    filename = unquote(urlsplit(file.url).path.rpartition("/")[2])
    parsed = naming.read(filename)
    if parsed is None or parsed.package != entry.package:
        return None
    return KnownFile(entry.package, str(parsed.version), Offer(filename, file.url, file.sha256, int(file.size)), source)
