"""The client: one request with its redirects, retried with back-off; downloads resumed and verified."""

from __future__ import annotations

import email.utils
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urljoin

import requests
import urllib3.exceptions

from imagegen import __version__
from imagegen.config import Settings
from imagegen.errors import FetchError
from imagegen.net.address import Address, file_path, is_file, netrc_auth, parse, proxy_for, redact
from imagegen.net.partial import Partial, partial
from imagegen.progress import Meter
from imagegen.store import Store

_CHUNK = 1 << 18
_MAX_REDIRECTS = 8
_MAX_WAIT = 60.0  # seconds that a server may make us wait before the next try
_MAX_PAGE = 256 << 20  # bytes; the longest pages of package indexes are tens of MB
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})

T = TypeVar("T")


class NotFoundError(FetchError):
    """The source answered, and does not have the file."""


class UnreachableError(FetchError):
    """No usable answer from the source: no route, no name, refused, or failing after every retry."""


@dataclass(frozen=True)
class Page:
    """A document, and the address that it came from after redirects (without credentials)."""

    url: str
    body: bytes


class _TryAgainError(Exception):
    """A fault that may pass; `wait` is how many seconds the server asks for."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class Client:
    """One per run; thread-safe. Proxies, netrc and CA bundle come from `settings`, never from os.environ.

    `timeout` is (seconds to connect, seconds without a byte); `attempts` counts tries in a row without headway;
    `backoff` is the pause in seconds before the second try, and doubles.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        attempts: int = 5,
        timeout: tuple[float, float] = (15.0, 30.0),
        backoff: float = 0.5,
    ) -> None:
        self._settings = settings
        self._attempts, self._timeout, self._backoff = attempts, timeout, backoff
        self._known = _credentials(settings)
        self._local = threading.local()
        self._stopped = threading.Event()

    def impatient(self) -> Client:
        """A client that tries once and gives up soon: to ask whether a source can be reached at all."""
        return Client(self._settings, attempts=1, timeout=(5.0, 10.0))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Make downloads in other threads stop at their next chunk or pause."""
        self._stopped.set()

    def get(self, url: str, *, accept: str | None = None) -> bytes:
        """A small document, whole. Raises FetchError (NotFoundError and UnreachableError among its kinds)."""
        return self.page(url, accept=accept).body

    def page(self, url: str, *, accept: str | None = None) -> Page:
        """As `get`, with the address after redirects. A file:// directory gives its index.html."""
        if is_file(url):
            path = file_path(url)
            with _opened(path / "index.html" if path.is_dir() else path) as file:
                return Page(url, file.read(_MAX_PAGE))

        def once() -> Page:
            with self._answer("GET", url, {"Accept": accept} if accept else {}) as (final, response):
                body = b"".join(_limited(response.raw.stream(_CHUNK, decode_content=True), final))
                return Page(final, body)

        return self._retry(url, once)

    def size(self, url: str) -> int:
        """The size in bytes of the file at `url`, without fetching it. Raises FetchError."""
        if is_file(url):
            with _opened(file_path(url)) as file:
                return os.fstat(file.fileno()).st_size

        def once() -> int:
            with self._answer("HEAD", url, {"Accept-Encoding": "identity"}) as (final, response):
                length = response.headers.get("Content-Length", "")
            if not length.isdecimal():
                raise FetchError(f"{final} does not say its size", why="the answer has no Content-Length")
            return int(length)

        return self._retry(url, once)

    def download(self, url: str, store: Store, *, sha256: str, size: int, meter: Meter) -> str:
        """Bring the file at `url` into the store and return its digest; resumes what an earlier run left.

        `size` is in bytes. Raises FetchError when the file cannot be had or is not the one with this hash and size,
        StoreError when the store cannot take it.
        """
        digest = f"sha256:{sha256}"
        if not store.has(digest, size):
            with partial(store, sha256, size) as part:
                if not store.has(digest, size):  # else another process fetched it while we waited
                    return self._fill(part, url, store, sha256=sha256, size=size, meter=meter)
        meter.advance(size)
        return digest

    def _fill(self, part: Partial, url: str, store: Store, *, sha256: str, size: int, meter: Meter) -> str:
        resumed = part.size > 0
        meter.advance(part.size)
        while True:
            if part.size < size:
                self._retry(url, lambda: self._receive(part, url, size, meter), headway=lambda: part.size)
            if part.sha256 == sha256:
                return part.commit(store)
            wrong = part.sha256
            _restart(part, meter)
            if not resumed:
                raise FetchError(
                    f"{redact(url)} is not the expected file",
                    why=f"expected sha256 {sha256}, got {wrong}",
                    fix="do not trust this source; if the file was replaced on purpose, lock again",
                )
            resumed = False  # what an earlier run left may be at fault: once more, from the first byte

    def _receive(self, part: Partial, url: str, size: int, meter: Meter) -> None:
        if is_file(url):
            with _opened(file_path(url)) as file:
                file.seek(part.size)
                self._append(part, iter(lambda: file.read(_CHUNK), b""), url, size, meter)
            return
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={part.size}-"} if part.size else {})
        with self._answer("GET", url, headers) as (final, response):
            if part.size and not _continues(response, part.size):
                _restart(part, meter)
                if response.status_code != HTTPStatus.OK:
                    raise _TryAgainError("the server does not give the range that was asked for", wait=0)
            self._append(part, response.raw.stream(_CHUNK, decode_content=False), final, size, meter)
        if part.size < size:
            raise _TryAgainError(f"the answer ended after {part.size} of {size} bytes")

    def _append(self, part: Partial, chunks: Iterator[bytes], url: str, size: int, meter: Meter) -> None:
        for chunk in chunks:
            self._check_stopped(url)
            part.append(chunk)
            meter.advance(len(chunk))
            if part.size > size:
                break
        if part.size > size or (part.size < size and is_file(url)):
            got = f"{part.size} bytes" if part.size < size else "more"
            _restart(part, meter)
            raise FetchError(
                f"{redact(url)} is not the expected file",
                why=f"expected {size} bytes, got {got}",
                fix="do not trust this source; if the file was replaced on purpose, lock again",
            )

    def _retry(self, url: str, once: Callable[[], T], *, headway: Callable[[], int] = lambda: 0) -> T:
        """Call `once` until it gives something; tries that leave `headway` where it was are counted."""
        failures, best = 0, headway()
        while True:
            self._check_stopped(url)
            try:
                return once()
            except requests.exceptions.SSLError as error:
                raise UnreachableError(
                    f"{redact(url)} has no certificate that this machine trusts",
                    why=redact(str(error)),
                    fix="set SSL_CERT_FILE to the CA bundle of your network",
                ) from error
            except (requests.RequestException, urllib3.exceptions.HTTPError, _TryAgainError) as error:
                failures, best = (0, headway()) if headway() > best else (failures + 1, best)
                if failures >= self._attempts:
                    tries = f" ({failures} tries)" if failures > 1 else ""
                    raise UnreachableError(
                        f"{redact(url)} cannot be fetched{tries}", why=_reason(error), fix="check network and proxy"
                    ) from error
                asked = error.wait if isinstance(error, _TryAgainError) else None
                self._stopped.wait(
                    min(_MAX_WAIT, self._backoff * 2.0 ** max(0, failures - 1) if asked is None else asked)
                )

    @contextmanager
    def _answer(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[tuple[str, requests.Response]]:
        """The final answer to a request and its address, redirects followed; its status is 2xx, or 416 to a range."""
        address = parse(url)
        own, given = address.origin, address.auth
        for _ in range(_MAX_REDIRECTS + 1):
            # Credentials stay with the origin that they were given for.
            auth = address.auth or (given if address.origin == own else None) or self._known.get(address.origin)
            with self._send(method, address, headers, auth) as response:
                if "Location" not in response.headers or not response.is_redirect:
                    _check_status(response, address)
                    yield address.url, response
                    return
                target = parse(urljoin(address.url, response.headers["Location"]))
            if address.scheme == "https" and target.scheme == "http":
                raise FetchError(f"{address.url} redirects to plain http", why=f"to {target.url}")
            address = target
        raise FetchError(f"{redact(url)} redirects more than {_MAX_REDIRECTS} times", why=f"last to {address.url}")

    def _send(
        self, method: str, address: Address, headers: Mapping[str, str], auth: tuple[str, str] | None
    ) -> requests.Response:
        proxy = proxy_for(address, self._settings.env)
        return self._session().request(
            method,
            address.url,
            headers=headers,
            auth=auth or netrc_auth(address, self._settings.env),
            proxies={address.scheme: proxy} if proxy else {},
            allow_redirects=False,
            stream=True,
            timeout=self._timeout,
        )

    def _session(self) -> requests.Session:
        """One per thread: requests does not promise that a session may be shared."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = requests.Session()
            session.trust_env = False
            session.verify = str(self._settings.ca_bundle) if self._settings.ca_bundle else True
            session.headers["User-Agent"] = f"imagegen/{__version__}"
            self._local.session = session
        return session

    def _check_stopped(self, url: str) -> None:
        if self._stopped.is_set():
            raise FetchError(f"fetching {redact(url)} was stopped")


def _credentials(settings: Settings) -> dict[tuple[str, str, int], tuple[str, str]]:
    """Those in the addresses of the settings, by origin: an index's pages link to files without repeating them."""
    urls = [*settings.index_urls.values(), *settings.extra_indexes, *settings.find_links]
    addresses = [parse(url) for url in urls if url.lower().startswith(("http://", "https://"))]
    return {address.origin: address.auth for address in addresses if address.auth}


def _check_status(response: requests.Response, address: Address) -> None:
    status = response.status_code
    if status in _RETRIED:
        raise _TryAgainError(f"HTTP status {status}", _retry_after(response.headers.get("Retry-After", "")))
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        raise NotFoundError(f"{address.url} does not exist", why=f"HTTP status {status}")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED):
        raise FetchError(
            f"{address.url} may not be read",
            why=f"HTTP status {status}",
            fix=f"give credentials for {address.host} in ~/.netrc or in the index URL",
        )
    ranged = status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and "Range" in response.request.headers
    if not 200 <= status < 300 and not ranged:
        raise FetchError(f"{address.url} cannot be fetched", why=f"HTTP status {status}")


def _retry_after(value: str) -> float | None:
    """Seconds from a Retry-After header: a number or an HTTP date (RFC 9110, 10.2.3)."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _continues(response: requests.Response, start: int) -> bool:
    """Whether the answer goes on at byte `start` (RFC 9110, 14.4), rather than beginning anew or failing."""
    content_range = response.headers.get("Content-Range", "")
    return response.status_code == HTTPStatus.PARTIAL_CONTENT and content_range.startswith(f"bytes {start}-")


def _restart(part: Partial, meter: Meter) -> None:
    meter.advance(-part.size)
    part.clear()


def _limited(chunks: Iterator[bytes], url: str) -> Iterator[bytes]:
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > _MAX_PAGE:
            raise FetchError(f"{url} is too long for a page", why=f"it has more than {_MAX_PAGE} bytes")
        yield chunk


def _reason(error: BaseException) -> str:
    """The innermost cause in one line: urllib3 wraps it several times, with addresses of objects."""
    while isinstance(error.__cause__ or error.__context__, Exception):
        error = error.__cause__ or error.__context__ or error
    return redact(str(error) or type(error).__name__)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise NotFoundError(f"{path} does not exist or is no file") from error
    except OSError as error:
        raise FetchError(f"{path} cannot be read", why=os.strerror(error.errno or 0)) from error
    with file:
        yield file
