"""The body of a request, and a page and how its body is unpacked: bounded, and to its end.

urllib3 does not ask for the end.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field

from imagegen.core.deferred import dataclass
from imagegen.core.errors import FetchError

MAX_PAGE = 64 << 20  # bytes; the longest pages of package indexes are tens of MB
_GZIP = 31  # zlib's wbits for a gzip header and trailer

CHUNK = 1 << 18  # bytes that are read at once, and the headway that a try must make to count as none
AUTHORIZATION = "Authorization"


@dataclass(frozen=True)
class Body:
    """The body of a request: `pieces` gives its `size` bytes from the first one on, each time that it is called."""

    size: int
    pieces: Callable[[], Iterator[bytes]]


def authorized(authorization: str | None) -> dict[str, str]:
    """Return the Authorization header for the first request; it is dropped on cross-origin redirects."""
    return {AUTHORIZATION: authorization} if authorization else {}


@dataclass(frozen=True)
class Page:
    """A document, and the address that it came from after redirects (without credentials)."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # names in any case


class DamagedBody(Exception):
    """The body does not match its headers."""


def read_page(chunks: Iterable[bytes], encoding: str, url: str, limit: int = MAX_PAGE) -> Page:
    """The page of a body in the given Content-Encoding, of at most `limit` bytes.

    Raises DamagedBody when it cannot be unpacked or ends early, FetchError when it is too long.
    """
    if encoding.strip().lower() in ("gzip", "x-gzip"):
        chunks = _gunzip(chunks, limit)
    elif encoding.strip().lower() not in ("", "identity"):
        raise DamagedBody(f"it has the Content-Encoding {encoding!r}, which was not requested")
    pieces, total = [], 0
    for chunk in chunks:
        pieces.append(chunk)
        total += len(chunk)
        if total > limit:
            raise FetchError(
                f"{url} is too long for a page", code="fetch-page-too-large", why=f"it has more than {limit} bytes"
            )
    return Page(url, b"".join(pieces))


def first_bytes(chunks: Iterable[bytes], length: int) -> bytes:
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) >= length:
            break
    return bytes(content[:length])


def _gunzip(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Yield the contents of a gzip of at most `limit` bytes: blocks without contents could go on for ever."""
    unpacker = zlib.decompressobj(_GZIP)
    received = 0
    try:
        for chunk in chunks:
            compressed = chunk
            received += len(chunk)
            if received > limit:
                raise DamagedBody(f"its gzip is longer than {limit} bytes")
            while compressed and not unpacker.eof:
                yield unpacker.decompress(compressed, MAX_PAGE)
                compressed = unpacker.unconsumed_tail
            if unpacker.eof:
                return
    except zlib.error as error:
        raise DamagedBody(f"it is not a gzip, as its headers say ({error})") from None
    if not unpacker.eof:
        raise DamagedBody("its gzip ends early")
