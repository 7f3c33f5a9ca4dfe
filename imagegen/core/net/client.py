"""The client that reads: documents, pieces, and downloads that are resumed and verified."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, Protocol

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net.address import file_path, is_file
from imagegen.core.net.page import CHUNK, MAX_PAGE, Page, authorized, first_bytes, read_page
from imagegen.core.net.status import NotFoundError, TryAgainError, continues, size_of, whole_size
from imagegen.core.progress import Meter
from imagegen.core.store import Store
from imagegen.core.temporary import PART, flock, names
from imagegen.core.text import redact

_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Source:
    """A source of a file; `headers` are the source's own."""

    url: str
    headers: Mapping[str, str]


class ByteSink(Protocol):
    """A sink for bytes that are not written to the store; `size` is how many came."""

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
        from imagegen.core.net.exchange import Exchange  # late: only a fetch needs requests

        self._settings = settings
        self.exchange = Exchange(settings, attempts=attempts, timeout=timeout, backoff=backoff, patience=patience)

    def impatient(self) -> Client:
        """A client that tries once and gives up soon: to ask whether a source can be reached at all."""
        return Client(self._settings, attempts=1, timeout=(5.0, 10.0), patience=20.0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Make downloads in other threads stop, wherever they wait."""
        self.exchange.close()

    def get(self, url: str, *, accept: str | None = None) -> bytes:
        """A small document, whole. Raises FetchError (NotFoundError and UnreachableError among its kinds)."""
        return self.page(url, accept=accept).body

    def page(
        self, url: str, *, accept: str | None = None, authorization: str | None = None, limit: int = MAX_PAGE
    ) -> Page:
        """Fetch a page as `get` does, with the address after redirects and the headers.

        A file:// directory gives its index.html.

        `authorization` is a header for the first origin only; redirects to another origin do not get it. `limit` is in
        bytes.
        """
        if is_file(url):
            path = file_path(url)
            with opened(path / "index.html" if path.is_dir() else path) as file:
                return read_page(iter(lambda: file.read(CHUNK), b""), "", url, limit)

        def once() -> Page:
            headers = {"Accept-Encoding": "gzip"} | ({"Accept": accept} if accept else {}) | authorized(authorization)
            with self.exchange.answer("GET", url, headers) as answer:
                encoding = answer.response.headers.get("Content-Encoding", "")
                page = read_page(self.exchange.chunks(answer), encoding, answer.url, limit)
                return replace(page, headers=answer.response.headers)

        return self.exchange.retry(url, once)

    def size(self, url: str, *, authorization: str | None = None) -> int:
        """The size in bytes of the file at `url`, without fetching it; `authorization` as for `page`.

        Raises FetchError.
        """
        if is_file(url):
            with opened(file_path(url)) as file:
                return os.fstat(file.fileno()).st_size

        headers = {"Accept-Encoding": "identity"} | authorized(authorization)

        def once() -> int:
            with self.exchange.answer("HEAD", url, headers) as answer:
                length = size_of(answer.response.headers.get("Content-Length", ""))
            if length is None:
                raise FetchError(
                    f"{answer.url} does not say its size", code="fetch-no-size", why="the answer has no Content-Length"
                )
            return length

        return self.exchange.retry(url, once)

    def piece(self, url: str, start: int, length: int) -> bytes:
        """Return `length` bytes of the file at `url`, from byte `start` on. Raises FetchError, also for fewer bytes."""

        def once() -> bytes:
            headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{start + length - 1}"}
            with self.exchange.answer("GET", url, headers) as answer:
                # Another answer may be the whole file, gigabytes long.
                if not continues(answer.response, start):
                    raise FetchError(
                        f"{answer.url} cannot be read in part",
                        code="fetch-no-ranges",
                        why="the server does not give ranges",
                    )
                return first_bytes(self.exchange.chunks(answer), length)

        if is_file(url):
            with opened(file_path(url)) as file:
                file.seek(start)
                content = file.read(length)
        else:
            content = self.exchange.retry(url, once)
        if len(content) < length:
            raise _unexpected(url, f"{length} bytes from byte {start} on", f"{len(content)}")
        return content

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
        """Download the file at `url` into the store and return its digest; resumes an earlier run's download.

        `size` is in bytes, `authorization` as for `page`. With `anew`, every byte must come from the source, whatever
        the store has. Raises FetchError when the file cannot be fetched or does not have this hash and size, StoreError
        when the store cannot write it.
        """
        digest = f"sha256:{sha256}"
        if anew or not store.has(digest, size):
            with partial(store, sha256, size) as part:
                if anew:
                    part.clear()
                if anew or not store.has(digest, size):  # else another process fetched it while we waited
                    source = _Source(url, authorized(authorization))
                    return self._fill(part, source, store, sha256=sha256, size=size, meter=meter)
        meter.advance(size)
        return digest

    def stream(self, url: str, into: ByteSink, *, size: int, authorization: str | None = None) -> None:
        """Write to `into` the missing bytes of the file of `size` bytes at `url`; resumes after interruptions.

        Nothing is verified. Raises FetchError, also for more bytes, and what `into` raises.
        """

        def once() -> None:
            start = into.size
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
            with self.exchange.answer("GET", url, headers | authorized(authorization)) as answer:
                if start and not continues(answer.response, start):
                    raise FetchError(
                        f"{answer.url} broke off",
                        code="fetch-incomplete",
                        why="the server does not give the rest by itself",
                    )
                for chunk in self.exchange.chunks(answer):
                    self.exchange.check_stopped(url)
                    if into.size + len(chunk) > size:
                        raise _unexpected(url, f"{size} bytes", "more")
                    into.write(chunk)
            if into.size < size:
                raise TryAgainError(f"the answer ended after {into.size} of {size} bytes")

        self.exchange.retry(url, once, transfer=into)

    def _fill(self, part: Partial, source: _Source, store: Store, *, sha256: str, size: int, meter: Meter) -> str:
        meter.advance(part.size)
        again = False
        while True:
            if part.size < size:
                self.exchange.retry(source.url, lambda: self._receive(part, source, size, meter), transfer=part)
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
                self._append(part, iter(lambda: file.read(CHUNK), b""), url, size, meter)
            return
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={part.size}-"} if part.size else {})
        headers |= source.headers
        with self.exchange.answer("GET", url, headers) as answer:
            if part.size and not continues(answer.response, part.size):
                _restart(part, meter)
                if answer.response.status_code != HTTPStatus.OK:
                    raise TryAgainError("the server does not give the range that was requested", wait=0, local=True)
            if (total := whole_size(answer.response)) not in (None, size):
                raise _unexpected(answer.url, f"{size} bytes", f"{total} bytes")
            part.pieces += 1
            self._append(part, self.exchange.chunks(answer), answer.url, size, meter)
        if part.size < size:
            raise TryAgainError(f"the answer ended after {part.size} of {size} bytes")

    def _append(self, part: Partial, chunks: Iterator[bytes], url: str, size: int, meter: Meter) -> None:
        for chunk in chunks:
            self.exchange.check_stopped(url)
            part.append(chunk)
            meter.advance(len(chunk))
            if part.size > size:
                break
        if part.size > size or (part.size < size and is_file(url)):
            got = f"{part.size} bytes" if part.size < size else "more"
            _restart(part, meter)
            raise _unexpected(url, f"{size} bytes", got)


def _restart(part: Partial, meter: Meter) -> None:
    meter.advance(-part.size)
    part.clear()


def _unexpected(url: str, expected: str, got: str) -> FetchError:
    return FetchError(
        f"{redact(url)} is not the expected file",
        code="fetch-digest-mismatch",
        why=f"expected {expected}, got {got}",
        fix="do not trust this source; if the file was replaced on purpose, lock again",
    )


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file of a file:// address. Raises FetchError."""
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


class Partial:
    """Bytes 0 to `size` of a download in progress. Use through `partial`.

    The file is in the store's `tmp/` as `part-<sha256>`, so that a later run resumes where a killed one stopped, and it
    gets its blob's name only when its bytes have that sha256. It is locked while it is written: if two processes need
    the same download, one fetches it, and the other waits and finds the blob.
    """

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

    A part that is left stays for a later run, unless this or another file did not fit on the store's disk, because the
    others need the space more. Raises StoreError when the disk is full or read-only.
    """
    path = store.root / "tmp" / f"{PART}{sha256}"
    with store.explained(), _locked(path) as file:
        part = Partial(file, path, limit)
        try:
            with store.explained():  # first, because it detects a full disk
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
