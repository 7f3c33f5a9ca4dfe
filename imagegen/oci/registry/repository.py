"""One repository of a registry: documents and blobs, verified by digest and size.

Source: OCI distribution-spec v1.1 (the pull half).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Protocol
from urllib.parse import quote

from imagegen.core.config import Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError
from imagegen.core.net import ByteSink, Client, DeniedError, NotFoundError, Page, UnavailableError, UnreachableError
from imagegen.core.net.address import parse as parse_address
from imagegen.core.net.sender import Reply, Sender
from imagegen.core.net.status import redirected
from imagegen.core.progress import Meter
from imagegen.core.store import Store
from imagegen.oci.documents import (
    ACCEPT,
    INDEX_TYPE,
    MAX_CONFIG,
    MAX_MANIFEST,
    Descriptor,
    Manifest,
    Platform,
    RemoteImage,
    digest_of,
    read_config,
    read_document,
)
from imagegen.oci.registry.reference import Reference, endpoint, is_tag, variable
from imagegen.oci.registry.referrers import Referrer, ReferrerReader, fallback_tag, listed
from imagegen.oci.registry.session import RegistrySession

# Statuses without a referrers API, in addition to redirects: GitHub's registry redirects to a page for humans.
_NO_REFERRERS = (
    *(HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST, HTTPStatus.METHOD_NOT_ALLOWED),
    *(HTTPStatus.NOT_ACCEPTABLE, HTTPStatus.NOT_IMPLEMENTED),
)

_MAX_PAGES = 1000
MAX_BYTES = 64 << 20  # of all pages: half a million tags
_LINK = re.compile(r"<([^<>]*)>((?:\s*+;\s*+[^\s;,=]++\s*+=\s*+(?:\"[^\"]*\"|[^\s;,\"]*+))*)")
_RELATION = re.compile(r";\s*+rel\s*+=\s*+(?:\"([^\"]*)\"|([^\s;]*))", re.IGNORECASE)


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
    `what` is its name in errors.
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
        with self._explained():
            self._session.asking(
                lambda authorization: self._client.download(
                    url, store, sha256=sha256, size=size, meter=meter, authorization=authorization
                )
            )

    def size(self, digest: str) -> int:
        """Return the size of a blob in bytes. Raises FetchError: NotFoundError where the registry has none."""
        url = f"{self._endpoint.base}/blobs/{digest}"
        with self._explained():
            return self._session.asking(lambda authorization: self._client.size(url, authorization=authorization))

    def stream(self, digest: str, size: int, into: ByteSink) -> None:
        """Write a blob to `into`, unverified, and nothing to the disk. `size` in bytes. Raises FetchError."""
        url = f"{self._endpoint.base}/blobs/{digest}"
        with self._explained():
            self._session.asking(
                lambda authorization: self._client.stream(url, into, size=size, authorization=authorization)
            )

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
        # The registry need not know the query, and may have sent the others too.
        return tuple(referrer for referrer in by_digest.values() if artifact_type in (None, referrer.artifact_type))

    def tags(self) -> tuple[str, ...]:
        """Return all tags, as the registry orders them; an absent repository has none. Raises FetchError."""
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
        with self._explained():
            yield from pages(self._session, self._sender, url, accept)

    def _page(self, url: str, limit: int, accept: str | None) -> Page:
        with self._explained():
            return self._session.asking(
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

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the registry's refusals into errors about the image."""
        try:
            yield
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


def pages(session: RegistrySession, sender: Sender, url: str, accept: str) -> Iterator[Reply]:
    """The answers from `url` on, as long as each is fine and its Link header (RFC 8288) names a next one.

    The first is yielded whatever its status. No redirect is followed: no registry has a list elsewhere, and some
    redirect to a page for human readers. Raises FetchError, DeniedError among its kinds.
    """
    seen, size = {url}, 0
    while True:
        reply = _page(session, sender, url, accept)
        size += len(reply.body)
        if reply.status != HTTPStatus.OK and len(seen) > 1:
            raise FetchError(
                f"{reply.url} is a part of a list that cannot be read",
                code="fetch-list-malformed",
                why=f"HTTP status {reply.status}",
            )
        yield reply
        following = next_page(reply.headers.get("Link", ""))
        if reply.status != HTTPStatus.OK or following is None:
            return
        after = redirected(parse_address(reply.url), following)
        if after.origin != parse_address(url).origin:
            raise FetchError(
                f"{reply.url} goes on at another host",
                code="fetch-host-not-allowed",
                why=f"at {after.url}",
                fix="do not trust it",
            )
        url = after.url
        if url in seen or len(seen) >= _MAX_PAGES or size > MAX_BYTES:
            raise FetchError(f"{reply.url} is a list without an end", code="fetch-list-too-long")
        seen.add(url)


def _page(session: RegistrySession, sender: Sender, url: str, accept: str) -> Reply:
    def once(authorization: str | None) -> Reply:
        headers = {"Accept": accept}
        return sender.once("GET", url, authorization=authorization, headers=headers, limit=MAX_MANIFEST, follow=False)

    return session.asking(lambda authorization: sender.exchange.retry(url, lambda: once(authorization)))


def next_page(link: str) -> str | None:
    """The address that a Link header names as the next; None where it names none."""
    for address, parameters in _LINK.findall(link):
        if any("next" in f"{quoted}{word}".lower().split() for quoted, word in _RELATION.findall(parameters)):
            return str(address)
    return None
