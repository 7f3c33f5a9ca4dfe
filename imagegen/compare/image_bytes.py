"""Check the bytes of an image against each other and against the lock that it was built from.

Blobs are hashed while they are read, compressed and uncompressed, and not stored. Sources: OCI image-spec v1.1,
manifest.md, config.md (diff_ids), layer.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from imagegen.compare.references import ImageLocation, platform_of
from imagegen.compare.verdict import StepResult, StepStatus, failed, passed
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, ImagegenError
from imagegen.core.net import Client, NotFoundError, UnavailableError
from imagegen.core.progress import Progress, human
from imagegen.core.text import counted
from imagegen.image import layers
from imagegen.image.inventory.streams import Hashed, Plain, piped
from imagegen.image.layers.image_config import LABEL
from imagegen.lock import inputs_hash
from imagegen.lock.file import loads_attached
from imagegen.lock.model import Lock
from imagegen.oci.documents import (
    MANIFEST_TYPE,
    Descriptor,
    ImageConfig,
    LayerDescriptor,
    Manifest,
    Platform,
    read_config,
    read_document,
    read_images,
    write_image_index,
)

_CHUNK = 1 << 20
_ANY = Platform("linux", "amd64")  # for reading an index in an index, which is an error for any platform


@dataclass(frozen=True)
class ReadImage:
    """An image whose manifest and config match their digests; `names` are the names of its layers."""

    digest: str
    manifest: bytes
    media_type: str
    config_digest: str
    raw: bytes  # the config
    config: ImageConfig
    layers: tuple[LayerDescriptor, ...]
    names: tuple[str, ...]

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(self.media_type, self.digest, len(self.manifest))


@dataclass(frozen=True)
class ReadIndex:
    """An index with the descriptors of its images, by platform."""

    digest: str
    images: Mapping[str, Descriptor]


def read_image_or_index(
    source: ImageLocation, requested: str, where: str
) -> tuple[ReadImage | ReadIndex | None, list[StepResult]]:
    """Return the image or index under a tag or digest with the steps about it; None if it is invalid.

    For an index of one image, return the image. Raises UnavailableError, NotFoundError.
    """
    try:
        digest, data, kind = source.manifest(requested)
        images = read_images(data, kind, where)
    except (UnavailableError, NotFoundError):
        raise
    except FetchError as error:
        return None, [failed("manifest", error.summary)]
    if images is None:
        return _read_image(source, digest, data, kind, where)
    if len(images) != 1:
        return _read_index(digest, data, images)
    ((platform, manifest),) = images
    return read_indexed_image(source, manifest, where, platform or None)


def _read_index(
    digest: str, data: bytes, images: list[tuple[str, Descriptor]]
) -> tuple[ReadIndex | None, list[StepResult]]:
    """Return the index with its step; None if its platforms are missing or not unique."""
    by_platform = dict(sorted(images, key=lambda image: image[0]))
    if not images:
        return None, [failed("index", f"{digest} has no image")]
    if "" in by_platform:
        return None, [failed("index", f"{digest} names no platform for {by_platform[''].digest}")]
    if len(by_platform) < len(images):
        return None, [failed("index", f"{digest} has several images for one platform")]
    writer = "" if data == write_image_index(by_platform) else "; another program wrote it"
    step = passed("index", f"{digest}, images for {' and '.join(by_platform)}{writer}")
    return ReadIndex(digest, by_platform), [step]


def read_indexed_image(
    source: ImageLocation, manifest: Descriptor, where: str, platform: str | None = None
) -> tuple[ReadImage | None, list[StepResult]]:
    """Return an image of an index with the steps about its manifest and config; None if they are invalid.

    `platform` is the image's platform in the index, if it has one. Raises UnavailableError.
    """
    try:
        digest, data, kind = source.manifest(manifest.digest, manifest.size)
    except UnavailableError:
        raise
    except FetchError as error:
        return None, [failed("manifest", error.summary)]
    return _read_image(source, digest, data, kind, where, platform)


def _read_image(
    source: ImageLocation, digest: str, data: bytes, kind: str, where: str, platform: str | None = None
) -> tuple[ReadImage | None, list[StepResult]]:
    try:
        manifest = read_document(data, kind, _ANY, where)
    except FetchError as error:
        return None, [failed("manifest", error.summary)]
    if not isinstance(manifest, Manifest):
        return None, [failed("manifest", f"an index names {digest}, another index")]
    first = [passed("manifest", f"{digest}, {counted(len(manifest.layers), 'layer')}, {kind or MANIFEST_TYPE}")]
    try:
        raw = source.document(manifest.config)
        if len(raw) != manifest.config.size:
            why = f"{manifest.config.digest} has {len(raw)} bytes, and the manifest says {manifest.config.size}"
            return None, [*first, failed("config", why)]
        config_platform = platform_of(raw)
        if platform not in (None, str(config_platform)):
            why = f"{manifest.config.digest} is for {config_platform}, the index says {platform}"
            return None, [*first, failed("config", why)]
        config, config_layers = read_config(raw, manifest, config_platform, where)
    except UnavailableError:
        raise
    except FetchError as error:
        return None, [*first, failed("config", error.summary)]
    step = passed(
        "config", f"{manifest.config.digest}, {counted(len(config_layers), 'diff_id')}, for {config_platform}"
    )
    names = _layer_names(raw, len(config_layers))
    image = ReadImage(digest, data, kind or MANIFEST_TYPE, manifest.config.digest, raw, config, config_layers, names)
    return image, [*first, step]


def _layer_names(config: bytes, count: int) -> tuple[str, ...]:
    """Return the names of the layers from the image's history; numbers if imagegen did not build the image."""
    history = parse_json(config).get("history")
    entries = history if isinstance(history, list) else []
    names = [str(entry.get("created_by", "")) for entry in entries if isinstance(entry, dict)]
    if len(names) == count and all(name.startswith("imagegen: ") for name in names):
        return tuple(name.removeprefix("imagegen: ") for name in names)
    return tuple(str(number) for number in range(1, count + 1))


def layer_steps(image: ReadImage, source: ImageLocation, client: Client, progress: Progress) -> Iterator[StepResult]:
    """Verify the bytes of each blob, compressed and uncompressed: yield a step for each layer that differs, or one.

    `client` reads the source; it is closed if the registry does not answer, and by an interruption.
    """
    bad = False
    total = sum(layer.size for layer in image.layers)
    with progress.meter("checking layers", total) as meter:
        for name, layer in zip(image.names, image.layers, strict=True):
            if fault := _layer_fault(layer, source, client):
                bad = True
                yield failed(f"layer {name}", fault)
            meter.advance(layer.size)
    if not bad:
        blobs = counted(len(image.layers), "blob")
        yield passed("layers", f"{blobs}, {human(total)}, have the digests of the manifest and unpack to the diff_ids")


def _layer_fault(layer: LayerDescriptor, source: ImageLocation, client: Client) -> str | None:
    with piped(source, layer, client) as blob:
        plain = Plain(blob)
        tar = Hashed(plain)
        try:  # inside, since an error that leaves the block closes the client, which reads the next layers
            while tar.read(_CHUNK):
                pass
            plain.finish()
        except UnavailableError:
            raise
        except FetchError as error:
            return f"{layer.digest}: {error.summary}"
    if plain.digest != layer.digest:
        return f"{layer.digest} has other bytes: their digest is {plain.digest}"
    if plain.size != layer.size:
        return f"{layer.digest} has {plain.size} bytes, and the manifest says {layer.size}"
    if tar.digest != layer.diff_id:
        return f"{layer.digest} unpacks to {tar.digest}, and the config says {layer.diff_id}"
    return None


def read_lock(image: ReadImage, attached: bytes) -> tuple[Lock | None, StepResult]:
    """Return the attached lock, and the step that compares its inputs with the image's label."""
    try:
        lock = loads_attached(attached.decode(), "the attached lock")
    except (ImagegenError, UnicodeDecodeError) as error:
        return None, failed("lock", str(error).splitlines()[0])
    label, lock_inputs = image.config.labels.get(f"{LABEL}inputs"), inputs_hash(lock)
    if label != lock_inputs:
        return None, failed("lock", f"the image's label says inputs {label}, the lock's are {lock_inputs}")
    return lock, passed("lock", f"of {lock.cell}, inputs {lock_inputs}, as the image's label says")


def image_step(image: ReadImage, lock: Lock) -> StepResult:
    """Compare the image with the image in the lock's record."""
    name = "image"
    if lock.record is None:
        return StepResult(
            name, StepStatus.UNCHECKED, "the lock does not record the image; `verify --rebuild` checks it"
        )
    lock_image = layers.recorded_image(lock)
    if lock_image.digest != lock.record.digest:
        why = f"its layers give {lock_image.digest}, its digest is {lock.record.digest}"
        return failed(name, f"the lock's record contradicts itself: {why}")
    if lock_image.digest == image.digest:
        return passed(name, f"the lock records {lock_image.digest}")
    if lock_image.config == image.raw:
        return passed(name, f"the lock records {lock_image.digest}; this image has other compressed layers")
    recorded = {layer.name: layer.diff_id for layer in lock_image.layers}
    diff_ids = {name: layer.diff_id for name, layer in zip(image.names, image.layers, strict=True)}
    other = [name for name in recorded | diff_ids if recorded.get(name) != diff_ids.get(name)]
    words = f"other layers: {', '.join(other)}" if other else "the same layers, another config"
    return failed(name, f"the lock records {lock_image.digest}, and this is {image.digest}: {words}")
