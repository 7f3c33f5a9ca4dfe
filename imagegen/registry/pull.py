"""One repository of a registry: documents and blobs, verified by digest and size, with the registry's tokens.

Sources: OCI distribution-spec v1.1 (the pull half); Docker Registry v2 authentication via central service: whoever is
refused fetches a token from the realm that the refusal names, and asks again with it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

from imagegen.config import Settings
from imagegen.errors import FetchError
from imagegen.net import Client, DeniedError, Growing, NotFoundError, Page, UnreachableError
from imagegen.net.address import parse as parse_address
from imagegen.progress import Meter
from imagegen.registry.credentials import Credentials, credentials_for, parse_challenges
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
from imagegen.registry.reference import Reference, endpoint, is_loopback, secure, variable
from imagegen.store import Store, digest_of

_MAX_TOKEN = 1 << 16  # bytes of the answer that holds it

T = TypeVar("T")


def resolve(reference: Reference, platform: Platform, client: Client, settings: Settings) -> Image:
    """What the name stands for now, for one platform. Raises FetchError."""
    if reference.tag is None and reference.digest is None:
        raise FetchError(f"{reference} names no tag and no digest", fix="say which image: its `latest` moves")
    repository = Repository(reference, client, settings)
    repository.reach()
    return repository.image(platform)


class Repository:
    """Thread-safe. The mirror that the environment names answers for the registry, and gets its credentials."""

    def __init__(self, reference: Reference, client: Client, settings: Settings) -> None:
        self._reference, self._client, self._settings = reference, client, settings
        self._endpoint = endpoint(reference, settings)
        self._authorization: str | None = None
        self._lock = threading.Lock()

    def reach(self) -> None:
        """Raise FetchError, soon, when nobody answers at the registry's address."""
        root = self._endpoint.base.partition("/v2/")[0] + "/v2/"
        try:
            self._client.impatient().page(root, limit=MAX_DOCUMENT)
        except UnreachableError as error:
            raise UnreachableError(
                f"image {self._reference} cannot be reached",
                why=f"{error.what}: {error.why}",
                fix=f"set {variable(self._reference.registry)} to a mirror of {self._reference.registry}, "
                "or run this where that registry can be reached",
            ) from error
        except FetchError:
            pass  # somebody answers: what they say to the real question counts

    def image(self, platform: Platform) -> Image:
        """The platform's image, its config read."""
        where = f"image {self._reference}"
        asked = self._reference.digest or str(self._reference.tag)
        digest, data, kind = self._manifest(asked, None)
        found = read_document(data, kind, platform, where)
        if isinstance(found, Descriptor):
            digest, data, _ = self._manifest(found.digest, found.size)
            found = read_document(data, found.media_type, platform, where)
            if not isinstance(found, Manifest):
                raise FetchError(f"{where} is described in circles", why=f"its index names {digest}, another index")
        config, layers = read_config(self._small_blob(found.config), found, platform, where)
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

    def _manifest(self, asked: str, size: int | None) -> tuple[str, bytes, str]:
        """Digest, bytes and media type of the manifest under a tag or digest, each held to the others."""
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

    def _small_blob(self, blob: Descriptor) -> bytes:
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
        """`ask` with the authorization at hand; where the registry itself refuses that, once more with a new one."""
        try:
            with self._lock:
                known = self._authorization
            try:
                return ask(known)
            except DeniedError as error:
                # Only the registry may say where a user's credentials go: not whoever it redirects to.
                if parse_address(error.url).origin != parse_address(self._endpoint.base).origin:
                    raise
                return ask(self._authorize(error, known))
        except NotFoundError as error:
            raise NotFoundError(f"image {self._reference} does not exist", why=f"{error.what} ({error.why})") from error
        except DeniedError as error:
            host = self._endpoint.host
            raise FetchError(
                f"image {self._reference} may not be read, or does not exist",
                why=f"{error.what}: {error.why}",
                fix=f"`docker login {host}` lets you in, if it is there",
            ) from error

    def _authorize(self, denied: DeniedError, refused: str | None) -> str:
        """A new header for the registry. One thread asks for it, the others take what it got."""
        with self._lock:
            if self._authorization in (None, refused):
                self._authorization = self._answer_to(denied)
            assert self._authorization  # noqa: S101 - just given
            return self._authorization

    def _answer_to(self, denied: DeniedError) -> str:
        challenges = parse_challenges(denied.challenge)
        own = parse_address(self._endpoint.base).auth
        credentials = Credentials(*own) if own else credentials_for(self._endpoint.host, self._settings.env)
        if "bearer" in challenges:
            return f"Bearer {self._token(challenges['bearer'], credentials)}"
        if "basic" in challenges and credentials:
            return credentials.basic()
        raise denied

    def _token(self, parameters: dict[str, str], credentials: Credentials | None) -> str:
        host = self._endpoint.host
        realm = parse_address(parameters.get("realm", ""))
        what = f"the token server that {host} names"
        secure(realm, what)
        if is_loopback(realm.host) and not is_loopback(parse_address(self._endpoint.base).host):
            raise FetchError(f"{what} is this machine", why=f"at {realm.url}", fix="do not trust this registry")
        query = {"service": parameters["service"]} if "service" in parameters else {}
        # Not the scope that the refusal names: this is all that is wanted here.
        path = urlsplit(self._endpoint.base).path.removeprefix("/v2/")
        query["scope"] = f"repository:{path}:pull"
        separator = "&" if urlsplit(realm.url).query else "?"
        url = f"{realm.url}{separator}{urlencode(query)}"
        basic = credentials.basic() if credentials else None
        try:
            body = self._client.page(url, authorization=basic, limit=_MAX_TOKEN).body
        except NotFoundError as error:  # it is not the image that does not exist
            raise FetchError(f"{what} gives no token", where=realm.url, why=error.why) from error
        try:
            answer = json.loads(body)
            token = answer.get("token") or answer.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        # It becomes a header: a line break in it would be the beginning of another.
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
            raise FetchError(f"{what} gives no token", where=realm.url)
        return token
