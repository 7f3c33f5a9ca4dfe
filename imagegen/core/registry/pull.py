"""One repository of a registry: documents and blobs, verified by digest and size, and the referrers of its images.

Source: OCI distribution-spec v1.1 (the pull half).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from imagegen.core.config import Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError
from imagegen.core.net import ByteSink, Client, DeniedError, NotFoundError, Page, UnavailableError, UnreachableError
from imagegen.core.net.client import Reply, Sender
from imagegen.core.oci import (
    ACCEPT,
    INDEX_TYPE,
    MANIFEST_TYPE,
    MAX_CONFIG,
    MAX_LIST,
    MAX_MANIFEST,
    Artifact,
    Descriptor,
    Manifest,
    Platform,
    RemoteImage,
    digest_of,
    read_artifact,
    read_config,
    read_document,
    read_entry,
    read_index,
    write_artifact,
)
from imagegen.core.progress import Meter
from imagegen.core.registry.reference import Reference, endpoint, is_tag, variable
from imagegen.core.registry.session import RegistrySession, pages
from imagegen.core.store import Store

_MAX_CONTENT = 64 << 20  # bytes of what is attached to an image


@dataclass(frozen=True)
class Referrer:
    """An entry of a list of referrers, not verified before `Repository.content`.

    `digest` and `size` (bytes) are of its manifest, `subject` is the digest of the manifest that it refers to.
    """

    digest: str
    size: int
    artifact_type: str
    annotations: Mapping[str, str]
    subject: str


@dataclass(frozen=True)
class Content:
    """The blob of a referrer that has one, verified by digest."""

    artifact_type: str
    annotations: Mapping[str, str]
    media_type: str
    data: bytes


class ReferrerReader(ABC):
    """Reads the referrers of images of a registry's repository or of a layout in a directory; `name` is for errors."""

    name: str

    @abstractmethod
    def manifest(self, requested: str, size: int | None = None) -> tuple[str, bytes, str]:
        """Return digest, bytes and media type of the manifest under a tag or digest, verified. Raises FetchError."""

    @abstractmethod
    def document(self, blob: Descriptor, limit: int = MAX_CONFIG) -> bytes:
        """Return a small blob, whole and verified, of at most `limit` bytes. Raises FetchError."""

    def artifact(self, referrer: Referrer) -> Artifact:
        """Return the artifact's manifest, verified by digest and by its subject. Raises FetchError."""
        where = f"{self.name}@{referrer.digest}"
        _, data, kind = self.manifest(referrer.digest, referrer.size)
        artifact = read_artifact(data, kind, where)
        if artifact.subject != referrer.subject:
            raise FetchError(
                f"{where} is listed for {referrer.subject}, and does not refer to it",
                code="fetch-referrer-mismatch",
                why=f"it refers to {artifact.subject or 'nothing'}",
                fix="do not trust it: any account with write access can have changed the list",
            )
        return artifact

    def content(self, referrer: Referrer) -> Content:
        """Return the one blob of an artifact, verified as `artifact` is. Raises FetchError."""
        artifact = self.artifact(referrer)
        if len(artifact.parts) != 1:
            raise FetchError(
                f"{self.name}@{referrer.digest} is not a single document",
                code="fetch-artifact-invalid",
                why=f"it has {len(artifact.parts)} parts",
            )
        ((_, blob),) = artifact.parts
        return Content(artifact.kind, artifact.annotations, blob.media_type, self.document(blob, _MAX_CONTENT))


def fallback_tag(subject: str) -> str:
    """The tag of the list of referrers where the registry keeps none; `subject` is "sha256:...".

    The specification would cut long algorithms and digests; those of sha256 are never cut.
    """
    return subject.replace(":", "-")


def listed(index: bytes, subject: str, where: str) -> tuple[Referrer, ...]:
    """The referrers in a list of them, in its order; what imagegen cannot ask for is left out. Raises FetchError."""
    referrers: dict[str, Referrer] = {}
    for entry in read_index(index, where):
        read = read_entry(entry)
        if read is not None:
            descriptor, artifact_type, annotations = read
            referrer = Referrer(descriptor.digest, descriptor.size, artifact_type, annotations, subject)
            referrers.setdefault(descriptor.digest, referrer)
    return tuple(referrers.values())


def referring(
    subject: Descriptor, artifact_type: str, blobs: Mapping[str, Descriptor], annotations: Mapping[str, str]
) -> tuple[bytes, dict[str, Any]]:
    """The manifest of an artifact that refers to `subject`, and its entry in a list of referrers.

    `blobs` are by their titles; "" is none.
    """
    data = write_artifact(artifact_type, blobs.items(), annotations, subject)
    entry = Descriptor(MANIFEST_TYPE, digest_of(data), len(data)).as_dict()
    return data, entry | {"artifactType": artifact_type, "annotations": dict(annotations)}


def extended(index: bytes | None, entries: Mapping[str, dict[str, Any]], where: str) -> bytes | None:
    """The list with `entries` (by digest) that it lacks; None where it lacks none. `index` None: there is no list yet.

    What others wrote stays as it is. Raises FetchError for a list that is none, or is full.
    """
    present = read_index(index, where) if index is not None else []
    digests = {entry.get("digest") for entry in present if isinstance(entry, dict)}
    added = [entry for digest, entry in entries.items() if digest not in digests]
    if not added:
        return None
    if len(present) + len(added) > MAX_LIST:
        raise FetchError(
            f"{where} has reached the limit of referrers",
            code="fetch-too-many-referrers",
            why=f"it lists {len(present)} artifacts already",
        )
    document = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*present, *added]}
    return json.dumps(document, sort_keys=True).encode()


# One repository of a registry: documents and blobs, verified by digest and size.
#
# Source: OCI distribution-spec v1.1 (the pull half).

# Of a registry that has no referrers API, beside what it redirects to: GitHub's sends to a page for human readers.
_NO_REFERRERS = (
    *(HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST, HTTPStatus.METHOD_NOT_ALLOWED),
    *(HTTPStatus.NOT_ACCEPTABLE, HTTPStatus.NOT_IMPLEMENTED),
)

T = TypeVar("T")


def resolve(reference: Reference, platform: Platform, client: Client, settings: Settings) -> RemoteImage:
    """Return the image that the name stands for now, for one platform. Raises FetchError."""
    if reference.tag is None and reference.digest is None:
        raise FetchError(
            f"{reference} names no tag and no digest", code="fetch-no-tag", fix="say which image: its `latest` moves"
        )
    repository = Repository(reference, client, settings)
    repository.reach()
    return repository.image(platform)


class Manifests(Protocol):
    """Gives digest, bytes and media type of the manifest under a tag or digest, of `size` bytes where that is known."""

    def __call__(self, requested: str, size: int | None = None) -> tuple[str, bytes, str]: ...


def manifest_for(manifests: Manifests, requested: str, platform: Platform, where: str) -> tuple[str, Manifest]:
    """The manifest under a tag or digest, and its digest; of an index, the platform's. Raises FetchError."""
    digest, data, kind = manifests(requested)
    document = read_document(data, kind, platform, where)
    if isinstance(document, Descriptor):
        digest, data, _ = manifests(document.digest, document.size)
        document = read_document(data, document.media_type, platform, where)
        if not isinstance(document, Manifest):
            raise FetchError(
                f"{where} is described in circles",
                code="fetch-nested-index",
                why=f"its index names {digest}, another index",
            )
    return digest, document


class Repository(ReferrerReader):
    """A repository of a registry. Thread-safe.

    A mirror that the environment names is read in the registry's place, with the credentials for the mirror's host.
    `what` is what errors call it.
    """

    def __init__(self, reference: Reference, client: Client, settings: Settings, *, what: str = "image") -> None:
        self._reference, self._client, self._name = reference, client, f"{what} {reference}"
        self.name = reference.name
        self._endpoint = endpoint(reference, settings)
        self._session = RegistrySession(self._endpoint, client, settings, actions="pull")
        self._sender = Sender(client)

    def reach(self) -> None:
        """Raise FetchError within seconds if the registry does not respond at its address."""
        try:
            self._session.reach()
        except UnreachableError as error:
            raise UnreachableError(
                f"{self._name} cannot be reached",
                why=error.summary,
                fix=f"set {variable(self._reference.registry)} to a mirror of {self._reference.registry}, "
                "or run this where that registry can be reached",
            ) from error

    def image(self, platform: Platform) -> RemoteImage:
        """The platform's image, its config read."""
        where = self._name
        requested = self._reference.digest or str(self._reference.tag)
        digest, manifest = manifest_for(self.manifest, requested, platform, where)
        config, layers = read_config(self.document(manifest.config), manifest, platform, where)
        return RemoteImage(digest, manifest.config.digest, config, layers)

    def download(self, digest: str, size: int, store: Store, meter: Meter) -> None:
        """Bring a blob into the store, verified. `size` in bytes. Raises FetchError, StoreError."""
        url = f"{self._endpoint.base}/blobs/{digest}"
        sha256 = digest.removeprefix("sha256:")
        self._asking(
            lambda authorization: self._client.download(
                url, store, sha256=sha256, size=size, meter=meter, authorization=authorization
            )
        )

    def size(self, digest: str) -> int:
        """Return the size of a blob in bytes. Raises FetchError: NotFoundError where the registry has none."""
        url = f"{self._endpoint.base}/blobs/{digest}"
        return self._asking(lambda authorization: self._client.size(url, authorization=authorization))

    def stream(self, digest: str, size: int, into: ByteSink) -> None:
        """Write a blob to `into`, unverified, and nothing to the disk. `size` in bytes. Raises FetchError."""
        url = f"{self._endpoint.base}/blobs/{digest}"
        self._asking(lambda authorization: self._client.stream(url, into, size=size, authorization=authorization))

    def manifest(self, requested: str, size: int | None = None) -> tuple[str, bytes, str]:
        """Digest, bytes and media type of the manifest under a tag or digest, each held to the others.

        Raises FetchError: NotFoundError where the registry has none.
        """
        url = f"{self._endpoint.base}/manifests/{requested}"
        page = self._page(url, MAX_MANIFEST, ACCEPT)
        digest = digest_of(page.body)
        reported = page.headers.get("Docker-Content-Digest", digest)
        for expected in (requested, reported):
            if expected.startswith("sha256:"):
                self._check(url, "digest", expected, digest)
        if size is not None:
            self._check(url, "size", f"{size} bytes", f"{len(page.body)} bytes")
        return digest, page.body, page.headers.get("Content-Type", "")

    def document(self, blob: Descriptor, limit: int = MAX_CONFIG) -> bytes:
        """A small blob, whole and verified, of at most `limit` bytes. Raises FetchError."""
        url = f"{self._endpoint.base}/blobs/{blob.digest}"
        body = self._page(url, min(blob.size, limit), None).body
        self._check(url, "digest", blob.digest, digest_of(body))
        return body

    def referrers(self, digest: str, artifact_type: str | None = None) -> tuple[Referrer, ...]:
        """Return the artifacts that refer to the manifest with this digest, of one type or of all, unverified.

        If the registry has no referrers API, the list that clients maintain is read. Raises FetchError.
        """
        query = f"?artifactType={quote(artifact_type, safe='')}" if artifact_type else ""
        url = f"{self._endpoint.base}/referrers/{digest}{query}"
        by_digest: dict[str, Referrer] = {}
        for page in self._pages(url, INDEX_TYPE):
            if not _is_list(page):
                by_digest = {referrer.digest: referrer for referrer in self._kept_by_clients(digest)}
                break
            by_digest |= {referrer.digest: referrer for referrer in listed(page.body, digest, page.url)}
        # Whether the registry has left out the others or not: it need not know the query.
        return tuple(referrer for referrer in by_digest.values() if artifact_type in (None, referrer.artifact_type))

    def tags(self) -> tuple[str, ...]:
        """Return all tags, as the registry orders them; a repository that does not exist has none.
        Raises FetchError.
        """
        names: dict[str, None] = {}
        for page in self._pages(f"{self._endpoint.base}/tags/list?n=1000", "application/json"):
            if page.status == HTTPStatus.NOT_FOUND:
                return ()
            try:
                if page.status != HTTPStatus.OK:
                    raise FetchError(
                        f"the tags of {self._name} cannot be read",
                        code="fetch-list-malformed",
                        why=f"HTTP status {page.status}",
                    )
                tags = parse_json(page.body)["tags"] or []
                names |= dict.fromkeys(tag for tag in tags if isinstance(tag, str) and is_tag(tag))
            except (ValueError, KeyError, TypeError) as error:
                raise FetchError(
                    f"the tags of {self._name} cannot be read", code="fetch-list-malformed", why="its list is none"
                ) from error
        return tuple(names)

    def _kept_by_clients(self, digest: str) -> tuple[Referrer, ...]:
        try:
            _, data, _ = self.manifest(fallback_tag(digest))
        except NotFoundError:
            return ()
        return listed(data, digest, f"{self.name}:{fallback_tag(digest)}")

    def _pages(self, url: str, accept: str) -> Iterator[Reply]:
        pages_ = pages(self._session, self._sender, url, accept)
        while (page := self._explained(lambda: next(pages_, None))) is not None:
            yield page

    def _page(self, url: str, limit: int, accept: str | None) -> Page:
        return self._asking(
            lambda authorization: self._client.page(url, accept=accept, authorization=authorization, limit=limit)
        )

    def _check(self, url: str, what: str, expected: str, got: str) -> None:
        if expected != got:
            raise FetchError(
                f"{url} is not what its registry says it is",
                code="fetch-digest-mismatch",
                why=f"expected {what} {expected}, got {got}",
                fix="do not trust this source",
            )

    def _asking(self, ask: Callable[[str | None], T]) -> T:
        """Call `ask` with the registry's authorization."""
        return self._explained(lambda: self._session.asking(ask))

    def _explained(self, ask: Callable[[], T]) -> T:
        """Call `ask` and turn the registry's refusals into errors about the image."""
        try:
            return ask()
        except NotFoundError as error:
            raise NotFoundError(f"{self._name} does not exist", why=f"{error.what} ({error.why})") from error
        except DeniedError as error:
            fix = f"`docker login {self._session.host}` lets you in, if it is there"
            problem = f"{self._name} may not be read, or does not exist"
            raise UnavailableError(problem, **self._session.refusal(error, fix)) from error


def _is_list(page: Reply) -> bool:
    """Return whether a page is a list of referrers. Raises FetchError for an unclear answer."""
    kind = page.headers.get("Content-Type", "").partition(";")[0].strip()
    if page.status == HTTPStatus.OK:
        return kind == INDEX_TYPE
    if page.status in _NO_REFERRERS or "Location" in page.headers:
        return False
    raise FetchError(f"{page.url} cannot be fetched", code="fetch-redirect-refused", why=f"HTTP status {page.status}")
