"""One repository of a registry: documents and blobs, verified by digest and size.

Source: OCI distribution-spec v1.1 (the pull half).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from imagegen.config import Settings
from imagegen.errors import FetchError
from imagegen.net import Client, DeniedError, Growing, NotFoundError, Page, UnreachableError
from imagegen.progress import Meter
from imagegen.registry.image import (
    ACCEPT,
    MAX_CONFIG,
    MAX_DOCUMENT,
    Descriptor,
    Image,
    Manifest,
    Platform,
    read_config,
    read_document,
)
from imagegen.registry.reference import Reference, endpoint, variable
from imagegen.registry.session import Session
from imagegen.store import Store, digest_of

T = TypeVar("T")


def resolve(reference: Reference, platform: Platform, client: Client, settings: Settings) -> Image:
    """What the name stands for now, for one platform. Raises FetchError."""
    if reference.tag is None and reference.digest is None:
        raise FetchError(f"{reference} names no tag and no digest", fix="say which image: its `latest` moves")
    repository = Repository(reference, client, settings)
    repository.reach()
    return repository.image(platform)


class Repository:
    """Thread-safe. The mirror that the environment names answers for the registry, and gets its credentials.

    `what` is what errors call it.
    """

    def __init__(self, reference: Reference, client: Client, settings: Settings, *, what: str = "image") -> None:
        self._reference, self._client, self._name = reference, client, f"{what} {reference}"
        self._endpoint = endpoint(reference, settings)
        self._session = Session(self._endpoint, client, settings, actions="pull")

    def reach(self) -> None:
        """Raise FetchError, soon, when nobody answers at the registry's address."""
        try:
            self._session.reach()
        except UnreachableError as error:
            raise UnreachableError(
                f"{self._name} cannot be reached",
                why=f"{error.what}: {error.why}",
                fix=f"set {variable(self._reference.registry)} to a mirror of {self._reference.registry}, "
                "or run this where that registry can be reached",
            ) from error

    def image(self, platform: Platform) -> Image:
        """The platform's image, its config read."""
        where = self._name
        asked = self._reference.digest or str(self._reference.tag)
        digest, data, kind = self.manifest(asked)
        found = read_document(data, kind, platform, where)
        if isinstance(found, Descriptor):
            digest, data, _ = self.manifest(found.digest, found.size)
            found = read_document(data, found.media_type, platform, where)
            if not isinstance(found, Manifest):
                raise FetchError(f"{where} is described in circles", why=f"its index names {digest}, another index")
        config, layers = read_config(self.document(found.config), found, platform, where)
        return Image(digest, found.config.digest, layers, config)

    def download(self, digest: str, size: int, store: Store, meter: Meter) -> None:
        """Bring a blob into the store, verified. `size` in bytes. Raises FetchError, StoreError."""
        url = f"{self._endpoint.base}/blobs/{digest}"
        sha256 = digest.removeprefix("sha256:")
        self._asking(
            lambda authorization: self._client.download(
                url, store, sha256=sha256, size=size, meter=meter, authorization=authorization
            )
        )

    def stream(self, digest: str, size: int, into: Growing) -> None:
        """Write a blob to `into`, unverified, and nothing to the disk. `size` in bytes. Raises FetchError."""
        url = f"{self._endpoint.base}/blobs/{digest}"
        self._asking(lambda authorization: self._client.stream(url, into, size=size, authorization=authorization))

    def manifest(self, asked: str, size: int | None = None) -> tuple[str, bytes, str]:
        """Digest, bytes and media type of the manifest under a tag or digest, each held to the others.

        Raises FetchError: NotFoundError where the registry has none.
        """
        url = f"{self._endpoint.base}/manifests/{asked}"
        page = self._page(url, MAX_DOCUMENT, ACCEPT)
        digest = digest_of(page.body)
        told = page.headers.get("Docker-Content-Digest", digest)
        for expected in (asked, told):
            if expected.startswith("sha256:"):
                self._check(url, "digest", expected, digest)
        if size is not None:
            self._check(url, "size", f"{size} bytes", f"{len(page.body)} bytes")
        return digest, page.body, page.headers.get("Content-Type", "")

    def document(self, blob: Descriptor) -> bytes:
        """A small blob, whole and verified. Raises FetchError."""
        url = f"{self._endpoint.base}/blobs/{blob.digest}"
        body = self._page(url, min(blob.size, MAX_CONFIG), None).body
        self._check(url, "digest", blob.digest, digest_of(body))
        return body

    def _page(self, url: str, limit: int, accept: str | None) -> Page:
        return self._asking(
            lambda authorization: self._client.page(url, accept=accept, authorization=authorization, limit=limit)
        )

    def _check(self, url: str, what: str, expected: str, got: str) -> None:
        if expected != got:
            raise FetchError(
                f"{url} is not what its registry says it is",
                why=f"expected {what} {expected}, got {got}",
                fix="do not trust this source",
            )

    def _asking(self, ask: Callable[[str | None], T]) -> T:
        """`ask` with the registry's authorization; its refusals told as what they are for an image."""
        try:
            return self._session.asking(ask)
        except NotFoundError as error:
            raise NotFoundError(f"{self._name} does not exist", why=f"{error.what} ({error.why})") from error
        except DeniedError as error:
            raise FetchError(
                f"{self._name} may not be read, or does not exist",
                why=f"{error.what}: {error.why}",
                fix=f"`docker login {self._session.host}` lets you in, if it is there",
            ) from error
