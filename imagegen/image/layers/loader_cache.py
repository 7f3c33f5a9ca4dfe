"""The cache of the dynamic loader, /etc/ld.so.cache: read, and written with more libraries.

The loader finds a library by its name in this file, and does not read /etc/ld.so.conf, from which ldconfig makes it.
Source of the format: glibc, sysdeps/generic/dl-cache.h and elf/cache.c; in files of ldconfig before glibc 2.32 an older
table comes first. All numbers are little-endian.

    header     "glibc-ld.so.cache1.1", entries, bytes of strings, byte order, offset of the extensions
    entries    flags, offset of the name, offset of the path, hwcap; sorted by name, the last one first
    strings    ended by a NUL; offsets count from the header
    extensions the program that wrote the file; names of glibc-hwcaps directories, by whose index a hwcap refers to them
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_MAGIC, _OLD_HEADER, _OLD_ENTRY = b"ld.so-1.7.0", 16, 12  # bytes
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_EXTENSIONS, _SECTION, _OFFSET = struct.Struct("<II"), struct.Struct("<IIII"), struct.Struct("<I")
_EXTENSION_MAGIC = 0xEAA42174
_HWCAPS = 1  # tag of a section
_LITTLE_ENDIAN = 2
_MOST = 1 << 20  # entries; a desktop's cache has 3,000
_PIECE = re.compile(r"([0-9]+)|([^0-9])", re.DOTALL)
# e_machine -> flags of an entry, for version 6 of the C library and the processor.
FLAGS = {62: 0x0303, 183: 0x0A03}


@dataclass(frozen=True)
class CacheEntry:
    """A library of the cache. `hwcap` is 0 but for files of which the processor decides whether they are loaded."""

    name: str
    path: str
    flags: int
    hwcap: int = 0
    os_version: int = 0


@dataclass(frozen=True)
class LoaderCache:
    """A cache. `hwcaps` are the names of its glibc-hwcaps directories, to which entries refer by number."""

    entries: tuple[CacheEntry, ...] = ()
    hwcaps: tuple[str, ...] = ()


def read(data: bytes) -> LoaderCache:
    """Parse the file. Raises ValueError for one that glibc would not read."""
    try:
        return _read(data[_start(data) :])
    except struct.error as error:
        raise ValueError(str(error)) from error


def write(cache: LoaderCache) -> bytes:
    """Return the file; equal caches give equal bytes."""
    strings = bytearray()
    offsets: dict[str, int] = {}
    first = _HEADER.size + _ENTRY.size * len(cache.entries)

    def offset_of(text: str) -> int:
        if text not in offsets:
            offsets[text] = first + len(strings)
            strings.extend(text.encode(errors="surrogateescape") + b"\0")
        return offsets[text]

    entries = b"".join(
        _ENTRY.pack(entry.flags, offset_of(entry.name), offset_of(entry.path), entry.os_version, entry.hwcap)
        for entry in cache.entries
    )
    names = b"".join(_OFFSET.pack(offset_of(name)) for name in cache.hwcaps)
    size = len(strings)
    strings.extend(bytes(-(first + size) % _OFFSET.size))
    at = first + len(strings)
    header = _HEADER.pack(_MAGIC, len(cache.entries), size, _LITTLE_ENDIAN, at if names else 0)
    if not names:
        return header + entries + bytes(strings[:size])
    section = _SECTION.pack(_HWCAPS, 0, at + _EXTENSIONS.size + _SECTION.size, len(names))
    return header + entries + bytes(strings) + _EXTENSIONS.pack(_EXTENSION_MAGIC, 1) + section + names


def add(cache: LoaderCache, added: Iterable[CacheEntry]) -> LoaderCache:
    """Return the cache with more libraries, found before its own libraries of the same names.

    The order is ldconfig's: of one name, those come first of which the processor decides.
    """
    entries = sorted((*added, *cache.entries), key=lambda entry: (entry.flags, entry.hwcap != 0), reverse=True)
    return replace(cache, entries=tuple(sorted(entries, key=lambda entry: sort_key(entry.name), reverse=True)))


def sort_key(name: str) -> list[tuple[int, int]]:
    """Return the key by which the loader orders names: numbers by their value, and above all other characters."""
    pieces = _PIECE.finditer(name)
    return [(1, int(piece[1])) if piece[1] else (0, ord(piece[2])) for piece in pieces]


def _start(data: bytes) -> int:
    """Return where the header is. Raises ValueError where there is none, struct.error for a short file."""
    start = 0
    if data.startswith(_OLD_MAGIC):
        (count,) = _OFFSET.unpack_from(data, _OLD_HEADER - _OFFSET.size)
        start = _OLD_HEADER + _OLD_ENTRY * count
        start += -start % 8
    if not data.startswith(_MAGIC, start):
        raise ValueError("it does not begin as a cache of glibc's loader does")
    return start


def _read(data: bytes) -> LoaderCache:
    _, count, _, _, extensions = _HEADER.unpack_from(data)
    if count > _MOST:
        raise ValueError(f"it has {count} entries")
    rows = [_ENTRY.unpack_from(data, _HEADER.size + _ENTRY.size * number) for number in range(count)]
    entries = tuple(
        CacheEntry(_text(data, name), _text(data, path), flags, hwcap, os_version)
        for flags, name, path, os_version, hwcap in rows
    )
    return LoaderCache(entries, tuple(_hwcaps(data, extensions)) if extensions else ())


def _hwcaps(data: bytes, at: int) -> Iterator[str]:
    magic, count = _EXTENSIONS.unpack_from(data, at)
    if magic != _EXTENSION_MAGIC or count > _MOST:
        raise ValueError("its extensions cannot be read")
    for number in range(count):
        tag, _, offset, size = _SECTION.unpack_from(data, at + _EXTENSIONS.size + _SECTION.size * number)
        if tag == _HWCAPS:
            offsets = data[offset : offset + size]
            yield from (_text(data, start) for (start,) in _OFFSET.iter_unpack(offsets))


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    if end < 0:
        raise ValueError(f"the text at {at} has no end")
    return data[at:end].decode(errors="surrogateescape")
