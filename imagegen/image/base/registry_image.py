"""The unchanged image of a container registry as a base, fetched by digest, layer by layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BaseError, FetchError
from imagegen.core.net import Client, Missing, MissingFiles, UnreachableError
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.base.unpack import verify
from imagegen.lock.foundation import LockedBase
from imagegen.oci import registry
from imagegen.oci.documents import LayerDescriptor, Platform, RemoteImage, digest_of
from imagegen.oci.registry.mirror import Mirror
from imagegen.oci.registry.reference import variable
from imagegen.spec.foundation import Base

_FORMAT = 1  # of how layers are unpacked
_CONFIRMED = Cache("registry-image", dict[str, str])
_CONNECTIONS = 3
UNPACKED = 4  # bytes of tree for a byte of layer, about


def resolve(base: Base, settings: Settings, progress: Progress, *, architecture: str) -> LockedBase:
    """Return the image that the base's name stands for now. Raises FetchError, which names what was not reached."""
    reference = registry.parse(str(base.image))
    platform = Platform("linux", architecture)
    with Client(settings) as client, timed(progress, f"resolving base {base.name}, {reference}"):
        content = registry.resolve(reference, platform, client, settings)
    return LockedBase(base.name, base.kind, None, {}, (), image=base.image, content=content)


def require_published(locked: LockedBase, platform: str, context: Context) -> None:
    """Raise BaseError where the lock and the registry differ about a base: its layers, environment or entry point.

    `platform` is the cell's, "linux/amd64". Layers are fetched by digest; only manifest and config show that they, and
    the container's start-up settings, belong to the image with the locked digest. The store records what was verified.
    If the registry cannot be reached and the user has a mirror, nothing is verified.

    Raises FetchError.
    """
    content = locked.content
    if content is None:
        return
    key = digest_of(json.dumps(asdict(content), sort_keys=True).encode())
    if _CONFIRMED.get(context.store, key):
        return
    os, _, architecture = platform.partition("/")
    reference = registry.parse(f"{locked.image}@{content.digest}")
    with Client(context.settings) as client, timed(context.progress, f"verifying base {locked.name}, {reference}"):
        try:
            published = registry.resolve(reference, Platform(os, architecture), client, context.settings)
        except UnreachableError:
            if context.settings.mirror:
                return
            raise
    if published != content:
        locked_fields = {**asdict(content), **asdict(content.config)}
        published_fields = {**asdict(published), **asdict(published.config)}
        wrong = [
            name
            for name in locked_fields
            if name not in ("config", "labels") and locked_fields[name] != published_fields[name]
        ]
        raise BaseError(
            f"base {locked.name} differs from the lock",
            code="base-image-differs",
            where=str(reference),
            why=f"the registry's image with this digest differs in {', '.join(wrong)}: the lock was edited",
            fix="restore the lock from version control, or lock the base again: imagegen lock CELL --upgrade-base",
        )
    _CONFIRMED.put(context.store, key, {"image": content.digest})


def fetch(locked: LockedBase, context: Context) -> None:
    """Fetch every layer into the store. Raises MissingFiles that names all layers that could not be fetched.

    Raises BaseError for a layer whose contents differ from its image's config. Layers that were fetched before stay in
    the store.
    """
    _download(locked, context)
    for layer in _content(locked).layers:
        verify(layer, context.store)


def _download(locked: LockedBase, context: Context) -> None:
    required = _lacking(locked, context.store)
    if not required:
        return
    reference = registry.parse(f"{locked.image}@{_content(locked).digest}")
    total = sum(layer.size for layer in required)
    with (
        Client(context.settings) as client,
        context.progress.meter(f"{len(required)} layers of base {locked.name}", total) as meter,
    ):
        repository = registry.Repository(reference, client, context.settings)
        mirror = Mirror.of(context.settings, client)

        def download(layer: LayerDescriptor) -> Missing | None:
            try:
                if not (mirror and mirror.take(layer.digest, layer.size, context.store, meter)):
                    repository.download(layer.digest, layer.size, context.store, meter)
            except FetchError as error:
                return _missing(locked, layer, error)
            return None

        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            try:
                lacking = [file for file in pool.map(download, required) if file]
            except BaseException:
                client.close()  # stops the other threads, as after a full disk or Ctrl-C
                raise
    if lacking:
        raise MissingFiles(lacking, context.store.root)


def key(locked: LockedBase) -> str:
    """The digest of all that decides the base's files."""
    diff_ids = [layer.diff_id for layer in _content(locked).layers]
    inputs = {"format": _FORMAT, "kind": locked.kind, "layers": diff_ids}
    return digest_of(json.dumps(inputs, sort_keys=True).encode())


def missing(locked: LockedBase, store: Store) -> list[Missing]:
    """The layers that `fetch` would have to bring."""
    return [_missing(locked, layer) for layer in _lacking(locked, store)]


def needed(locked: LockedBase, store: Store) -> int:
    """Estimate the bytes that the missing layers and their file tree take in the store."""
    return (1 + UNPACKED) * sum(layer.size for layer in _lacking(locked, store))


def _content(locked: LockedBase) -> RemoteImage:
    if locked.content is None:
        raise BaseError(
            f"base {locked.name} is not an image of a registry", code="base-not-published", fix="lock again"
        )
    return locked.content


def _lacking(locked: LockedBase, store: Store) -> Sequence[LayerDescriptor]:
    distinct = {layer.digest: layer for layer in _content(locked).layers}
    return [layer for layer in distinct.values() if not store.has(layer.digest, layer.size)]


def _missing(locked: LockedBase, layer: LayerDescriptor, error: FetchError | None = None) -> Missing:
    host = registry.parse(str(locked.image)).registry
    tried = (error.summary,) if error else ()
    fix = f"set {variable(host)} to a mirror of {host} that can be reached, or `docker login` to it"
    number = _content(locked).layers.index(layer) + 1
    return Missing(f"layer {number} of {locked.image}", layer.digest.removeprefix("sha256:"), tried, fix)
