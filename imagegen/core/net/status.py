"""The meaning of an answer's status and headers: RFC 9110."""

from __future__ import annotations

import email.utils
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from imagegen.core.errors import FetchError
from imagegen.core.net.address import Address, parse
from imagegen.core.text import redact

if TYPE_CHECKING:
    import requests


MAX_WAIT = 60.0  # seconds that a server may make us wait before the next try
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_BUSY = frozenset({429, 503})  # said of the whole server, not of one file


class UnavailableError(FetchError):
    """The server does not respond, or refuses to let this user read."""

    code = "fetch-unavailable"


class UnreachableError(UnavailableError):
    """No usable answer from the source: no route, no name, refused, or failing after every retry."""

    code = "fetch-unreachable"


class NotFoundError(FetchError):
    """The source answered, and does not have the file."""

    code = "fetch-not-found"


class DeniedError(UnavailableError):
    """The server requires credentials or refuses those it got.

    `challenge` is its WWW-Authenticate header (RFC 9110, 11.6.1); `url` is the address of the refusing server, which a
    redirect may have changed. `ahead` is how many seconds this machine's clock is ahead of the server's; negative:
    behind; 0 if not stated.
    """

    code = "fetch-denied"

    def __init__(self, address: Address, status: int, challenge: str, ahead: float = 0.0) -> None:
        super().__init__(
            f"{address.url} may not be read",
            why=f"HTTP status {status}",
            fix=f"give credentials for {address.host} in ~/.netrc or in the index URL",
        )
        self.url, self.challenge, self.ahead = address.url, challenge, ahead


class TryAgainError(Exception):
    """A transient fault. `wait` is the server's Retry-After in seconds; with `local` only this file is affected."""

    def __init__(self, why: str, wait: float | None = None, *, local: bool = False) -> None:
        super().__init__(why)
        self.wait, self.local = wait, local


def redirected(address: Address, location: str) -> Address:
    try:
        target = parse(urljoin(address.url, location))
    except (FetchError, ValueError) as error:
        raise FetchError(
            f"{address.url} redirects to what cannot be fetched", code="fetch-redirect-refused", why=redact(str(error))
        ) from error
    if address.scheme == "https" and target.scheme == "http":
        raise FetchError(
            f"{address.url} redirects to plain http", code="fetch-redirect-refused", why=f"to {target.url}"
        )
    return target


def check_status(response: requests.Response, address: Address) -> None:
    """Check that the response is a success.

    Raises NotFoundError, DeniedError, TryAgainError or UnavailableError by its status.
    """
    status = response.status_code
    check_willing(response, address)
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        raise NotFoundError(f"{address.url} does not exist", why=f"HTTP status {status}")
    ranged = status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and "Range" in response.request.headers
    if not 200 <= status < 300 and not ranged:
        raise UnavailableError(f"{address.url} cannot be fetched", why=f"HTTP status {status}")


def check_willing(response: requests.Response, address: Address) -> None:
    """Raise TryAgainError for a server that is busy or broken, DeniedError for one that requires other credentials."""
    status = response.status_code
    if status in _RETRIED:
        requested = _retry_after(response.headers.get("Retry-After", ""))
        waiting = f"; it asks to wait {requested:.0f} s" if requested and requested > MAX_WAIT else ""
        raise TryAgainError(f"HTTP status {status}{waiting}", requested, local=status not in _BUSY)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED):
        ahead = -(_until(response.headers.get("Date", "")) or 0.0)
        raise DeniedError(address, status, response.headers.get("WWW-Authenticate", ""), ahead)


def _retry_after(value: str) -> float | None:
    """Seconds from a Retry-After header: a number or an HTTP date (RFC 9110, 10.2.3)."""
    if value.strip().isdecimal():
        return float(value)
    until = _until(value)
    return None if until is None else max(0.0, until)


def _until(date: str) -> float | None:
    """Seconds from now until an HTTP date (RFC 9110, 5.6.7)."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None


def whole_size(response: requests.Response) -> int | None:
    """Return the size in bytes of the whole file by Content-Length, or the end of Content-Range; None without them."""
    if response.status_code == HTTPStatus.PARTIAL_CONTENT:
        size = response.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        size = response.headers.get("Content-Length", "")
    return size_of(size)


def size_of(header: str) -> int | None:
    """Return the number of bytes that a header gives; None where it is none. A real size has far fewer digits."""
    return int(header) if re.fullmatch("[0-9]{1,18}", header) else None


def continues(response: requests.Response, start: int) -> bool:
    """Return whether the answer continues at byte `start` (RFC 9110, 14.4), rather than starting again or failing."""
    content_range = response.headers.get("Content-Range", "")
    return response.status_code == HTTPStatus.PARTIAL_CONTENT and content_range.startswith(f"bytes {start}-")
