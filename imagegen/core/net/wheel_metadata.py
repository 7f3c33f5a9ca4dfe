"""Read METADATA of a wheel on an index from its metadata file (PEP 658), or from ranges of the wheel's archive."""

from __future__ import annotations

import email.parser
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.core.errors import FetchError
from imagegen.core.net import Client, NotFoundError
from imagegen.core.net.package_index import IndexLink

LONGEST = 4 << 20  # bytes of METADATA; the longest have some 200 kB, most of it a README
_LONGEST_DIRECTORY = 8 << 20  # bytes; torch's has 1.5 MB
# zipfile and zlib raise these for damaged archives, other files, and archives of a future version.
DAMAGED = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError)
_BLOCK = 64 << 10  # bytes that a request asks for at least
_HEADER = 1 << 10  # bytes of a local header at most, in wheels
_LONGEST_RUN = 64  # blocks that one request asks for


@dataclass(frozen=True)
class Metadata:
    """Fields of METADATA, in the wheel's own spelling."""

    requires: tuple[str, ...]
    python: str
    extras: frozenset[str] = frozenset()  # normalised


def fetch(client: Client, link: IndexLink, package: str, version: str) -> Metadata:
    """Return the metadata of the wheel behind `link`. Raises FetchError, also for the metadata of another release."""
    try:
        return parse(read(client, link), package, version)
    except ValueError as error:
        raise FetchError(_broken(link), why=str(error)) from error


def read(client: Client, link: IndexLink) -> bytes:
    """Return the bytes of METADATA. Raises FetchError."""
    address = urlsplit(link.url)
    try:
        raw = client.get(address._replace(path=f"{address.path}.metadata").geturl())
    except NotFoundError:  # older uploads and some mirrors lack it
        raw = _from_archive(client, link)
    else:
        if link.metadata_sha256 and hashlib.sha256(raw).hexdigest() != link.metadata_sha256:
            raise FetchError(_broken(link), why="its sha256 differs from the index")
    return raw


def parse(raw: bytes, package: str, version: str) -> Metadata:
    """Parse METADATA. Raises ValueError if it is malformed or belongs to another release."""
    if len(raw) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST >> 20} MiB")
    headers = email.parser.HeaderParser().parsestr(raw.decode(errors="replace"))

    def values_of(field: str) -> list[str]:
        return [" ".join(str(value).split()) for value in headers.get_all(field, [])]

    def value_of(field: str) -> str:
        values = values_of(field)
        if len(values) != 1:
            raise ValueError(f"it has {'no' if not values else 'more than one'} {field}")
        return values[0]

    if canonicalize_name(value_of("Name"), validate=True) != package or Version(value_of("Version")) != Version(
        version
    ):
        raise ValueError(f"it belongs to {value_of('Name')} {value_of('Version')}")
    extras = frozenset(canonicalize_name(extra) for extra in values_of("Provides-Extra"))
    return Metadata(
        tuple(values_of("Requires-Dist")), value_of("Requires-Python") if "Requires-Python" in headers else "", extras
    )


def of_file(file: BinaryIO, package: str, version: str) -> Metadata:
    """Return the metadata of a wheel file. Raises ValueError if it is not a wheel, or a wheel of another release."""
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
    except DAMAGED as error:
        raise FetchError(_broken(link), why=f"it has no metadata file, and as an archive: {error}") from error


@contextmanager
def archive(client: Client, link: IndexLink) -> Iterator[zipfile.ZipFile]:
    """Open the wheel behind `link`; ranges of it are fetched when they are read. Raises FetchError."""
    try:
        with zipfile.ZipFile(_Remote(client, link.url)) as opened:
            yield opened
    except DAMAGED as error:
        raise FetchError(f"{link.filename} cannot be read in parts", code="fetch-no-ranges", why=str(error)) from error


def prefetch(archive: zipfile.ZipFile, members: Iterable[zipfile.ZipInfo]) -> None:
    """Fetch members of an opened wheel that will be read, with few requests. Raises FetchError."""
    remote: _Remote = archive.fp  # type: ignore[assignment]
    remote.prefetch((member.header_offset, member.header_offset + member.compress_size + _HEADER) for member in members)


def bounded(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a member. Raises BadZipFile for one that is too long, or not compressed as in wheels."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"its {member.filename} is compressed in a way that wheels do not use")
    with archive.open(member) as file:
        raw = file.read(LONGEST + 1)
    if len(raw) > LONGEST:
        raise zipfile.BadZipFile(f"its {member.filename} is longer than {LONGEST >> 20} MiB")
    return raw


def _member(archive: zipfile.ZipFile) -> bytes:
    members = [info for info in archive.infolist() if _is_metadata(info.filename)]
    if len(members) != 1:
        raise zipfile.BadZipFile(f"it holds {len(members) or 'no'} METADATA")
    if members[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile("its METADATA is compressed in a way that wheels do not use")
    with archive.open(members[0]) as file:
        return file.read(LONGEST + 1)


def _is_metadata(name: str) -> bool:
    folder, _, path = name.partition("/")
    return folder.endswith(".dist-info") and path == "METADATA"


class _Remote(io.RawIOBase):
    """A file on a server, read by ranges in blocks that are kept; blocks end where the file ends, as directories do."""

    def __init__(self, client: Client, url: str) -> None:
        self._client, self._url = client, url
        self._size = client.size(url)
        self._at = 0
        self._blocks: dict[int, bytes] = {}  # by their number from the end

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
        first, last = self._span(self._at, end)
        self._fetch(range(first, last - 1, -1))
        data = b"".join(self._blocks[number] for number in range(first, last - 1, -1))
        offset = self._at - max(0, self._size - (first + 1) * _BLOCK)
        data, self._at = data[offset : offset + end - self._at], end
        return data

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Read ranges of bytes, from a first to before a last one, with few requests."""
        wanted: set[int] = set()
        for start, end in ranges:
            first, last = self._span(start, min(end, self._size))
            wanted.update(range(last, first + 1))
        self._fetch(sorted(wanted, reverse=True))

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """Return the numbers of the first and the last block of a range that is not empty."""
        return (self._size - start - 1) // _BLOCK, (self._size - end) // _BLOCK

    def _fetch(self, numbers: Iterable[int]) -> None:
        """Read blocks, by falling numbers."""
        for run in _runs([number for number in numbers if number not in self._blocks]):
            start = max(0, self._size - (run[0] + 1) * _BLOCK)
            piece = self._client.piece(self._url, start, self._size - run[-1] * _BLOCK - start)
            for number in run:
                offset = max(0, self._size - (number + 1) * _BLOCK) - start
                self._blocks[number] = piece[offset : self._size - number * _BLOCK - start]


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Return falling numbers as runs without gaps."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number + 1 and len(runs[-1]) < _LONGEST_RUN:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
