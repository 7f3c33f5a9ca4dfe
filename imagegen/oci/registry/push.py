"""Push to a repository of a registry: blobs from the store, and last the manifest that names them.

Source: OCI distribution-spec v1.1 (the push half; checking and resuming an upload too). Some registries keep all bytes
of an interrupted upload, some only the acknowledged ones, and distribution 2.8 none. So an
upload resumes at the offset that the registry states, and starts again where the registry has lost it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

from imagegen.core.config import Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, PublishError
from imagegen.core.net import Client, DeniedError, NotFoundError, UnreachableError
from imagegen.core.net.address import parse as parse_address
from imagegen.core.net.sender import WRITTEN, Reply, Sender, small
from imagegen.core.net.status import TryAgainError, redirected
from imagegen.core.progress import Meter, Quiet, human
from imagegen.core.store import Store
from imagegen.core.text import counted, cut, redact
from imagegen.oci.documents import (
    ACCEPT,
    EMPTY,
    EMPTY_CONTENT,
    INDEX_TYPE,
    MANIFEST_TYPE,
    MAX_MANIFEST,
    Descriptor,
    digest_of,
)
from imagegen.oci.registry.reference import Reference, endpoint, is_tag, why_no_tag
from imagegen.oci.registry.referrers import extended, fallback_tag, referring
from imagegen.oci.registry.repository import Repository
from imagegen.oci.registry.session import RegistrySession
from imagegen.oci.registry.upload import Upload

_AT_ONCE = 4  # uploads
_ASKED_AT_ONCE = 8
_MAX_MOUNTS = 16  # repositories that are queried for each blob; a token names them all
_MAX_REASONS = 3  # of a refusal, each of as many characters as the next line says
_MAX_REASON = 200
_DONE = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
_MEANINGS: dict[int, str] = {
    HTTPStatus.NOT_FOUND: "it has no such repository, and makes none",
    HTTPStatus.METHOD_NOT_ALLOWED: "it is read-only",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "it, or a proxy before it, takes nothing of this size",
}


BlobOutcome = Literal["there", "mounted", "sent"]


class Mounts:
    """Repositories from which a blob may be mounted, by name and in the order of the queries. Thread-safe.

    A registry that lacks the blob answers a mount with a new upload. So each repository is first asked whether it has
    the blob: an upload as the answer then means that the registry does not support mounts, and no other one is tried.
    """

    def __init__(self, repositories: Sequence[str]) -> None:
        self._repositories = list(dict.fromkeys(repositories))
        self._lock = threading.Lock()

    @property
    def repositories(self) -> tuple[str, ...]:
        """Return the repositories; the one that had the last blob is first."""
        with self._lock:
            return tuple(self._repositories)

    def worked(self, repository: str) -> None:
        with self._lock:
            if repository in self._repositories:
                self._repositories.remove(repository)
                self._repositories.insert(0, repository)

    def drop(self, repository: str) -> None:
        """Remove a repository that may not be read."""
        with self._lock:
            if repository in self._repositories:
                self._repositories.remove(repository)

    def give_up(self) -> None:
        """Remove all repositories, because the registry does not support mounts."""
        with self._lock:
            self._repositories.clear()


@dataclass(frozen=True)
class BlobTotals:
    """A number of blobs, and their bytes."""

    blobs: int = 0
    size: int = 0


@dataclass(frozen=True)
class PushTotals:
    """The blobs of a push: present in the repository, mounted from another one, or sent."""

    there: BlobTotals
    mounted: BlobTotals
    sent: BlobTotals

    def __str__(self) -> str:
        amounts = (self.there, self.mounted, self.sent)
        blobs, size = sum(amount.blobs for amount in amounts), sum(amount.size for amount in amounts)
        return f"{self.sent.blobs} of {counted(blobs, 'blob')} sent, {human(self.sent.size)} of {human(size)}"


class PushTarget:
    """A repository of a registry to push to; a mirror that the environment names is used in its place. Thread-safe.

    `mounts` are repositories that may have some of the blobs already. The ones in the same registry are queried in
    order, and the blobs that they have are mounted, not pushed.
    """

    def __init__(
        self, reference: Reference, client: Client, settings: Settings, *, mounts: Sequence[Reference] = ()
    ) -> None:
        self._reference, self._client, self._sender = reference, client, Sender(client)
        target = endpoint(reference, settings)
        self._base = target.base
        mount_bases = [endpoint(mount, settings).base for mount in mounts if mount.registry == reference.registry]
        self._others = {urlsplit(base).path.removeprefix("/v2/"): base for base in mount_bases if base != target.base}
        self._others = dict(list(self._others.items())[:_MAX_MOUNTS])
        self._mounts = Mounts(tuple(self._others))
        self._session = RegistrySession(target, client, settings, actions="pull,push", also=tuple(self._others))
        self._reader = Repository(reference, client, settings)
        self._listing = threading.Lock()
        self._listed: dict[str, dict[str, dict[str, Any]]] = {}  # attachments of this target, by subject

    def reach(self) -> None:
        """Raise PublishError within seconds if the registry does not respond at its address."""
        with self._explained():
            self._session.reach()

    def require_writable(self) -> None:
        """Raise PublishError unless an upload may begin here: one is begun and cancelled, and leaves nothing."""
        with self._explained():
            reply = self._ask("POST", f"{self._base}/blobs/uploads/")
            if reply.status != HTTPStatus.ACCEPTED:
                raise self._refusal(reply, "anything")
        self._cancel(reply)

    def has(self, digest: str, size: int) -> bool:
        """Return whether the repository has the blob; False where the registry gives no answer. Raises PublishError."""
        with self._explained():
            return self._has(self._base, digest, size) is True

    def present(self, blobs: Iterable[Descriptor]) -> frozenset[str]:
        """Return the digests of the blobs that the repository has. Raises PublishError."""
        requested = tuple(dict.fromkeys(blobs))
        with self._threads(_ASKED_AT_ONCE) as pool:
            tasks = {pool.submit(self.has, blob.digest, blob.size): blob for blob in requested}
            answers = {tasks[task]: task.result() for task in as_completed(tasks)}
        return frozenset(blob.digest for blob in requested if answers[blob])

    def link(self, blob: Descriptor) -> bool:
        """Return whether the repository has the blob, or mounts it from a sibling. Raises PublishError."""
        if self.has(blob.digest, blob.size):
            return True
        mount = self._find_mount(blob)
        if mount is None:
            return False
        query = urlencode({"mount": blob.digest, "from": mount[0]})
        try:
            with self._explained():
                reply = self._ask("POST", f"{self._base}/blobs/uploads/?{query}")
        except PublishError:  # that one may not be read
            self._mounts.drop(mount[0])
            return False
        if reply.status == HTTPStatus.ACCEPTED:
            self._cancel(reply)
            if mount[1]:
                self._mounts.give_up()
        return reply.status == HTTPStatus.CREATED

    def upload(self, blob: Descriptor, store: Store, meter: Meter) -> BlobOutcome:
        """Upload a blob of the store that the repository lacks. Raises PublishError, StoreError."""
        if self.has(blob.digest, blob.size):
            meter.advance(blob.size)
            return "there"
        mounted = self._find_mount(blob)
        mount, sure = mounted or (None, False)
        upload = Upload(blob, store, self._sender, f"{self._base}/blobs", mount, meter)
        self._finish(upload, blob)
        if mount and upload.mounted:
            self._mounts.worked(mount)
        elif sure:
            self._mounts.give_up()
        return "mounted" if upload.mounted else "sent"

    def upload_all(self, blobs: Sequence[Descriptor], store: Store, meter: Meter) -> PushTotals:
        """Upload the blobs, several at once. The first error cancels the others and closes the client."""
        with self._threads(_AT_ONCE) as pool:
            tasks = {pool.submit(self.upload, blob, store, meter): blob for blob in dict.fromkeys(blobs)}
            ways = {tasks[task]: task.result() for task in as_completed(tasks)}

        def amount(way: BlobOutcome) -> BlobTotals:
            sizes = [blob.size for blob, went in ways.items() if went == way]
            return BlobTotals(len(sizes), sum(sizes))

        return PushTotals(amount("there"), amount("mounted"), amount("sent"))

    def manifest(self, requested: str) -> str | None:
        """Return the digest of the manifest under a tag or digest, as the registry states it; None without one."""
        with self._explained():
            reply = self._ask("HEAD", f"{self._base}/manifests/{requested}", {"Accept": ACCEPT})
        if reply.status == HTTPStatus.NOT_FOUND:
            return None
        if reply.status != HTTPStatus.OK:
            raise self._refusal(reply, f"manifest {requested}")
        return reply.headers.get("Docker-Content-Digest", "")

    def put(self, manifest: bytes, media_type: str, tag: str | None = None) -> str:
        """Write a manifest, whose blobs are there, and return its digest. Without a tag, only that identifies it.

        Raises PublishError, also when the registry took it for another one.
        """
        self._put(manifest, media_type, tag)
        return digest_of(manifest)

    def attach(
        self, subject: Descriptor, artifact_type: str, blob: bytes, media_type: str, annotations: Mapping[str, str]
    ) -> str:
        """Attach a document to a manifest, which need not be there yet; return the document's digest.

        The same again is the same artifact. A registry that keeps no lists of referrers gets one, as clients keep it.
        Raises PublishError.
        """
        return self.attach_all(subject, artifact_type, {"": blob}, media_type, annotations)

    def attach_all(
        self,
        subject: Descriptor,
        artifact_type: str,
        blobs: Mapping[str, bytes],
        media_type: str,
        annotations: Mapping[str, str],
    ) -> str:
        """Attach several documents by their titles, as `attach`; only those are sent that the repository lacks."""
        descriptors = {title: Descriptor(media_type, digest_of(blob), len(blob)) for title, blob in blobs.items()}
        contents = {descriptors[title]: blob for title, blob in blobs.items()}
        self._send(EMPTY, EMPTY_CONTENT)
        with self._threads(_AT_ONCE) as pool:
            for task in as_completed(pool.submit(self._send, part, data) for part, data in contents.items()):
                task.result()
        manifest, entry = referring(subject, artifact_type, descriptors, annotations)
        reply = self._put(manifest, MANIFEST_TYPE)
        if reply.headers.get("OCI-Subject") != subject.digest:
            with self._listing:
                self._listed.setdefault(subject.digest, {})[digest_of(manifest)] = entry
                self._list(subject.digest)
        return digest_of(manifest)

    def verify_referrers(self) -> None:
        """Verify that the referrers lists maintained by clients still have all artifacts attached here; call this last.

        A client that read a list before it was written here and wrote its own version afterwards has removed the
        entries added here; they are added again. Raises PublishError.
        """
        with self._listing:
            for subject in self._listed:
                self._list(subject)

    @contextmanager
    def _threads(self, count: int) -> Iterator[ThreadPoolExecutor]:
        """Yield a pool of threads. The first error cancels their other tasks and closes the client."""
        pool = ThreadPoolExecutor(count, thread_name_prefix="registry")
        try:
            yield pool
        except BaseException:
            self._client.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _cancel(self, begun: Reply) -> None:
        """End an upload without content; one that cannot be ended here expires by itself."""
        with suppress(FetchError):
            location = redirected(parse_address(begun.url), begun.headers.get("Location", ""))
            if location.origin == parse_address(self._base).origin:  # other origins must not get our authorization
                self._ask("DELETE", location.url)

    def _send(self, blob: Descriptor, data: bytes) -> None:
        """Upload a document unless it is here; a search in other repositories would take longer."""
        if not self.has(blob.digest, blob.size):
            self._finish(Upload(blob, data, self._sender, f"{self._base}/blobs", None, Quiet().meter("", 0)), blob)

    def _finish(self, upload: Upload, blob: Descriptor) -> None:
        with self._explained():
            while not upload.done:
                reply = self._session.asking(upload.advance)
                if reply is not None:
                    raise self._refusal(reply, f"blob {blob.digest}")

    def _has(self, base: str, digest: str, size: int) -> bool | None:
        """Return whether the repository has the blob; None if that is unknown. Raises FetchError, PublishError."""
        try:
            reply = self._ask("HEAD", f"{base}/blobs/{digest}")
        except DeniedError as error:
            if parse_address(error.url).origin != parse_address(self._base).origin:
                return None  # a store of files, to which the registry sends, may be asked for nothing but the file
            raise
        if reply.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            raise self._refusal(reply, f"blob {digest}")
        return reply.status == HTTPStatus.OK and reply.headers.get("Content-Length") in (None, str(size))

    def _find_mount(self, blob: Descriptor) -> tuple[str, bool] | None:
        """Return the first repository that has the blob, or may have it, and whether that is certain."""
        answers = ((other, self._other_has(other, blob)) for other in self._mounts.repositories)
        return next(((other, answer is True) for other, answer in answers if answer is not False), None)

    def _other_has(self, other: str, blob: Descriptor) -> bool | None:
        try:
            return self._has(self._others[other], blob.digest, blob.size)
        except (FetchError, PublishError):  # whatever the fault there, the blob can be uploaded
            self._mounts.drop(other)
            return False

    def _put(self, manifest: bytes, media_type: str, tag: str | None = None) -> Reply:
        digest = digest_of(manifest)
        subject = f"manifest {tag or digest}"
        if len(manifest) > MAX_MANIFEST:
            why = f"it has {len(manifest)} bytes, and registries take {MAX_MANIFEST}"
            raise PublishError(
                f"{subject} cannot be written to {self._reference.name}", code="publish-write-failed", why=why
            )
        if tag and not is_tag(tag):
            raise PublishError(
                f"{subject} cannot be written to {self._reference.name}",
                code="publish-write-failed",
                why=why_no_tag(tag),
            )
        with self._explained():
            url, headers = f"{self._base}/manifests/{tag or digest}", {"Content-Type": media_type}
            reply = self._session.asking(
                lambda authorization: self._sender.ask(
                    "PUT", url, authorization=authorization, headers=headers, body=small(manifest)
                )
            )
        reported = reply.headers.get("Docker-Content-Digest", digest)
        if reply.status not in _DONE or reported != digest:
            raise self._refusal(reply, subject, f"it says that it keeps {reported}, and {digest} was sent")
        return reply

    def _list(self, subject: str) -> None:
        """Add missing attachments of the subject to its referrers list, which clients maintain.

        The API has no atomic update of such a list, and a concurrent writer's entries can be lost: so each writer reads
        the list again after writing.
        """
        tag = fallback_tag(subject)
        where, entries = f"{self._reference.name}:{tag}", self._listed[subject]

        def lacking() -> bytes | None:
            try:
                _, index, _ = self._reader.manifest(tag)
            except NotFoundError:
                return extended(None, entries, where)
            return extended(index, entries, where)

        def once() -> None:
            if (longer := lacking()) is not None:
                self._put(longer, INDEX_TYPE, tag)
                if lacking() is not None:
                    raise TryAgainError("another client changed the list of referrers", local=True)

        with self._explained():
            self._sender.exchange.retry(f"{self._base}/manifests/{tag}", once, aim=WRITTEN)

    def _ask(self, method: str, url: str, headers: dict[str, str] | None = None) -> Reply:
        return self._session.asking(
            lambda authorization: self._sender.ask(method, url, authorization=authorization, headers=headers)
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the network into errors about writing."""
        name = self._reference.name
        try:
            yield
        except DeniedError as error:
            fix = f"`docker login {self._session.host}` as a user who may push there"
            raise PublishError(
                f"{name} may not be written to", code="publish-denied", **self._session.refusal(error, fix)
            ) from error
        except UnreachableError as error:
            raise PublishError(
                f"{name} cannot be written to", code="publish-write-failed", why=error.summary, fix=error.fix
            ) from error
        except FetchError as error:
            why = error.summary
            where = str(error.where) if error.where else None
            raise PublishError(
                f"{name} cannot be written to", code="publish-write-failed", where=where, why=why, fix=error.fix
            ) from error

    def _refusal(self, reply: Reply, what: str, otherwise: str = "") -> PublishError:
        """`otherwise` is the fault if the status is fine."""
        if reply.status in _DONE:
            return PublishError(
                f"{what} is not at {self._reference.name} as it is here",
                code="publish-verify-failed",
                why=otherwise,
                fix="do not trust this registry",
            )
        reasons = [f"HTTP status {reply.status}", *_reasons(reply.body)]
        meaning = _MEANINGS.get(reply.status)
        why = ", ".join(reasons) + (f": {meaning}" if meaning else "")
        return PublishError(f"{what} cannot be written to {self._reference.name}", code="publish-write-failed", why=why)


def _reasons(body: bytes) -> list[str]:
    """The registry's own words, as far as they come in the form that the specification gives errors."""
    try:
        errors = parse_json(body)["errors"]
        texts = [f"{error['code']} ({error['message']})" if error.get("message") else error["code"] for error in errors]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [cut(redact(str(reason)), _MAX_REASON) for reason in texts[:_MAX_REASONS]]
