"""Reading a wheel: every member validated before it is believed, every byte inflated once.

A wheel is hostile until proven otherwise. What is refused: absolute or escaping member names, links and devices,
duplicate or case-colliding members, encrypted or oddly compressed members, members that RECORD lacks or contradicts,
sizes beyond the limits, metadata of another distribution than the file name's. Sources of the format: PEP 427, the
"Binary distribution format" of packaging.python.org, APPNOTE.TXT of the ZIP format.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from installer.records import InvalidRecordEntry, parse_record_file
from isal import isal_zlib
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from imagegen.errors import WheelError

_CHUNK = 1 << 18
_INFLATED = 1 << 20  # bytes at a time: 256 kB of a bomb would be 256 MB
_UNSIGNED = ("RECORD", "RECORD.jws", "RECORD.p7s")  # files of .dist-info that RECORD need not hash

_UNPORTABLE = re.compile(r"[\\\x00-\x1f\x7f]")

# Bounds far above any wheel of the field (the largest hold 4 GB in 20 000 members) and far below a full disk.
MAX_UNPACKED = 24 << 30
MAX_MEMBERS = 400_000
MAX_RATIO = 1100  # DEFLATE cannot exceed 1032:1, so more than this is a lie


@dataclass(frozen=True)
class Member:
    """One file of the wheel. `size` is bytes unpacked, `sha256` what RECORD promises (hex), None for RECORD itself."""

    name: str
    size: int
    executable: bool
    sha256: str | None


class Wheel:
    """An open wheel whose table of contents has been validated. A context manager.

    Raises WheelError, naming wheel and member, for everything that a well-made wheel does not do.
    """

    def __init__(self, path: Path, filename: str) -> None:
        self.filename = filename
        try:
            parsed = parse_wheel_filename(filename)
        except InvalidWheelFilename as error:
            raise WheelError("not a wheel's file name", where=filename, why=str(error)) from error
        self.distribution, self.version = str(parsed[0]), str(parsed[1])
        self.members: Mapping[str, Member] = {}  # until RECORD, itself a member, has been read
        with ExitStack() as stack:
            self._file: BinaryIO = stack.enter_context(path.open("rb"))
            try:
                self._zip = stack.enter_context(zipfile.ZipFile(self._file))
            except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
                raise self._error("not a readable zip file", None, str(error)) from error
            self._infos = self._table()
            self.dist_info = self._dist_info()
            self.members = self._members()
            self._open = stack.pop_all()

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def read(self, name: str) -> bytes:
        """A whole member, verified."""
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """The member's bytes, verified against size, CRC-32 and RECORD: an error comes after the last good chunk."""
        info = self._infos.get(name)
        if info is None:
            raise self._error("the wheel lacks a file", name)
        member = self.members.get(name)
        crc, size, digest = 0, 0, hashlib.sha256()
        for chunk in self._inflate(info):
            crc, size = isal_zlib.crc32(chunk, crc), size + len(chunk)
            if size > info.file_size:
                break
            digest.update(chunk)
            yield chunk
        if size != info.file_size or crc != info.CRC:
            raise self._error("the member is damaged", name, "its size or CRC-32 is not the directory's")
        if member is not None and member.sha256 not in (None, digest.hexdigest()):
            why = f"RECORD promises sha256 {member.sha256}, the member has {digest.hexdigest()}"
            raise self._error("the member is not what RECORD says", name, why)

    def optional(self, name: str) -> bytes | None:
        """A file of .dist-info that need not be there: entry_points.txt."""
        member = f"{self.dist_info}/{name}"
        return self.read(member) if member in self._infos else None

    def _error(self, what: str, member: str | None, why: str | None = None) -> WheelError:
        where = self.filename if member is None else f"{self.filename}: {member}"
        fix = "do not install this wheel; report it to its project or lock another version"
        return WheelError(what, where=where, why=why, fix=fix)

    def _table(self) -> dict[str, zipfile.ZipInfo]:
        infos: dict[str, zipfile.ZipInfo] = {}
        folded: dict[str, str] = {}
        unpacked = 0
        if len(self._zip.infolist()) > MAX_MEMBERS:
            raise self._error("the wheel holds too many members", None, f"more than {MAX_MEMBERS}")
        for info in self._zip.infolist():
            name = info.orig_filename
            self._check_name(name)
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise self._error("a wheel holds regular files only", name, "the member is a link, device or pipe")
            if name.endswith("/"):
                continue
            if info.flag_bits & 0x1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise self._error("the member is encrypted or compressed in another way than DEFLATE", name)
            other = folded.setdefault(name.casefold(), name)
            if other != name or name in infos:
                raise self._error("two members have one name", name, f"the other is {other}")
            unpacked += info.file_size
            if info.file_size > MAX_RATIO * max(info.compress_size, 1) or unpacked > MAX_UNPACKED:
                raise self._error("the wheel unpacks to more than it can hold", name, "a zip bomb")
            infos[name] = info
        return infos

    def _check_name(self, name: str) -> None:
        parts = name.removesuffix("/").split("/")
        if name.startswith("/") or ".." in parts or "." in parts or "" in parts:
            raise self._error("a member's name leaves the wheel's tree", name)
        if _UNPORTABLE.search(name) or ":" in parts[0]:
            raise self._error("a member's name is not portable", repr(name))
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise self._error("a member's name is not UTF-8", repr(name)) from error

    def _dist_info(self) -> str:
        found = {name.split("/")[0] for name in self._infos if name.split("/")[0].endswith(".dist-info")}
        if len(found) != 1:
            raise self._error("a wheel has one .dist-info directory", None, f"found {sorted(found) or 'none'}")
        name = found.pop()
        distribution = name.removesuffix(".dist-info").partition("-")[0]
        if canonicalize_name(distribution) != self.distribution:
            raise self._error("the wheel holds another distribution than its file name says", name)
        for required in ("METADATA", "WHEEL", "RECORD"):
            if f"{name}/{required}" not in self._infos:
                raise self._error("the wheel lacks a file", f"{name}/{required}")
        return name

    def _members(self) -> Mapping[str, Member]:
        record = self._record()
        members = {}
        for name, info in sorted(self._infos.items()):
            unsigned = name in {f"{self.dist_info}/{file}" for file in _UNSIGNED}
            if name not in record and not unsigned:
                raise self._error("RECORD lacks a member", name)
            promised = record.get(name)
            if promised is None and not unsigned:
                raise self._error("RECORD gives no sha256 for a member", name)
            executable = bool(info.external_attr >> 16 & 0o111)
            members[name] = Member(name, info.file_size, executable, promised)
        missing = sorted(set(record) - set(members))
        if missing:
            raise self._error("RECORD names a member that the wheel lacks", missing[0])
        return members

    def _record(self) -> dict[str, str | None]:
        """Member name -> hex sha256, or None where RECORD gives no (usable) hash."""
        name = f"{self.dist_info}/RECORD"
        record: dict[str, str | None] = {}
        try:
            text = self.read(name).decode("utf-8", "strict")
            rows = list(parse_record_file(io.StringIO(text, newline="")))
        except (UnicodeDecodeError, InvalidRecordEntry, csv.Error) as error:
            raise self._error("RECORD cannot be read", name, str(error)) from error
        for path, hash_, _size in rows:
            if path.endswith("/"):
                continue
            algorithm, _, encoded = hash_.partition("=")
            if path in record:
                raise self._error("RECORD names a member twice", path)
            record[path] = _hex(encoded) if algorithm == "sha256" else None
        return record

    def _inflate(self, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """The member's bytes as they come. isal inflates twice as fast as zlib and, like it, releases the GIL."""
        self._file.seek(info.header_offset)
        header = self._file.read(30)
        if header[:4] != b"PK\x03\x04":
            raise self._error("the member's header is damaged", info.orig_filename)
        skip = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        self._file.seek(skip, io.SEEK_CUR)
        left = info.compress_size
        inflate = isal_zlib.decompressobj(-15) if info.compress_type == zipfile.ZIP_DEFLATED else None
        try:
            while left and (data := self._file.read(min(left, _CHUNK))):
                left -= len(data)
                if inflate is None:
                    yield data
                while inflate and data:
                    yield inflate.decompress(data, _INFLATED)
                    data = inflate.unconsumed_tail
            if inflate:
                yield inflate.flush()
        except isal_zlib.error as error:  # type: ignore[misc]  # a class, which isal's stub declares as an instance
            raise self._error("the member is damaged", info.orig_filename, str(error)) from error


def _hex(encoded: str) -> str | None:
    """RECORD's hash, base64url without padding (PEP 376); None when it is none."""
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
    except ValueError:
        return None
