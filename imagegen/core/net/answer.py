"""Answers of sources: the meaning of a status, files of this machine, downloads in progress."""

from __future__ import annotations

import email.utils
import fcntl
import hashlib
import os
import re
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urljoin

from imagegen.core.errors import FetchError, ImagegenError
from imagegen.core.net.address import Address, parse
from imagegen.core.store import Store
from imagegen.core.temporary import PART, flock, names
from imagegen.core.text import counted, cut, redact

if TYPE_CHECKING:
    import requests

_MAX_REASON = 300  # characters of what others say
_UNTIMELY = {9: "is not valid yet", 10: "is not valid any more"}  # OpenSSL's X509_V_ERR codes
_MEANINGS: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "no host of that name is known here: "),
    (ConnectionRefusedError, "no server listens there: "),
)


def reason_of(error: BaseException) -> str:
    """The innermost cause in one line: urllib3 wraps it several times, with addresses of objects."""
    cause = innermost(error)
    text = " ".join(str(cause).split()) or type(cause).__name__
    meaning = next((words for kind, words in _MEANINGS if isinstance(cause, kind)), "")
    return meaning + cut(redact(text), _MAX_REASON)


def distrust(error: ssl.SSLCertVerificationError) -> str:
    """Why a certificate is not trusted, and what may help."""
    if error.verify_code in _UNTIMELY:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"it {_UNTIMELY[error.verify_code]}, if this machine's clock is right, which says {now}"
    return f"{reason_of(error)}; SSL_CERT_FILE can name the CA bundle of your network"


def innermost(error: BaseException) -> BaseException:
    """Return the cause at the end of an error's chain, without the errors of requests that were answered before."""
    is_of_another_request = isinstance(error.__context__, ImagegenError) or error.__suppress_context__
    cause = error.__cause__ or (None if is_of_another_request else error.__context__)
    cause = cause or next(iter(error.args), None)  # urllib3 passes some as an argument
    return innermost(cause) if isinstance(cause, Exception) else error


# Files that no source gave, from whichever step: one error names them all, so that they can be brought in one go.


@dataclass(frozen=True)
class Missing:
    """A file that a lock names and the store lacks.

    `tried` has for each source why it did not give the file; `fix` is the remedy for files of this kind.
    """

    filename: str
    sha256: str
    tried: tuple[str, ...]
    fix: str


class MissingFiles(FetchError):
    """All files that could not be fetched; those with the same reasons are grouped."""

    code = "fetch-files-missing"

    def __init__(self, files: Iterable[Missing], store: Path) -> None:
        self.files = tuple(sorted(files, key=lambda file: file.filename))
        self.store = store
        groups: dict[tuple[str, ...], list[Missing]] = {}
        for file in self.files:
            groups.setdefault(file.tried, []).append(file)
        lines: list[str] = []
        for tried, group in groups.items():
            lines += [f"{file.filename} ({file.sha256[:12]}…)" for file in group]
            lines += [f"  - {reason}" for reason in tried or ("not asked for: the build ended before",)]
        fixes = [
            *dict.fromkeys(file.fix for file in self.files),
            f"or copy into {store} what another machine's store has",
        ]
        super().__init__(
            f"{counted(len(self.files), 'file')} of the lock cannot be had",
            why="tried for each:" + "".join(f"\n    {line}" for line in lines),
            fix="\n       ".join(fixes),
        )

    def also(self, other: Iterable[Missing]) -> MissingFiles:
        """Return this error with further missing files; a file that is listed already keeps its reasons."""
        present = {file.sha256 for file in self.files}
        return MissingFiles([*self.files, *(file for file in other if file.sha256 not in present)], self.store)


# The meaning of an answer's status and headers: RFC 9110.

MAX_WAIT = 60.0  # seconds that a server may make us wait before the next try
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_BUSY = frozenset({429, 503})  # said of the whole server, not of one file


class UnavailableError(FetchError):
    """No usable answer: the server does not respond, or refuses to let this user read."""

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
    """A transient fault. `wait` is the server's Retry-After in seconds; `local` means that only this
    file is affected.
    """

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


# Local inputs of a client: files by file://, and the CA bundle.


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


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            raise NotFoundError(f"{path} does not exist or is not a file")
        file = path.open("rb")
    except OSError as error:
        raise FetchError(
            f"{path} cannot be read", code="fetch-file-unreadable", why=os.strerror(error.errno or 0)
        ) from error
    with file:
        yield file


# A download in progress, under its expected sha256.
#
# It is in the store's `tmp/` as `part-<sha256>`, so that a later run resumes where a killed one stopped, and it gets
# its blob's name only when its bytes have that sha256. The file is locked while it is written: if two processes need
# the same download, one fetches it, and the other waits and finds the blob.

_CHUNK = 1 << 20


class Partial:
    """Bytes 0 to `size` of a download. Use through `partial`."""

    def __init__(self, file: BinaryIO, path: Path, limit: int) -> None:
        self._file, self._path = file, path
        self._hash = hashlib.sha256()
        self.size = 0
        self.pieces = 0  # answers that its bytes came from, in this run
        if os.fstat(file.fileno()).st_size > limit:
            self.clear()
        while chunk := file.read(_CHUNK):
            self._hash.update(chunk)
            self.size += len(chunk)
            self.pieces = 2

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def append(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def clear(self) -> None:
        """Start again from the first byte."""
        self._file.seek(0)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self.size = self.pieces = 0

    def commit(self, store: Store) -> str:
        """Make the bytes a blob of the store and return its digest."""
        digest = f"sha256:{self.sha256}"
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._path, store.path(digest))
        os.fchmod(self._file.fileno(), 0o444)  # not before: a part that is left must be writable
        return digest


@contextmanager
def partial(store: Store, sha256: str, limit: int) -> Iterator[Partial]:
    """Yield the existing part of the download, locked; a part longer than `limit` bytes is emptied.

    A part that is left stays for a later run, unless a file did not fit on the store's disk, this one or another: the
    others need the disk space more. Raises StoreError when the disk is full or read-only.
    """
    path = store.root / "tmp" / f"{PART}{sha256}"
    with store.explained(), _locked(path) as file:
        part = Partial(file, path, limit)
        try:
            with store.explained():  # first: it is what finds the disk full
                yield part
                file.flush()
        except BaseException:
            if store.full:
                part.size = 0
            raise
        finally:
            if part.size == 0:
                path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
            flock(file.fileno(), fcntl.LOCK_EX, path)
            # The previous holder of the lock may have moved the file to its blob's name, or removed it.
            if names(path, file.fileno()):
                yield file
                return
