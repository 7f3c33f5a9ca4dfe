"""Bring an image of the store into an engine: a pull from loopback, or an archive where loopback is out of reach.

Sources: OCI image-spec v1.1 (manifest, image layout); Docker Engine API v1.44 (/images/create, /images/load).
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import tarfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import docker
from docker.errors import ImageNotFound, NotFound
from docker.utils import parse_repository_tag

from imagegen.core.errors import EngineError, LostEngineError, StoreError
from imagegen.core.progress import Meter, Progress, Quiet, timed
from imagegen.core.store import Store
from imagegen.engine.connection import while_alive
from imagegen.engine.containers import explained
from imagegen.engine.loopback import Loadable, Registry, serving
from imagegen.oci.documents import MANIFEST_TYPE, Descriptor, digest_of, read_manifest
from imagegen.oci.layout import INDEX_FILE, LAYOUT_FILE, LAYOUT_VERSION, blob_name

if TYPE_CHECKING:
    from imagegen.image.layers import Image

_SHORT = 12  # hex digits of a digest in the engine's progress events
_LOADED = re.compile(r"127\.0\.0\.1:(\d+)/imagegen/[0-9a-f]{32}@")  # an image while it is loaded; see `serving`


def load(client: docker.DockerClient, store: Store, digest: str, tag: str, progress: Progress) -> None:
    """See `Engine.load`."""
    before = image_digest(client, tag)
    if before == digest:
        progress.say(f"{tag} is in the engine")
        return
    if image_digest(client, digest) is not None:
        tag_image(client, digest, tag)
    else:
        sweep(client)
        image = loadable_image(store, digest)
        with (
            progress.meter(f"load {tag}", sum(blob.size for blob in image.blobs)) as meter,
            pulled(client, image, meter) as name,
        ):
            if name is not None:
                tag_image(client, name, tag)
        if name is None:
            progress.say("the engine cannot reach this machine's loopback: loading an archive instead")
            _load_archive(client, image, tag, progress)
    after = image_digest(client, tag)
    if after != digest:
        raise EngineError(
            f"the engine holds another image under {tag}",
            code="engine-tag-mismatch",
            why=f"expected {digest}, found {after}",
        )
    progress.say(f"{tag}: {digest}" + (f" (it was {before})" if before else ""))


def image_digest(client: docker.DockerClient, ref: str) -> str | None:
    """See `Engine.image_digest`."""
    with explained(f"looking for {ref}"):
        try:
            return str(client.images.get(ref).attrs["Id"])
        except ImageNotFound:
            return None


def loadable_image(store: Store, digest: str) -> Loadable:
    """Read the manifest. Raises StoreError if a blob that it names is missing."""
    data = store.read(digest)
    manifest = read_manifest(data, digest)
    missing = [blob.digest for blob in manifest.blobs if not store.has(blob.digest, blob.size)]
    if missing:
        raise StoreError(
            f"{len(missing)} blobs of the image {digest} are missing or have another size",
            code="store-blobs-missing",
            where=str(store.root),
            why=", ".join(missing),
            fix="build again: `imagegen build` makes layers that only a registry has",
        )
    return Loadable(store, Descriptor(manifest.media_type, digest, len(data)), manifest.blobs)


@contextmanager
def pulled(
    client: docker.DockerClient, image: Loadable, meter: Meter, stop: threading.Event | None = None
) -> Iterator[str | None]:
    """Pull an image from a registry on loopback; yield its name there, or None if the engine never connects.

    The engine fetches only the blobs that it lacks; the meter advances by the size of each blob that was sent or is
    there. The name exists, and its port answers, until the block ends. Raises EngineError when the pull fails or `stop`
    is set, StoreError for a fault of the store.
    """
    manifest = image.manifest
    with serving(image, meter) as registry:
        sizes = {blob.digest.removeprefix("sha256:")[:_SHORT]: blob.size for blob in image.blobs}
        name = f"{registry.repository}@{manifest.digest}"
        events = partial(client.api.pull, registry.repository, manifest.digest, stream=True, decode=True)
        try:
            try:
                with explained(f"loading {manifest.digest}"):
                    for event in follow(while_alive(client, events), name):
                        if event is None:
                            _require_reached(registry)
                            continue
                        _require_running(stop)
                        if event.get("status") == "Already exists":
                            meter.advance(sizes.pop(str(event.get("id")), 0))
            except LostEngineError:
                raise
            except EngineError:
                if registry.reached.is_set():
                    _check_blobs(image)
                    raise
                yield None
            else:
                yield name
        finally:
            with suppress(EngineError):  # the engine may have failed
                forget(client, name)


def _require_reached(registry: Registry) -> None:
    if not registry.reached.is_set():
        raise EngineError("the engine does not come", code="engine-load-unreachable")


def _require_running(stop: threading.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise EngineError("loading was stopped", code="engine-load-stopped")


def sweep(client: docker.DockerClient) -> None:
    """Remove the names that killed builds left, which keep layers alive: those on whose port no server listens."""
    with explained("listing images"):
        names = {name for image in client.api.images() for name in image.get("RepoDigests") or ()}
    for name in names:
        if (match := _LOADED.match(name)) and not _listens(int(match[1])):
            with suppress(EngineError):
                forget(client, name)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _load_archive(client: docker.DockerClient, image: Loadable, tag: str, progress: Progress) -> None:
    """Send an OCI archive without the blobs that the engine holds as parts of other images of this store."""
    name = f"imagegen.invalid/{secrets.token_hex(16)}:load"
    present = _held(client, image.store)
    for lacking in ([blob for blob in image.blobs if blob.digest not in present], list(image.blobs)):
        with progress.meter(f"load {tag}", sum(blob.size for blob in lacking)) as meter:
            try:
                with explained(f"loading {tag}"):
                    archive = _archive(image.store, name, image.manifest, lacking, meter)
                    events = partial(client.api.load_image, archive, quiet=True)
                    deque(follow(while_alive(client, events), tag), maxlen=0)
                tag_image(client, name, tag)
            except LostEngineError:
                raise
            except EngineError as error:
                forget(client, name)
                if len(lacking) == len(image.blobs):
                    raise
                progress.say(f"the engine lacks more than it seemed to ({error.why}): sending all of the image")
            else:
                forget(client, name)
                return


def _held(client: docker.DockerClient, store: Store) -> frozenset[str]:
    """Return the digests of blobs that the engine has in images whose manifests are in the store."""
    held: set[str] = set()
    with explained("listing images"):
        digests = [str(image["Id"]) for image in client.api.images()]
    for digest in digests:
        if store.has(digest):
            held |= {blob.digest for blob in read_manifest(store.read(digest), digest).blobs}
    return frozenset(held)


def _archive(
    store: Store, name: str, manifest: Descriptor, blobs: Iterable[Descriptor], meter: Meter
) -> Iterator[bytes]:
    """Yield an OCI image layout as a tar, with the image under `name`; every blob is verified while it is read."""
    entry = manifest.as_dict() | {"annotations": {"io.containerd.image.name": name}}
    yield from _member(LAYOUT_FILE, LAYOUT_VERSION)
    yield from _member(INDEX_FILE, json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
    yield from _member(blob_name(manifest.digest), store.read(manifest.digest))
    for blob in blobs:
        yield _header(blob_name(blob.digest), blob.size)
        with store.open(blob.digest) as reader:
            for chunk in reader:
                yield chunk
                meter.advance(len(chunk))
        yield _padding(blob.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, content: bytes) -> Iterator[bytes]:
    yield _header(name, len(content)) + content + _padding(len(content))


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)  # GNU: blobs may be larger than the 8 GiB that ustar can say


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def follow(events: Iterable[dict[str, Any] | None], tag: str) -> Iterator[dict[str, Any] | None]:
    """Yield the engine's progress events, or None for a silence. EngineError when one of them reports a failure."""
    for event in events:
        if event is not None and "error" in event:
            raise EngineError(
                f"the engine cannot load {tag}", code="engine-load-failed", why=str(event["error"]).strip()
            )
        yield event


def _check_blobs(image: Loadable) -> None:
    """Raise StoreError after a failed pull if a blob of the store is damaged."""
    for blob in image.blobs:
        if blob.digest not in image.documents:
            image.store.verify(blob.digest)


def tag_image(client: docker.DockerClient, ref: str, tag: str) -> None:
    """See `Engine.tag`."""
    repository, label = parse_repository_tag(tag)
    with explained(f"tagging {tag}"):
        client.api.tag(ref, repository, label or "latest")


def forget(client: docker.DockerClient, ref: str) -> None:
    """Remove a name that was only needed for loading; the image stays under its tag."""
    with explained(f"removing the name {ref}"):
        try:
            client.api.remove_image(ref, noprune=True)
        except NotFound:
            return


def pull(
    client: docker.DockerClient,
    name: str,
    digest: str,
    tag: str,
    credentials: tuple[str, str] | None,
    progress: Progress,
) -> None:
    """See `Engine.pull`. Source: Docker Engine API v1.44 (/images/create, X-Registry-Auth)."""
    if image_digest(client, digest) is None:
        # Without any, the SDK would read the configuration of the user.
        auth = {"username": credentials[0], "password": credentials[1]} if credentials else {}
        events = partial(client.api.pull, name, digest, stream=True, decode=True, auth_config=auth)
        with timed(progress, f"the engine pulls {name}@{digest}"), explained(f"pulling {name}@{digest}"):
            # The engine's own progress is not shown, because it counts each layer twice.
            deque(follow(while_alive(client, events), f"{name}@{digest}"), maxlen=0)
        after = image_digest(client, f"{name}@{digest}")
        if after != digest:
            raise EngineError(
                f"the engine holds another image as {name}@{digest}", code="engine-tag-mismatch", why=f"it is {after}"
            )
        tag_image(client, digest, tag)
        forget(client, f"{name}@{digest}")
    else:
        tag_image(client, digest, tag)


class Loading:
    """Loads an image in parts: each offer becomes an image in the engine, without a tag; the whole then costs the rest.

    Engines share unpacked layers along a common prefix. A context manager: its end removes the names of the parts and
    leaves their layers to the images that hold them. A failed part is not an error, since `finish` sends all that the
    engine lacks; after the engine failed to connect for a part, it gets no more of them.
    """

    def __init__(self, client: docker.DockerClient, store: Store) -> None:
        self._client, self._store = client, store
        self._newest: Image | None = None
        self._part = ExitStack()  # holds the layers that the engine has so far
        self._changed = threading.Condition()
        self._over = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop.set()
        self._settle()
        self._part.close()

    def offer(self, bottom: Image) -> None:
        """An image of the layers that are there by now; an earlier one that was not begun yet is dropped."""
        with self._changed:
            self._newest = bottom
            self._changed.notify()

    def finish(self, digest: str, tag: str, progress: Progress) -> None:
        """See `Engine.load`."""
        with timed(progress, f"loading {tag}"):
            self._settle()
            load(self._client, self._store, digest, tag, progress)

    def _settle(self) -> None:
        """Wait for the part that is on its way."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def _follow(self) -> None:
        with suppress(EngineError):
            sweep(self._client)
        while (bottom := self._next()) is not None:
            part = ExitStack()
            try:
                image = _in_memory(self._store, bottom)
                name = part.enter_context(pulled(self._client, image, Quiet().meter("", 0), self._stop))
            except (EngineError, StoreError):
                return
            self._part.close()  # the new part holds all that the one before it held
            self._part = part
            if name is None:
                return

    def _next(self) -> Image | None:
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._newest is not None)
            bottom, self._newest = self._newest, None
            return None if self._over else bottom


def _in_memory(store: Store, image: Image) -> Loadable:
    """Return an image whose layers the store has, but not its manifest and config."""
    documents = {image.digest: image.manifest, digest_of(image.config): image.config}
    return Loadable(store, Descriptor(MANIFEST_TYPE, image.digest, len(image.manifest)), image.blobs, documents)
