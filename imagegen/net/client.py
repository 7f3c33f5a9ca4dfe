"""The client: one request with its redirects, retried with back-off; downloads resumed and verified."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Protocol, TypeVar

import requests
import urllib3.exceptions

from imagegen import __version__
from imagegen.config import Settings
from imagegen.errors import FetchError
from imagegen.net.address import Address, Origin, file_path, is_file, netrc_auth, parse, proxy_for
from imagegen.net.answer import MAX_WAIT, TryAgainError, check_status, continues, redirected, whole_size
from imagegen.net.lifeline import HeldAdapter, Lifeline
from imagegen.net.local import bundle, opened
from imagegen.net.page import MAX_PAGE, DamagedError, Page, first_bytes, read_page
from imagegen.net.partial import Partial, partial
from imagegen.net.reason import innermost, reason_of
from imagegen.progress import Meter
from imagegen.store import Store
from imagegen.text import redact

_CHUNK = 1 << 18  # bytes: what is read at once, and the headway that a try must make to count as none
_MAX_REDIRECTS = 8
_CHECK = "check network and proxy"
_AUTHORIZATION = "Authorization"

T = TypeVar("T")


class UnreachableError(FetchError):
    """No usable answer from the source: no route, no name, refused, or failing after every retry."""


@dataclass(frozen=True)
class _Answer:
    """`origin` is whom we asked; `url` who answered after redirects, without credentials."""

    origin: Origin
    url: str
    response: requests.Response
    line: Lifeline


@dataclass(frozen=True)
class _Source:
    """Where a file is asked for; `headers` are the source's own."""

    url: str
    headers: Mapping[str, str]


class Growing(Protocol):
    """Where bytes go to that are not kept in the store; `size` is how many came."""

    size: int

    def write(self, data: bytes, /) -> None: ...


class Client:
    """One per run; thread-safe. Proxies, netrc and CA bundle come from `settings`, never from os.environ.

    `timeout` is (seconds to connect, seconds without a byte), `patience` the seconds for all headers, and again for
    every 256 KiB of a body; `attempts` counts tries in a row without headway; `backoff` is the pause in seconds before
    the second try, and doubles. A host that gave nothing at all in its tries is not asked again.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        attempts: int = 5,
        timeout: tuple[float, float] = (15.0, 30.0),
        backoff: float = 0.5,
        patience: float = 60.0,
    ) -> None:
        self._settings = settings
        self._attempts, self._timeout, self._backoff, self._patience = attempts, timeout, backoff, patience
        self._known = _credentials(settings)
        self._dead: dict[Origin, str] = {}  # why it is not asked again
        self._alive: dict[Origin, float] = {}  # when it last gave something, by the monotonic clock
        self._lines: set[Lifeline] = set()
        self._local = threading.local()
        self._stopped = threading.Event()

    def impatient(self) -> Client:
        """A client that tries once and gives up soon: to ask whether a source can be reached at all."""
        return Client(self._settings, attempts=1, timeout=(5.0, 10.0), patience=20.0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Make downloads in other threads stop, wherever they wait."""
        self._stopped.set()
        for line in tuple(self._lines):
            line.cut()

    def get(self, url: str, *, accept: str | None = None) -> bytes:
        """A small document, whole. Raises FetchError (NotFoundError and UnreachableError among its kinds)."""
        return self.page(url, accept=accept).body

    def page(
        self, url: str, *, accept: str | None = None, authorization: str | None = None, limit: int = MAX_PAGE
    ) -> Page:
        """As `get`, with the address after redirects and the headers. A file:// directory gives its index.html.

        `authorization` is a header for whoever is asked first, and for nobody whom a redirect names on another origin.
        `limit` is in bytes.
        """
        if is_file(url):
            path = file_path(url)
            with opened(path / "index.html" if path.is_dir() else path) as file:
                return read_page(iter(lambda: file.read(_CHUNK), b""), "", url, limit)

        def once() -> Page:
            headers = {"Accept-Encoding": "gzip"} | ({"Accept": accept} if accept else {}) | _authorized(authorization)
            with self._answer("GET", url, headers) as answer:
                encoding = answer.response.headers.get("Content-Encoding", "")
                page = read_page(self._chunks(answer), encoding, answer.url, limit)
                return replace(page, headers=answer.response.headers)

        return self._retry(url, once)

    def size(self, url: str) -> int:
        """The size in bytes of the file at `url`, without fetching it. Raises FetchError."""
        if is_file(url):
            with opened(file_path(url)) as file:
                return os.fstat(file.fileno()).st_size

        def once() -> int:
            with self._answer("HEAD", url, {"Accept-Encoding": "identity"}) as answer:
                length = answer.response.headers.get("Content-Length", "")
            if not length.isdecimal():
                raise FetchError(f"{answer.url} does not say its size", why="the answer has no Content-Length")
            return int(length)

        return self._retry(url, once)

    def piece(self, url: str, start: int, length: int) -> bytes:
        """`length` bytes of the file at `url`, from byte `start` on. Raises FetchError, also for fewer bytes."""

        def once() -> bytes:
            headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{start + length - 1}"}
            with self._answer("GET", url, headers) as answer:
                # Another answer may be the whole file, gigabytes long.
                if not continues(answer.response, start):
                    raise FetchError(f"{answer.url} cannot be read in part", why="the server does not give ranges")
                return first_bytes(self._chunks(answer), length)

        if is_file(url):
            with opened(file_path(url)) as file:
                file.seek(start)
                found = file.read(length)
        else:
            found = self._retry(url, once)
        if len(found) < length:
            raise _unexpected(url, f"{length} bytes from byte {start} on", f"{len(found)}")
        return found

    def download(
        self,
        url: str,
        store: Store,
        *,
        sha256: str,
        size: int,
        meter: Meter,
        anew: bool = False,
        authorization: str | None = None,
    ) -> str:
        """Bring the file at `url` into the store and return its digest; resumes what an earlier run left.

        `size` is in bytes, `authorization` as for `page`. With `anew`, the source itself must give every byte, whatever
        the store has. Raises FetchError when the file cannot be had or is not the one with this hash and size,
        StoreError when the store cannot take it.
        """
        digest = f"sha256:{sha256}"
        if anew or not store.has(digest, size):
            with partial(store, sha256, size) as part:
                if anew:
                    part.clear()
                if anew or not store.has(digest, size):  # else another process fetched it while we waited
                    source = _Source(url, _authorized(authorization))
                    return self._fill(part, source, store, sha256=sha256, size=size, meter=meter)
        meter.advance(size)
        return digest

    def stream(self, url: str, into: Growing, *, size: int, authorization: str | None = None) -> None:
        """Write to `into` what it lacks of the file of `size` bytes at `url`; goes on where an answer broke off.

        Nothing is verified. Raises FetchError, also for more bytes, and what `into` raises.
        """

        def once() -> None:
            start = into.size
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
            with self._answer("GET", url, headers | _authorized(authorization)) as answer:
                if start and not continues(answer.response, start):
                    raise FetchError(f"{answer.url} broke off", why="the server does not give the rest by itself")
                for chunk in self._chunks(answer):
                    self._check_stopped(url)
                    if into.size + len(chunk) > size:
                        raise _unexpected(url, f"{size} bytes", "more")
                    into.write(chunk)
            if into.size < size:
                raise TryAgainError(f"the answer ended after {into.size} of {size} bytes")

        self._retry(url, once, headway=lambda: into.size)

    def _fill(self, part: Partial, source: _Source, store: Store, *, sha256: str, size: int, meter: Meter) -> str:
        meter.advance(part.size)
        again = False
        while True:
            if part.size < size:
                self._retry(source.url, lambda: self._receive(part, source, size, meter), headway=lambda: part.size)
            if part.sha256 == sha256:
                return part.commit(store)
            wrong, pieced = part.sha256, part.pieces > 1
            _restart(part, meter)
            if again or not pieced:
                raise _unexpected(source.url, f"sha256 {sha256}", wrong)
            again = True  # an earlier run or another server may have given a piece: once more, from the first byte

    def _receive(self, part: Partial, source: _Source, size: int, meter: Meter) -> None:
        url = source.url
        if is_file(url):
            with opened(file_path(url)) as file:
                file.seek(part.size)
                self._append(part, iter(lambda: file.read(_CHUNK), b""), url, size, meter)
            return
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={part.size}-"} if part.size else {})
        headers |= source.headers
        with self._answer("GET", url, headers) as answer:
            if part.size and not continues(answer.response, part.size):
                _restart(part, meter)
                if answer.response.status_code != HTTPStatus.OK:
                    raise TryAgainError("the server does not give the range that was asked for", wait=0, local=True)
            if (told := whole_size(answer.response)) not in (None, size):
                raise _unexpected(answer.url, f"{size} bytes", f"{told} bytes")
            part.pieces += 1
            self._append(part, self._chunks(answer), answer.url, size, meter)
        if part.size < size:
            raise TryAgainError(f"the answer ended after {part.size} of {size} bytes")

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
            raise _unexpected(url, f"{size} bytes", got)

    def _retry(self, url: str, once: Callable[[], T], *, headway: Callable[[], int] = lambda: 0) -> T:
        """Call `once` until it gives something; tries that leave `headway` where it was are counted."""
        origin = None if is_file(url) else parse(url).origin
        failures, best, start = 0, headway(), time.monotonic()
        while True:
            self._check_stopped(url)
            if origin in self._dead:
                raise UnreachableError(f"{redact(url)} cannot be fetched", why=self._dead[origin], fix=_CHECK)
            try:
                return once()
            except ValueError as error:  # of requests and of urllib: an address that is none, ours or a redirect's
                raise FetchError(f"{redact(url)} cannot be asked for", why=reason_of(error)) from error
            except (requests.RequestException, urllib3.exceptions.HTTPError, DamagedError, TryAgainError) as error:
                self._check_stopped(url)
                if isinstance(innermost(error), ssl.SSLCertVerificationError):
                    raise UnreachableError(
                        f"{redact(url)} has no certificate that this machine trusts",
                        why=f"{reason_of(error)}; SSL_CERT_FILE can name the CA bundle of your network",
                    ) from error
                came = headway()
                # Less than a chunk is no headway, or a server that drips would be asked for ever.
                failures, best = (0, came) if came >= best + _CHUNK else (failures + 1, best)
                asked = error.wait if isinstance(error, TryAgainError) else None
                if failures >= self._attempts or (asked or 0.0) > MAX_WAIT:
                    local = isinstance(error, TryAgainError) and error.local
                    if origin and not local and self._alive.get(origin, 0.0) < start:
                        self._dead[origin] = f"{origin[1]}:{origin[2]} was given up: {reason_of(error)}"
                    tries = f" ({failures} tries)" if failures > 1 else ""
                    raise UnreachableError(
                        f"{redact(url)} cannot be fetched{tries}", why=reason_of(error), fix=_CHECK
                    ) from error
                self._stopped.wait(self._backoff * 2.0 ** max(0, failures - 1) if asked is None else asked)

    @contextmanager
    def _answer(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[_Answer]:
        """The final answer to a request, redirects followed; its status is 2xx, or 416 to a range."""
        with Lifeline(self._patience) as line:
            self._lines.add(line)
            try:
                with self._followed(method, parse(url), headers) as (final, response):
                    yield _Answer(parse(url).origin, final, response, line)
            except (requests.RequestException, urllib3.exceptions.HTTPError, DamagedError):
                if not line.was_cut:
                    raise
            finally:
                self._lines.discard(line)
        if line.was_cut:
            raise TryAgainError(f"less than {_CHUNK >> 10} KiB came in {self._patience:.0f} s")

    def _chunks(self, answer: _Answer) -> Iterator[bytes]:
        for chunk in answer.response.raw.stream(_CHUNK, decode_content=False):
            answer.line.renew()
            self._alive[answer.origin] = time.monotonic()
            yield chunk

    @contextmanager
    def _followed(
        self, method: str, address: Address, headers: Mapping[str, str]
    ) -> Iterator[tuple[str, requests.Response]]:
        first = address
        for _ in range(_MAX_REDIRECTS + 1):
            # Credentials stay with the origin that they were given for.
            own = address.origin == first.origin
            told = headers if own else {name: value for name, value in headers.items() if name != _AUTHORIZATION}
            auth = address.auth or (first.auth if own else None)
            with self._send(method, address, told, auth or self._known.get(address.origin)) as response:
                if "Location" not in response.headers or not response.is_redirect:
                    check_status(response, address)
                    yield address.url, response
                    return
                address = redirected(address, response.headers["Location"])
        raise FetchError(f"{first.url} redirects more than {_MAX_REDIRECTS} times", why=f"last to {address.url}")

    def _send(
        self, method: str, address: Address, headers: Mapping[str, str], auth: tuple[str, str] | None
    ) -> requests.Response:
        proxy = proxy_for(address, self._settings.env)
        given = _AUTHORIZATION in headers  # which requests would replace by what `auth` gives
        return self._session().request(
            method,
            address.url,
            headers=headers,
            auth=None if given else auth or netrc_auth(address, self._settings.env),
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
            for scheme in ("http://", "https://"):
                session.mount(scheme, HeldAdapter())
            session.verify = bundle(self._settings.ca_bundle) if self._settings.ca_bundle else True
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


def _authorized(authorization: str | None) -> dict[str, str]:
    return {_AUTHORIZATION: authorization} if authorization else {}


def _restart(part: Partial, meter: Meter) -> None:
    meter.advance(-part.size)
    part.clear()


def _unexpected(url: str, expected: str, got: str) -> FetchError:
    return FetchError(
        f"{redact(url)} is not the expected file",
        why=f"expected {expected}, got {got}",
        fix="do not trust this source; if the file was replaced on purpose, lock again",
    )
