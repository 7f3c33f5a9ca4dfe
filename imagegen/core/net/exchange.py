"""Send one request, follow its redirects, and try again with back-off; for reading and sending."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Protocol, TypeVar

import requests
import urllib3.exceptions

from imagegen import __version__
from imagegen.core import stopping
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net.address import Address, Origin, is_file, netrc_auth, parse, proxy_for
from imagegen.core.net.page import AUTHORIZATION, CHUNK, Body, DamagedBody
from imagegen.core.net.reason import distrust, innermost, reason_of
from imagegen.core.net.status import MAX_WAIT, TryAgainError, UnreachableError, check_status, check_willing, redirected
from imagegen.core.net.watchdog import StallWatchdog, WatchedAdapter
from imagegen.core.store import disk
from imagegen.core.text import redact

_MAX_REDIRECTS = 8
_CHECK = "check network and proxy"
_BODILY = ("POST", "PUT", "PATCH")  # which a redirect may only repeat, never turn into something else
_REPEATED = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """A response. `origin` is the requested origin; `url` is the address after redirects, without credentials."""

    origin: Origin
    url: str
    response: requests.Response
    line: StallWatchdog


class Transfer(Protocol):
    """A body that takes several requests; `size` is the number of bytes transferred so far."""

    @property
    def size(self) -> int: ...


class Exchange:
    """Requests with the retries and time limits of Client. Thread-safe."""

    def __init__(
        self, settings: Settings, *, attempts: int, timeout: tuple[float, float], backoff: float, patience: float
    ) -> None:
        self._settings = settings
        self._attempts, self._timeout, self._backoff, self._patience = attempts, timeout, backoff, patience
        self._known = _credentials(settings)
        self._dead: dict[Origin, str] = {}  # why it is not asked again
        self._alive: dict[Origin, float] = {}  # when it last gave something, by the monotonic clock
        self._lines: set[StallWatchdog] = set()
        self._local = threading.local()
        self._stopped = threading.Event()

    def close(self) -> None:
        """Make exchanges in other threads stop, wherever they wait."""
        self._stopped.set()
        for line in tuple(self._lines):
            line.cut()

    def check_stopped(self, url: str) -> None:
        """Raise FetchError after `close`, and as `stopping.check`."""
        stopping.check()
        if self._stopped.is_set():
            raise FetchError(f"the exchange with {redact(url)} was stopped", code="fetch-stopped")

    def retry(self, url: str, once: Callable[[], T], *, transfer: Transfer | None = None, aim: str = "be fetched") -> T:
        """Call `once` until it gives something; tries without headway of the transfer are counted.

        `aim` is the failed action, in errors. Raises UnreachableError, and errors of `once`.
        """
        origin = None if is_file(url) else parse(url).origin
        failures, best, start = 0, transfer.size if transfer else 0, time.monotonic()
        while True:
            self.check_stopped(url)
            if origin in self._dead:
                raise UnreachableError(f"{redact(url)} cannot {aim}", why=self._dead[origin], fix=_CHECK)
            try:
                return once()
            except ValueError as error:  # of requests and of urllib: an address that is none, ours or a redirect's
                raise FetchError(
                    f"{redact(url)} cannot be asked for", code="fetch-invalid-address", why=reason_of(error)
                ) from error
            except (requests.RequestException, urllib3.exceptions.HTTPError, DamagedBody, TryAgainError) as error:
                self.check_stopped(url)
                if isinstance(cause := innermost(error), ssl.SSLCertVerificationError):
                    raise UnreachableError(
                        f"{redact(url)} has no certificate that this machine trusts",
                        code="fetch-untrusted-certificate",
                        why=distrust(cause),
                    ) from error
                if isinstance(cause, OSError) and cause.errno in disk.LIMITS:  # no host is to blame
                    raise cause from error
                came = transfer.size if transfer else 0
                # Less than a chunk is not headway, or a server that drips would be asked for ever.
                failures, best = (0, came) if came >= best + CHUNK else (failures + 1, best)
                requested = error.wait if isinstance(error, TryAgainError) else None
                if failures >= self._attempts or (requested or 0.0) > MAX_WAIT:
                    local = isinstance(error, TryAgainError) and error.local
                    if origin and not local and self._alive.get(origin, 0.0) < start:
                        self._dead[origin] = f"{origin[1]}:{origin[2]} was given up: {reason_of(error)}"
                    tries = f" ({failures} tries)" if failures > 1 else ""
                    raise UnreachableError(
                        f"{redact(url)} cannot {aim}{tries}", why=reason_of(error), fix=_CHECK
                    ) from error
                pause = self._backoff * 2.0 ** max(0, failures - 1) if requested is None else requested
                stopping.wait(self._stopped, pause)

    @contextmanager
    def answer(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body | None = None,
        *,
        any_status: bool = False,
        silence: float | None = None,
        follow: bool = True,
    ) -> Iterator[Answer]:
        """Yield the final answer to a request, redirects followed; with `any_status` also a client error.

        Without `follow`, a redirect is an answer like others. `silence` is the number of seconds without data after
        which the request is aborted, if it differs from the client's.
        """
        patience = self._patience if silence is None else silence
        with StallWatchdog(patience) as line:
            self._lines.add(line)
            try:
                with self._followed(method, parse(url), headers, body, line, silence, follow) as (final, response):
                    check_willing(response, final) if any_status else check_status(response, final)
                    yield Answer(parse(url).origin, final.url, response, line)
            except (requests.RequestException, urllib3.exceptions.HTTPError, DamagedBody):
                if not line.was_cut:
                    raise
            finally:
                self._lines.discard(line)
        if line.was_cut:
            raise TryAgainError(f"less than {CHUNK >> 10} KiB came in {patience:.0f} s") from None

    def chunks(self, answer: Answer) -> Iterator[bytes]:
        """Yield the answer's body in pieces of at least CHUNK bytes, and its end: an HTTP chunk can be one byte."""
        chunk = bytearray()
        try:
            for received in answer.response.raw.stream(CHUNK, decode_content=False):
                chunk += received
                if len(chunk) >= CHUNK:
                    answer.line.renew()
                    self.alive(answer)
                    yield bytes(chunk)
                    chunk.clear()
        except urllib3.exceptions.HTTPError:
            yield bytes(chunk)  # a download goes on behind it
            raise
        if not answer.line.was_cut:
            self.alive(answer)
        yield bytes(chunk)

    def alive(self, answer: Answer) -> None:
        """Mark the origin as responsive."""
        self._alive[answer.origin] = time.monotonic()

    @contextmanager
    def _followed(
        self,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        body: Body | None,
        line: StallWatchdog,
        silence: float | None,
        follow: bool,
    ) -> Iterator[tuple[Address, requests.Response]]:
        first = address
        for _ in range(_MAX_REDIRECTS + 1):
            # Credentials stay with the origin that they were given for.
            is_same_origin = address.origin == first.origin
            sent_headers = (
                headers if is_same_origin else {name: value for name, value in headers.items() if name != AUTHORIZATION}
            )
            auth = address.auth or (first.auth if is_same_origin else None) or self._known.get(address.origin)
            data = _Outgoing(body, self, line, first.url) if body and body.size else None
            with self._send(method, address, sent_headers, auth, data, silence) as response:
                if "Location" not in response.headers or not response.is_redirect or not follow:
                    yield address, response
                    return
                if method in _BODILY and response.status_code not in _REPEATED:
                    message = f"{address.url} redirects what was sent to it"
                    raise FetchError(message, why=f"with HTTP status {response.status_code}, which says to read there")
                address = redirected(address, response.headers["Location"])
        raise FetchError(
            f"{first.url} redirects more than {_MAX_REDIRECTS} times",
            code="fetch-too-many-redirects",
            why=f"last to {address.url}",
        )

    def _send(
        self,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        auth: tuple[str, str] | None,
        data: _Outgoing | None,
        silence: float | None,
    ) -> requests.Response:
        proxy = proxy_for(address, self._settings.env)
        has_authorization = AUTHORIZATION in headers  # which requests would replace by `auth`'s result
        return self._session().request(
            method,
            address.url,
            headers=headers,
            data=data,
            auth=None if has_authorization else auth or netrc_auth(address, self._settings.env),
            proxies={address.scheme: proxy} if proxy else {},
            allow_redirects=False,
            stream=True,
            timeout=self._timeout if silence is None else (self._timeout[0], silence),
        )

    def _session(self) -> requests.Session:
        """Return this thread's session: requests does not promise that a session may be shared."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = requests.Session()
            session.trust_env = False
            for scheme in ("http://", "https://"):
                session.mount(scheme, WatchedAdapter())
            session.verify = bundle(self._settings.ca_bundle) if self._settings.ca_bundle else True
            session.headers["User-Agent"] = f"imagegen/{__version__}"
            self._local.session = session
        return session


class _Outgoing:
    """A body of known length, as requests takes it; every piece that has left resets the watchdog."""

    def __init__(self, body: Body, exchange: Exchange, line: StallWatchdog, url: str) -> None:
        self._body, self._exchange, self._line, self._url = body, exchange, line, url

    def __len__(self) -> int:
        return self._body.size

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._body.pieces():
            self._exchange.check_stopped(self._url)
            yield piece
            self._line.renew()


def _credentials(settings: Settings) -> dict[Origin, tuple[str, str]]:
    """Return the credentials in addresses of the settings by origin: an index's pages link to files without them."""
    urls = [*settings.index_urls.values(), *settings.extra_indexes, *settings.find_links]
    addresses = [parse(url) for url in urls if url.lower().startswith(("http://", "https://"))]
    return {address.origin: address.auth for address in addresses if address.auth}


def bundle(path: Path) -> str:
    """The CA bundle, a file or an OpenSSL directory. Raises FetchError when it is none."""
    try:
        location = {"capath" if path.is_dir() else "cafile": str(path)}
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(**location)
    except OSError as error:  # ssl.SSLError is one
        raise FetchError(
            "the CA bundle cannot be read",
            code="fetch-ca-bundle-unreadable",
            where=str(path),
            why=error.strerror or str(error),
            fix="SSL_CERT_FILE, REQUESTS_CA_BUNDLE, PIP_CERT or pip's `cert` names it: a file of certificates in PEM",
        ) from error
    return str(path)
