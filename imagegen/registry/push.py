"""A repository of a registry as what is written to: blobs from the store, and last the manifest that names them.

Source: OCI distribution-spec v1.1 (the push half; checking and resuming an upload too). Registries differ in what they
keep of an upload that broke off: some all that came, some what they had acknowledged, distribution 2.8 nothing. So an
upload goes on where the registry says, and begins anew where it has forgotten it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import urlsplit

from imagegen.config import Settings
from imagegen.errors import FetchError, PublishError
from imagegen.net import Client, DeniedError, UnreachableError
from imagegen.net.address import parse as parse_address
from imagegen.net.send import Reply, Sender, small
from imagegen.progress import Meter
from imagegen.registry.image import ACCEPT, MAX_DOCUMENT, Descriptor
from imagegen.registry.reference import Reference, endpoint
from imagegen.registry.session import Session
from imagegen.registry.upload import Upload
from imagegen.store import Store, digest_of

_AT_ONCE = 4  # uploads
_MAX_REASONS = 3  # of a refusal, each of as many characters as the next line says
_MAX_REASON = 200
_DONE = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
_MEANINGS: dict[int, str] = {
    HTTPStatus.NOT_FOUND: "it has no such repository, and makes none",
    HTTPStatus.METHOD_NOT_ALLOWED: "it is read-only",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "it, or a proxy before it, takes nothing of this size",
}


class Target:
    """Thread-safe. A mirror that the environment names for the registry is written to in its place.

    `mount` is a repository that may have some of the blobs already: of the same registry, they are linked, not sent.
    """

    def __init__(
        self, reference: Reference, client: Client, settings: Settings, *, mount: Reference | None = None
    ) -> None:
        self._reference, self._client, self._sender = reference, client, Sender(client)
        here = endpoint(reference, settings)
        self._base = here.base
        other = endpoint(mount, settings) if mount and mount.registry == reference.registry else None
        self._mount = urlsplit(other.base).path.removeprefix("/v2/") if other and other.base != here.base else None
        also = (self._mount,) if self._mount else ()
        self._session = Session(here, client, settings, actions="pull,push", also=also)

    def reach(self) -> None:
        """Raise PublishError, soon, when nobody answers at the registry's address."""
        with self._explained():
            self._session.reach()

    def has(self, digest: str, size: int) -> bool:
        """Whether the repository has the blob, as far as it says so. Raises PublishError."""
        with self._explained():
            try:
                reply = self._ask("HEAD", f"{self._base}/blobs/{digest}")
            except DeniedError as error:
                if parse_address(error.url).origin != parse_address(self._base).origin:
                    return False  # a store of files, to which the registry sends, may be asked for nothing but the file
                raise
        if reply.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            raise self._refusal(reply, f"blob {digest}")
        return reply.status == HTTPStatus.OK and reply.headers.get("Content-Length") in (None, str(size))

    def upload(self, blob: Descriptor, store: Store, meter: Meter) -> bool:
        """Bring a blob of the store to the repository; whether it had to be sent. Raises PublishError, StoreError."""
        if self.has(blob.digest, blob.size):
            meter.advance(blob.size)
            return False
        upload = Upload(blob, store, self._sender, f"{self._base}/blobs", self._mount, meter)
        with self._explained():
            while not upload.done:
                reply = self._session.asking(upload.advance)
                if reply is not None:
                    raise self._refusal(reply, f"blob {blob.digest}")
        return not upload.mounted

    def upload_all(self, blobs: Sequence[Descriptor], store: Store, meter: Meter) -> int:
        """`upload` for each, several at once; how many were sent. The first error ends the rest and the client."""
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload")
        try:
            tasks = [pool.submit(self.upload, blob, store, meter) for blob in dict.fromkeys(blobs)]
            return sum(task.result() for task in as_completed(tasks))
        except BaseException:
            self._client.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def manifest(self, asked: str) -> str | None:
        """The digest of the manifest under a tag or digest, as far as the registry tells; None where it has none."""
        with self._explained():
            reply = self._ask("HEAD", f"{self._base}/manifests/{asked}", {"Accept": ACCEPT})
        if reply.status == HTTPStatus.NOT_FOUND:
            return None
        if reply.status != HTTPStatus.OK:
            raise self._refusal(reply, f"manifest {asked}")
        return reply.headers.get("Docker-Content-Digest", "")

    def put(self, manifest: bytes, media_type: str, tag: str | None = None) -> str:
        """Write a manifest, whose blobs are there, and return its digest. Without a tag it is known by that alone.

        Raises PublishError, also when the registry took it for another one.
        """
        digest = digest_of(manifest)
        what = f"manifest {tag or digest}"
        if len(manifest) > MAX_DOCUMENT:
            why = f"it has {len(manifest)} bytes, and registries take {MAX_DOCUMENT}"
            raise PublishError(f"{what} cannot be written to {self._reference.name}", why=why)
        with self._explained():
            url, headers = f"{self._base}/manifests/{tag or digest}", {"Content-Type": media_type}
            reply = self._session.asking(
                lambda authorization: self._sender.ask(
                    "PUT", url, authorization=authorization, headers=headers, body=small(manifest)
                )
            )
        told = reply.headers.get("Docker-Content-Digest", digest)
        if reply.status not in _DONE or told != digest:
            raise self._refusal(reply, what, f"it says that it keeps {told}, and {digest} was sent")
        return digest

    def _ask(self, method: str, url: str, headers: dict[str, str] | None = None) -> Reply:
        return self._session.asking(
            lambda authorization: self._sender.ask(method, url, authorization=authorization, headers=headers)
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What went wrong on the way, as what it means for whoever wanted to write."""
        name = self._reference.name
        try:
            yield
        except DeniedError as error:
            raise PublishError(
                f"{name} may not be written to",
                why=f"{urlsplit(error.url).netloc} answers {error.why}: it wants other credentials, or is read-only",
                fix=f"`docker login {self._session.host}` as somebody who may push there",
            ) from error
        except UnreachableError as error:
            raise PublishError(
                f"{name} cannot be written to", why=f"{error.what}: {error.why}", fix=error.fix
            ) from error
        except FetchError as error:
            why = f"{error.what}: {error.why}" if error.why else error.what
            where = str(error.where) if error.where else None
            raise PublishError(f"{name} cannot be written to", where=where, why=why, fix=error.fix) from error

    def _refusal(self, reply: Reply, what: str, otherwise: str = "") -> PublishError:
        """`otherwise` is what is wrong where the status is fine."""
        if reply.status in _DONE:
            return PublishError(
                f"{what} is not at {self._reference.name} as it is here",
                why=otherwise,
                fix="do not trust this registry",
            )
        said = [f"HTTP status {reply.status}", *_reasons(reply.body)]
        meaning = _MEANINGS.get(reply.status)
        why = ", ".join(said) + (f": {meaning}" if meaning else "")
        return PublishError(f"{what} cannot be written to {self._reference.name}", why=why)


def _reasons(body: bytes) -> list[str]:
    """The registry's own words, as far as they come in the form that the specification gives errors."""
    try:
        errors = json.loads(body)["errors"]
        found = [f"{error['code']} ({error['message']})" if error.get("message") else error["code"] for error in errors]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [str(reason)[:_MAX_REASON] for reason in found[:_MAX_REASONS]]
