"""ZIP files that every reader reads in the same way; any other is an error.

ZIP stores most values twice, and readers differ in which one they use; attacks exploit the difference. Here each byte
of the file must have one meaning: members lie side by side from the first byte to the directory, each member's own
header agrees with the directory, and nothing lies before, between or behind. PyPI refuses the same for new uploads
(CVE-2025-54368 and the PyPI blog of 2025-08-07). Nothing is unpacked beyond the declared sizes, and memory is bounded
by the constants below. Source of the format: APPNOTE.TXT 6.3.10.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from isal import isal_zlib

from imagegen.core.layer_tar import WHITEOUT, is_below

# Bounds above any wheel of the field (the largest hold 4 GB in 20 000 members) and far below sizes that harm a machine.
MAX_MEMBERS = 200_000  # files and directories, those that are only implied too
MAX_DIRECTORY = 48 << 20  # bytes of the central directory
MAX_NAME = 1000  # bytes; with the image's prefix still far from Linux's PATH_MAX
MAX_PART = 255  # bytes between two slashes, Linux's NAME_MAX
MAX_UNPACKED = 24 << 30
# A file of zeros may shrink a thousandfold, but the field's wheels of more than a gigabyte shrink fourfold.
SMALL = 1 << 30
MAX_RATIO = 50

_CHUNK = 1 << 18  # bytes read at once
_PIECE = 1 << 20  # bytes unpacked at once
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # "see the zip64 field"

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENCRYPTED = 0x2061  # flags: encrypted, patched, strongly encrypted, directory encrypted
_DESCRIBED, _UTF8 = 0x8, 0x800  # flags: sizes follow the data; the name is UTF-8
_ZIP64, _UNICODE_PATH = 0x0001, 0x7075  # extra fields
_STORED, _DEFLATED = 0, 8
_NOT_PORTABLE = re.compile(r"[\x00-\x1f\x7f\\]|^[^/]*:")  # controls, backslashes, drive letters

_Fields: TypeAlias = tuple[str, int, int, int, int, int, int, int]  # of a ZipEntry, all but its end


class ArchiveError(Exception):
    """An invalid archive, with the fault, the member (None for the whole file), and the reason."""

    def __init__(self, what: str, member: str | None = None, why: str | None = None) -> None:
        super().__init__(what)
        self.what, self.member, self.why = what, member, why


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One member as the directory has it. Sizes and offsets are bytes; `end` is where the next thing begins."""

    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int  # Unix mode and file type, 0 where the writer gave none
    offset: int
    end: int


class ZipArchive:
    """An open ZIP file. `files` maps names to entries, directories left out. Threads may read members at once.

    Raises ArchiveError, and OSError when the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        try:
            self.files: Mapping[str, ZipEntry] = self._table()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. The table stays."""
        # A wheel is read once: gigabytes of wheels need not evict other files from the page cache.
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._file.close()

    def chunks(self, entry: ZipEntry) -> Iterator[bytes]:
        """The member's bytes, checked against size and CRC-32: an error comes after the last good chunk."""
        crc = size = 0
        for chunk in self._unpack(entry):
            crc, size = isal_zlib.crc32(chunk, crc), size + len(chunk)
            if size > entry.size:
                break
            if chunk:
                yield chunk
        if size != entry.size or crc != entry.crc:
            raise ArchiveError("the member is damaged", entry.name, "its size or CRC-32 is not the directory's")

    def _unpack(self, entry: ZipEntry) -> Iterator[bytes]:
        offset = self._data(entry)
        end = offset + entry.packed
        # isal inflates twice as fast as zlib and, like it, releases the GIL.
        inflate = isal_zlib.decompressobj(-zlib.MAX_WBITS) if entry.method == _DEFLATED else None
        try:
            while offset < end and not (inflate and inflate.eof):
                data = self._read(offset, min(end - offset, _CHUNK))
                offset += len(data)
                if inflate is None:
                    yield data
                while inflate and data and not inflate.eof:
                    yield inflate.decompress(data, _PIECE)
                    data = inflate.unconsumed_tail
            # Further calls return the data that the limit on one piece has left inside.
            while inflate and not inflate.eof and (piece := inflate.decompress(b"", _PIECE)):
                yield piece
        except isal_zlib.error as error:  # type: ignore[misc]  # a class, which isal's stub declares as an instance
            raise ArchiveError("the member is damaged", entry.name, str(error)) from error
        if inflate and (not inflate.eof or inflate.unused_data or offset < end):
            raise ArchiveError("the member is damaged", entry.name, "its compressed data end early or too late")

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._file.fileno(), size, offset)
        if len(data) != size:
            raise ArchiveError("not a readable zip file", None, "it is cut off")
        return data

    def _table(self) -> Mapping[str, ZipEntry]:
        start, size, count = self._directory()
        if count > MAX_MEMBERS or size > MAX_DIRECTORY:
            raise ArchiveError("the wheel holds too many members", None, f"more than {MAX_MEMBERS}")
        raw = self._read(start, size)
        members: list[_Fields] = []
        position = 0
        for _ in range(count):
            fields, position = _fields(raw, position)
            members.append(fields)
        if position != size:
            raise ArchiveError("not a readable zip file", None, "its directory holds more than it counts")
        return self._checked(_placed(members, start), start)

    def _checked(self, entries: list[ZipEntry], start: int) -> Mapping[str, ZipEntry]:
        files: dict[str, ZipEntry] = {}
        directories: dict[str, str] = {}  # name -> a member that needs it
        names: set[str] = set()
        unpacked = 0
        for entry in entries:
            _check_kind(entry)
            if entry.name in names:
                raise ArchiveError("two members have one name", entry.name)
            names.add(entry.name)
            parent = entry.name.rpartition("/")[0]
            while parent and parent not in directories:
                directories[parent] = entry.name
                parent = parent.rpartition("/")[0]
            if entry.name.endswith("/"):
                self._data(entry)
                continue
            files[entry.name] = entry
            if len(files) + len(directories) > MAX_MEMBERS:
                raise ArchiveError("the wheel holds too many members", None, f"more than {MAX_MEMBERS}")
            unpacked += entry.size
            if unpacked > MAX_UNPACKED or unpacked > max(SMALL, MAX_RATIO * start):
                raise ArchiveError("the wheel unpacks to more than it can hold", entry.name, "a zip bomb")
        for name in files.keys() & directories.keys():
            raise ArchiveError("a member is a file and a directory", name, f"{directories[name]} lies in it")
        return files

    def _directory(self) -> tuple[int, int, int]:
        """Offset and bytes of the central directory, and how many members it has."""
        length = os.fstat(self._file.fileno()).st_size
        tail = self._read(max(0, length - _END.size - _FULL16), min(length, _END.size + _FULL16))
        position = tail.rfind(b"PK\x05\x06")
        if position < 0 or len(tail) - position < _END.size:
            raise ArchiveError("not a readable zip file", None, "it has no end record: it is cut off, or no zip file")
        _, disk, first, entries_on_disk, count, size, start, comment = _END.unpack_from(tail, position)
        end = length - len(tail) + position
        if position + _END.size + comment != len(tail):
            raise ArchiveError("not a readable zip file", None, "data lie behind its end")
        if disk or first or entries_on_disk != count:
            raise ArchiveError("not a readable zip file", None, "it is one of several volumes")
        if end >= _LOCATOR.size and (locator := self._read(end - _LOCATOR.size, _LOCATOR.size))[:4] == b"PK\x06\x07":
            end, wide = self._end64(end - _LOCATOR.size, locator)
            for narrow, value, full in zip((size, start, count), wide, (_FULL32, _FULL32, _FULL16), strict=True):
                if narrow not in (value, full):
                    raise ArchiveError("not a readable zip file", None, "its two end records differ")
            size, start, count = wide
        if start + size != end:
            raise ArchiveError("not a readable zip file", None, "its directory is not where its end record says")
        return start, size, count

    def _end64(self, position: int, locator: bytes) -> tuple[int, tuple[int, int, int]]:
        """Return where the zip64 end record lies, and its size and offset of the directory and count of members."""
        _, disk, offset, disks = _LOCATOR.unpack(locator)
        if disk or disks > 1 or offset + _END64.size != position:
            raise ArchiveError("not a readable zip file", None, "its zip64 end record is not where it should be")
        magic, length, _, _, disk, first, entries_on_disk, count, size, start = _END64.unpack(
            self._read(offset, _END64.size)
        )
        if magic != b"PK\x06\x06" or length != _END64.size - 12 or disk or first or entries_on_disk != count:
            raise ArchiveError("not a readable zip file", None, "its zip64 end record is damaged")
        return offset, (size, start, count)

    def _data(self, entry: ZipEntry) -> int:
        """Return where the member's data begin, once its own header is found to agree with the directory."""
        header = self._read(entry.offset, _LOCAL.size)
        magic, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL.unpack(header)
        if magic != b"PK\x03\x04":
            raise ArchiveError("the member's header is damaged", entry.name)
        fields = self._read(entry.offset + _LOCAL.size, name_length + extra_length)
        extra = _extra(fields[name_length:], entry.name)
        start: int = entry.offset + _LOCAL.size + name_length + extra_length
        end = start + entry.packed
        local = (crc, *_wide(extra, size, packed))
        same = local == (entry.crc, entry.size, entry.packed)
        if entry.flags & _DESCRIBED:
            same = local in ((entry.crc, entry.size, entry.packed), (0, 0, 0)) and self._described(entry, end)
            end = entry.end
        name = fields[:name_length]
        same = same and method == entry.method and name == entry.name.encode() and not _other_name(extra, name)
        telling = _DESCRIBED | _ENCRYPTED | (0 if name.isascii() else _UTF8)
        if not same or (flags ^ entry.flags) & telling or end != entry.end:
            raise ArchiveError("the member's own header contradicts the zip file's directory", entry.name)
        return start

    def _described(self, entry: ZipEntry, position: int) -> bool:
        """Return whether a data descriptor follows the data, with or without its signature, narrow or wide."""
        length = entry.end - position
        if length not in (12, 16, 20, 24):
            return False
        raw = self._read(position, length)
        numbers = struct.unpack("<L2L" if length < 20 else "<L2Q", raw[4:] if length in (16, 24) else raw)
        return numbers == (entry.crc, entry.packed, entry.size) and (length in (12, 20) or raw[:4] == b"PK\x07\x08")


def _fields(raw: bytes, position: int) -> tuple[_Fields, int]:
    """Parse the directory at a position; return its fields and the position of the next entry."""
    if len(raw) - position < _ENTRY.size or raw[position : position + 4] != b"PK\x01\x02":
        raise ArchiveError("not a readable zip file", None, "its directory is damaged")
    _, _, _, flags, method, _, _, crc, packed, size, *tail = _ENTRY.unpack_from(raw, position)
    name_length, extra_length, comment, disk, _, attributes, at = tail
    position += _ENTRY.size
    end = position + name_length + extra_length + comment
    raw_name = raw[position : position + name_length]
    try:
        name = raw_name.decode("utf-8" if flags & _UTF8 else "ascii")
    except UnicodeDecodeError:
        raise ArchiveError("a member's name is not UTF-8, or not marked as UTF-8", repr(raw_name)) from None
    if end > len(raw):
        raise ArchiveError("not a readable zip file", None, "its directory is damaged")
    extra = _extra(raw[position + name_length : position + name_length + extra_length], name)
    size, packed, at = _wide(extra, size, packed, at)
    if disk not in (0, _FULL16) or _other_name(extra, raw_name):
        raise ArchiveError("the member has two names or lies on another volume", name)
    return (name, flags, method, crc, packed, size, attributes >> 16, at), end


def _placed(members: list[_Fields], start: int) -> list[ZipEntry]:
    """The entries: each member ends where the next one, or the directory, begins. None may overlap."""
    members.sort(key=lambda fields: fields[-1])
    ends = [*(fields[-1] for fields in members[1:]), start]
    entries = [ZipEntry(*fields, end) for fields, end in zip(members, ends, strict=False)]
    if entries and entries[0].offset:
        raise ArchiveError("not a readable zip file", None, "data lie before its first member")
    for entry in entries:
        if entry.offset + _LOCAL.size + len(entry.name.encode()) + entry.packed > entry.end:
            raise ArchiveError("two members overlap", entry.name, "a zip bomb, or a damaged file")
    return entries


def _extra(raw: bytes, name: str) -> dict[int, bytes]:
    """Extra fields by kind; up to three bytes of padding may follow them, as zipalign leaves."""
    fields: dict[int, bytes] = {}
    position = 0
    while len(raw) - position >= 4:
        kind, length = struct.unpack_from("<2H", raw, position)
        position += 4 + length
        if position > len(raw) or (kind in fields and kind in (_ZIP64, _UNICODE_PATH)):
            raise ArchiveError("the member's extra fields are damaged", name)
        fields[kind] = raw[position - length : position]
    return fields


def _wide(extra: Mapping[int, bytes], *values: int) -> tuple[int, ...]:
    """Return the values; the values that did not fit come from the zip64 field, in this order."""
    wide = extra.get(_ZIP64, b"")
    numbers = iter(struct.unpack_from(f"<{len(wide) // 8}Q", wide))
    return tuple(next(numbers, value) if value == _FULL32 else value for value in values)


def _other_name(extra: Mapping[int, bytes], name: bytes) -> bool:
    """Return whether Info-ZIP's Unicode path, which some readers use instead of the name, differs from it."""
    return extra.get(_UNICODE_PATH, b"\1\0\0\0\0" + name)[5:] != name


def _check_kind(entry: ZipEntry) -> None:
    _check_name(entry.name)
    kind = stat.S_IFMT(entry.mode)
    directory = entry.name.endswith("/")
    if kind not in (0, stat.S_IFREG) and not (directory and kind == stat.S_IFDIR):
        raise ArchiveError("a wheel holds regular files only", entry.name, "this one is a link, device or pipe")
    if entry.flags & _ENCRYPTED or entry.method not in (_STORED, _DEFLATED):
        raise ArchiveError("the member is encrypted or compressed in another way than DEFLATE", entry.name)
    if directory and entry.size:
        raise ArchiveError("a directory cannot hold data", entry.name)


def _check_name(name: str) -> None:
    components = name.removesuffix("/").split("/")
    if _NOT_PORTABLE.search(name):
        raise ArchiveError("a member's name is not portable", repr(name))
    if not is_below(name.removesuffix("/")):
        raise ArchiveError("a member's name leaves the wheel's tree", name)
    if any(part.startswith(WHITEOUT) for part in components):
        raise ArchiveError("a member's name hides files of lower layers", name)
    if len(name.encode()) > MAX_NAME or any(len(part.encode()) > MAX_PART for part in components):
        raise ArchiveError("a member's name is too long for a file system", f"{name[:80]}…")
