"""The upload of one blob: begun, sent in pieces, queried for its offset after an interruption, ended with its digest.

Source: OCI distribution-spec v1.1, "Pushing blobs" (Range and Content-Range have no unit there, unlike RFC 9110's).
Bytes are read from the store's file as they leave, and hashed on the way, so that no other content is ever completed.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import BinaryIO
from urllib.parse import urlencode

from imagegen.core.errors import FetchError, PublishError, StoreError
from imagegen.core.net import DeniedError
from imagegen.core.net.address import parse as parse_address
from imagegen.core.net.page import CHUNK, Body
from imagegen.core.net.sender import WRITTEN, Reply, Sender
from imagegen.core.net.status import TryAgainError, redirected, size_of
from imagegen.core.progress import Meter
from imagegen.core.store import Store
from imagegen.oci.documents import Descriptor
from imagegen.oci.registry.reference import is_loopback

PIECE_BYTES = 64 << 20  # bytes of one request, which are lost at worst if a registry keeps only acknowledged bytes
_RESTARTS = 4  # from the first byte on
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,15})")
_OCTETS = "application/octet-stream"
_ENDED = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
_LOST = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.GONE, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
_UNCHUNKED = (*_LOST, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.LENGTH_REQUIRED, HTTPStatus.NOT_IMPLEMENTED)


class Upload:
    """One upload, for one thread: call `advance` until `done`; `mounted` means that nothing had to be sent.

    `source` is the store that has the blob, or its bytes. `blobs` is the address under which the repository has its
    blobs, `mount` a repository that may have this one.
    """

    def __init__(
        self, blob: Descriptor, source: Store | bytes, sender: Sender, blobs: str, mount: str | None, meter: Meter
    ) -> None:
        if isinstance(source, Store) and not source.has(blob.digest, blob.size):
            raise StoreError(
                f"the store has no blob {blob.digest} of {blob.size} bytes",
                code="store-blobs-missing",
                where=str(source.root),
            )
        self._blob, self._source, self._sender, self._blobs, self._meter = blob, source, sender, blobs, meter
        self._mount, self._mount_denied = mount, False
        self.done = self.mounted = False
        self._place: str | None = None  # where it goes on; None: not begun
        self.size = 0  # bytes that the registry has
        self._sure = True  # whether the offset is the one that the registry reported last
        self._piece = PIECE_BYTES
        self._refused = {"PATCH": 0, "PUT": 0}  # answers that may mean that it has lost the upload
        self._restarts = 0
        self._shown = 0  # bytes that the meter knows of
        self._hash, self._hashed = hashlib.sha256(), 0

    def advance(self, authorization: str | None) -> Reply | None:
        """Send the next request, with retries; return the answer if the registry refuses for good.

        Raises FetchError (DeniedError where other credentials may help: then call it again), StoreError.
        """
        once = partial(self._once, authorization)
        return self._sender.exchange.retry(self._place or self._blobs, once, transfer=self, aim=WRITTEN)

    def _once(self, authorization: str | None) -> Reply | None:
        if self._place is not None and not self._sure:
            self._look(authorization)
        if self._place is None and not self.done and (refusal := self._begin(authorization)):
            return refusal
        if self.done:
            return None
        self._sure = False  # until the registry has answered
        remaining = self._blob.size - self.size
        return self._send(authorization) if remaining > self._piece else self._end(authorization)

    def _begin(self, authorization: str | None) -> Reply | None:
        mounting = {"mount": self._blob.digest, "from": self._mount} if self._mount else {}
        url = f"{self._blobs}/uploads/" + (f"?{urlencode(mounting)}" if mounting else "")
        try:
            reply = self._sender.once("POST", url, authorization=authorization)
        except DeniedError as error:
            if not mounting:
                raise
            if self._mount_denied or not error.challenge:  # perhaps it is the other repository that may not be read
                self._mount = None
                return self._begin(authorization)
            self._mount_denied = True
            raise
        if mounting and reply.status == HTTPStatus.CREATED:
            self.done = self.mounted = True
            self._show(self._blob.size)
            return None
        self._mount = None
        if mounting and reply.status != HTTPStatus.ACCEPTED:
            return self._begin(authorization)
        if reply.status != HTTPStatus.ACCEPTED:
            return reply
        self._follow(reply, required=True)
        self._piece = max(self._piece, size_of(reply.headers.get("OCI-Chunk-Min-Length", "")) or 0)
        self._reached(0)
        return None

    def _look(self, authorization: str | None) -> None:
        """Ask how much has arrived; where the registry does not know the upload, whether the blob is complete."""
        reply = self._request("GET", authorization)
        came = arrived(reply.headers.get("Range", ""))
        if 200 <= reply.status < 300 and came is not None and came <= max(self._hashed, self.size):
            self._follow(reply)
            self._reached(came)
        elif 200 <= reply.status < 300 or reply.status in _LOST:
            answer = self._sender.once("HEAD", f"{self._blobs}/{self._blob.digest}", authorization=authorization)
            if answer.status == HTTPStatus.OK:
                self._finish()
            else:
                self._restart()
        else:
            raise TryAgainError(f"HTTP status {reply.status} to the question how much has arrived")

    def _send(self, authorization: str | None) -> Reply | None:
        """A piece that is not the last."""
        end = self.size + self._piece
        headers = {"Content-Range": f"{self.size}-{end - 1}"}
        reply = self._request("PATCH", authorization, end=end, headers=headers)
        if reply.status in _UNCHUNKED:
            self._refused["PATCH"] += 1
            if self._refused["PATCH"] > 1 or not self.size:
                self._piece = self._blob.size  # it takes a blob whole, or not at all
                self._restart()
                return None
            raise TryAgainError(f"HTTP status {reply.status} to bytes from {self.size} on")
        if not 200 <= reply.status < 300:
            return reply
        came = arrived(reply.headers.get("Range", ""))
        if came is not None and not self.size < came <= end:
            raise TryAgainError(f"the registry says that it has {came} bytes, and got {end}")
        self._follow(reply)
        self._reached(end if came is None else came)
        return None

    def _end(self, authorization: str | None) -> Reply | None:
        """Send the rest, and the digest that all of it must have."""
        reply = self._request("PUT", authorization, end=self._blob.size)
        if reply.status in _ENDED:
            reported = reply.headers.get("Docker-Content-Digest", self._blob.digest)
            if reported != self._blob.digest:
                problem = f"blob {self._blob.digest} is not at {reply.url} as it is here"
                raise PublishError(
                    problem, why=f"the registry says that it keeps {reported}", fix="do not trust this registry"
                )
            self._finish()
        elif reply.status in _LOST and not self._refused["PUT"]:
            self._refused["PUT"] += 1
            self._restart()
        else:
            return reply
        return None

    def _request(
        self, method: str, authorization: str | None, *, end: int = 0, headers: dict[str, str] | None = None
    ) -> Reply:
        """`end` is where the bytes from the offset on that it carries end; 0 if it carries none."""
        url = str(self._place)
        is_same_origin = parse_address(url).origin == parse_address(self._blobs).origin
        body = Body(end - self.size, partial(self._bytes, self.size, end)) if end else None
        if method == "PUT":
            url += ("&" if "?" in url else "?") + urlencode({"digest": self._blob.digest})
        sent = {"Content-Type": _OCTETS, **(headers or {})} if body else None
        return self._sender.once(
            method, url, authorization=authorization if is_same_origin else None, headers=sent, body=body
        )

    def _bytes(self, start: int, end: int) -> Iterator[bytes]:
        """The blob's bytes in this range. The last of all leave only when all of them have the blob's digest."""
        position = start
        with self._open() as file:
            file.seek(start)
            while position < end:
                data = file.read(min(CHUNK, end - position))
                if position <= self._hashed < position + len(data):
                    self._hash.update(data[self._hashed - position :])
                    self._hashed = position + len(data)
                position += len(data)
                if not data or (position == self._blob.size and not self._whole()):
                    raise self._damaged()
                yield data
                self._show(position)

    def _open(self) -> BinaryIO:
        if isinstance(self._source, bytes):
            return io.BytesIO(self._source)
        return self._source.path(self._blob.digest).open("rb")

    def _damaged(self) -> StoreError:
        """Return the error for a rejected digest; raise the store's own error if its blob is damaged."""
        if isinstance(self._source, bytes):
            return StoreError(
                f"{len(self._source)} bytes are not blob {self._blob.digest}", code="store-digest-mismatch"
            )
        self._source.verify(self._blob.digest)
        return StoreError(
            f"blob {self._blob.digest} changed while it was read",
            code="store-blob-changed",
            where=str(self._source.root),
        )

    def _whole(self) -> bool:
        return f"sha256:{self._hash.hexdigest()}" == self._blob.digest

    def _follow(self, reply: Reply, *, required: bool = False) -> None:
        """Set the address of the next request from this answer."""
        location = reply.headers.get("Location")
        if location is None:
            if required:
                raise FetchError(
                    f"{reply.url} does not say where to send the blob",
                    code="fetch-no-upload-location",
                    why="its answer has no Location",
                )
            return
        location_address = redirected(parse_address(reply.url), location)
        if is_loopback(location_address.host) and not is_loopback(parse_address(self._blobs).host):
            raise FetchError(
                f"{reply.url} sends uploads to this machine",
                code="fetch-host-not-allowed",
                why=f"at {location_address.url}",
            )
        self._place = location_address.url

    def _reached(self, offset: int) -> None:
        self.size, self._sure = offset, True
        self._show(offset)

    def _restart(self) -> None:
        self._restarts += 1
        if self._restarts > _RESTARTS:
            why = f"the registry has forgotten it {self._restarts} times"
            raise FetchError(
                f"the upload of blob {self._blob.digest} does not end", code="fetch-upload-endless", why=why
            )
        self._place = None
        self._reached(0)

    def _finish(self) -> None:
        self.done = True
        self._show(self._blob.size)

    def _show(self, position: int) -> None:
        self._meter.advance(position - self._shown)
        self._shown = position


def arrived(header: str) -> int | None:
    """Return how many bytes a registry has, by the value of its Range header; None without one.

    No byte and one byte look the same in that header; the result is then 0.
    """
    match = _RANGE.fullmatch(header.strip())
    return None if match is None else int(match[1]) + 1 if int(match[1]) else 0
