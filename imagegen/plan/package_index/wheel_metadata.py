"""METADATA of a wheel on an index, without the wheel: the file beside it (PEP 658), or ranges of its zip archive."""

from __future__ import annotations

import email.parser
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.core.errors import FetchError
from imagegen.core.net import Client, NotFoundError
from imagegen.core.net.package_index import IndexLink

_LONGEST = 4 << 20  # bytes of METADATA; the longest have some 200 kB, most of it a README
_LONGEST_DIRECTORY = 8 << 20  # bytes; torch's has 1.5 MB
_AHEAD = 64 << 10  # bytes that a request asks for at least


@dataclass(frozen=True)
class Metadata:
    """The fields that are read, as they are written in the wheel."""

    requires: tuple[str, ...]
    python: str
    extras: frozenset[str] = frozenset()  # normalised


def fetch(client: Client, link: IndexLink, package: str, version: str) -> Metadata:
    """The metadata of the wheel behind `link`. Raises FetchError, also when it is not this release's."""
    try:
        return parse(read(client, link), package, version)
    except ValueError as error:
        raise FetchError(_broken(link), why=str(error)) from error


def read(client: Client, link: IndexLink) -> bytes:
    """The file as it is. Raises FetchError."""
    parts = urlsplit(link.url)
    try:
        raw = client.get(parts._replace(path=f"{parts.path}.metadata").geturl())
    except NotFoundError:  # older uploads and some mirrors lack it
        raw = _from_archive(client, link)
    else:
        if link.metadata_sha256 and hashlib.sha256(raw).hexdigest() != link.metadata_sha256:
            raise FetchError(_broken(link), why="it is not the file whose sha256 the index tells")
    return raw


def parse(raw: bytes, package: str, version: str) -> Metadata:
    """Raises ValueError for what is not the metadata of this release."""
    if len(raw) > _LONGEST:
        raise ValueError(f"it is longer than {_LONGEST >> 20} MiB")
    found = email.parser.HeaderParser().parsestr(raw.decode(errors="replace"))

    def every(field: str) -> list[str]:
        return [" ".join(str(value).split()) for value in found.get_all(field, [])]

    def one(field: str) -> str:
        values = every(field)
        if len(values) != 1:
            raise ValueError(f"it has {'no' if not values else 'more than one'} {field}")
        return values[0]

    if canonicalize_name(one("Name"), validate=True) != package or Version(one("Version")) != Version(version):
        raise ValueError(f"it is that of {one('Name')} {one('Version')}")
    extras = frozenset(canonicalize_name(extra) for extra in every("Provides-Extra"))
    return Metadata(tuple(every("Requires-Dist")), one("Requires-Python") if "Requires-Python" in found else "", extras)


def of_file(file: BinaryIO, package: str, version: str) -> Metadata:
    """Return the metadata of a wheel. Raises ValueError for what is no wheel, or is that of another release."""
    try:
        with zipfile.ZipFile(file) as archive:
            raw = _member(archive)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from error
    return parse(raw, package, version)


def _broken(link: IndexLink) -> str:
    return f"the metadata of {link.filename} cannot be used"


def _from_archive(client: Client, link: IndexLink) -> bytes:
    try:
        with zipfile.ZipFile(_Remote(client, link.url)) as archive:
            return _member(archive)
    # What zipfile and zlib raise over archives that are none, damaged, or of a future version.
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise FetchError(_broken(link), why=f"no file beside it, and as an archive: {error}") from error


@contextmanager
def archive(client: Client, link: IndexLink) -> Iterator[zipfile.ZipFile]:
    """Open the wheel behind `link`, of which what is read is fetched by ranges. Raises FetchError."""
    try:
        with zipfile.ZipFile(_Remote(client, link.url)) as opened:
            yield opened
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise FetchError(f"{link.filename} cannot be read in parts", code="fetch-no-ranges", why=str(error)) from error


def bounded(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a member. Raises BadZipFile for one that is too long, or not compressed as in wheels."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"its {member.filename} is compressed in a way that wheels do not use")
    with archive.open(member) as file:
        raw = file.read(_LONGEST + 1)
    if len(raw) > _LONGEST:
        raise zipfile.BadZipFile(f"its {member.filename} is longer than {_LONGEST >> 20} MiB")
    return raw


def _member(archive: zipfile.ZipFile) -> bytes:
    members = [info for info in archive.infolist() if _is_metadata(info.filename)]
    if len(members) != 1:
        raise zipfile.BadZipFile(f"it holds {len(members) or 'no'} METADATA")
    if members[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile("its METADATA is compressed in a way that wheels do not use")
    with archive.open(members[0]) as file:
        return file.read(_LONGEST + 1)


def _is_metadata(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return folder.endswith(".dist-info") and rest == "METADATA"


class _Remote(io.RawIOBase):
    """A file on a server, read by ranges. One piece is kept: zipfile reads the end of the file, which is contiguous."""

    def __init__(self, client: Client, url: str) -> None:
        self._client, self._url = client, url
        self._size = client.size(url)
        self._at = self._start = 0
        self._piece = b""

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise zipfile.BadZipFile("it points before its beginning")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        if end - self._at > _LONGEST_DIRECTORY:
            raise zipfile.BadZipFile(f"more than {_LONGEST_DIRECTORY >> 20} MiB of it would have to be read")
        if not (self._start <= self._at and end <= self._start + len(self._piece)):
            self._start = max(0, min(self._at, self._size - _AHEAD))
            upto = min(max(end, self._start + _AHEAD), self._size)
            self._piece = self._client.piece(self._url, self._start, upto - self._start)
        found = self._piece[self._at - self._start : end - self._start]
        self._at = end
        return found
