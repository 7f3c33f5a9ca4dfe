"""A page and how its body is unpacked: bounded, and to its end, which urllib3 does not ask for."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from imagegen.core.errors import FetchError

MAX_PAGE = 64 << 20  # bytes; the longest pages of package indexes are tens of MB
_GZIP = 31  # zlib's wbits for a gzip header and trailer


@dataclass(frozen=True)
class Page:
    """A document, and the address that it came from after redirects (without credentials)."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # names in any case


class DamagedError(Exception):
    """The body does not match its headers."""


def read_page(chunks: Iterable[bytes], encoding: str, url: str, limit: int = MAX_PAGE) -> Page:
    """The page of a body in the given Content-Encoding, of at most `limit` bytes.

    Raises DamagedError when it cannot be unpacked or ends early, FetchError when it is too long.
    """
    if encoding.strip().lower() in ("gzip", "x-gzip"):
        chunks = _gunzip(chunks)
    elif encoding.strip().lower() not in ("", "identity"):
        raise DamagedError(f"it has the Content-Encoding {encoding!r}, which was not asked for")
    parts, total = [], 0
    for chunk in chunks:
        parts.append(chunk)
        total += len(chunk)
        if total > limit:
            raise FetchError(
                f"{url} is too long for a page", code="fetch-page-too-large", why=f"it has more than {limit} bytes"
            )
    return Page(url, b"".join(parts))


def first_bytes(chunks: Iterable[bytes], length: int) -> bytes:
    found = bytearray()
    for chunk in chunks:
        found += chunk
        if len(found) >= length:
            break
    return bytes(found[:length])


def _gunzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        for chunk in chunks:
            rest = chunk
            while rest and not unpacker.eof:
                yield unpacker.decompress(rest, MAX_PAGE)
                rest = unpacker.unconsumed_tail
    except zlib.error as error:
        raise DamagedError(f"it is no gzip, as its headers say ({error})") from None
    if not unpacker.eof:
        raise DamagedError("its gzip ends early")
