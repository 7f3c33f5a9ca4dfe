"""Check the bytes of an image against each other and against its lock, step by step; compare layers."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import zip_longest
from typing import IO, cast

from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, ImagegenError
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members
from imagegen.core.net import Client, NotFoundError, UnavailableError
from imagegen.core.oci import (
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
from imagegen.core.progress import Progress, human
from imagegen.core.text import counted
from imagegen.image import layers
from imagegen.image.inventory.archive import Hashed, Plain, piped
from imagegen.image.inventory.layers import Stream
from imagegen.image.layers.image import LABEL
from imagegen.plan.lock import inputs_hash
from imagegen.plan.lock.file import loads_attached
from imagegen.plan.lock.model import Lock
from imagegen.supply.compare.operands import ImageLocation, platform_of


class StepStatus(Enum):
    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    ABSENT = "absent"  # the artifact does not exist, and nothing requires it
    UNCHECKED = "not checked"
    NOT_DONE = "not done"  # required, but not permitted


@dataclass(frozen=True)
class StepResult:
    """The result of the check of the artifact `name`; `evidence` describes the observation."""

    name: str
    outcome: StepStatus
    evidence: str


@dataclass(frozen=True)
class ImageVerdict:
    """The results for an image or index. `digest` is None if the manifest could not be read.

    For an index, `platforms` has the verdict on the image of each platform.
    """

    reference: str
    digest: str | None
    steps: tuple[StepResult, ...]
    platforms: Mapping[str, ImageVerdict] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """True if no step failed and all required steps were done."""
        return not self.wrong and not self._steps(StepStatus.NOT_DONE)

    @property
    def wrong(self) -> tuple[StepResult, ...]:
        return self._steps(StepStatus.FAIL)

    @property
    def wrong_names(self) -> str:
        return ", ".join(dict.fromkeys(step.name for step in self.wrong))

    def _steps(self, outcome: StepStatus) -> tuple[StepResult, ...]:
        return tuple(step for step in self._all_steps if step.outcome is outcome)

    @property
    def _all_steps(self) -> tuple[StepResult, ...]:
        """The steps of the index and of its images; the platform is part of the name."""
        images = self.platforms.items()
        nested = [
            replace(step, name=f"{platform} {step.name}") for platform, verdict in images for step in verdict.steps
        ]
        return (*self.steps, *nested)

    @property
    def sentence(self) -> str:
        """The verdict in one line, with the steps that failed, or that were not done or not checked."""
        if self.wrong:
            return f"{self.reference} does not match its lock: {self.wrong_names}"
        undone = [
            f"{step.name} {step.outcome.value}: {step.evidence}"
            for step in (*self._steps(StepStatus.NOT_DONE), *self._steps(StepStatus.UNCHECKED))
        ]
        success = "each image of {} matches its lock" if self.platforms else "{} matches its lock"
        return "; ".join([success.format(self.reference), *undone])


def passed(name: str, evidence: str) -> StepResult:
    return StepResult(name, StepStatus.PASS, evidence)


def failed(name: str, evidence: str) -> StepResult:
    return StepResult(name, StepStatus.FAIL, evidence)


# Find the first file that differs between two layers. They are read as streams and not unpacked.
#
# Source: POSIX.1-2001 (ustar, pax) as the standard library reads it.

_BUFFER = 1 << 16
_READ_SIZE = 1 << 20
_HEAD_SIZE = 16  # bytes, the size of the header of byte-code


@dataclass(frozen=True)
class FileEntry:
    """A file's header and content hash; `head` has the first bytes of the content."""

    path: str
    kind: bytes
    mode: int
    uid: int
    gid: int
    names: tuple[str, str]  # of user and group
    mtime: float
    size: int
    target: str
    pax: tuple[tuple[str, str], ...]
    sha256: str
    head: bytes = b""

    def timeless(self) -> FileEntry:
        """Return the entry without its times."""
        pax = tuple(pair for pair in self.pax if pair[0] not in ("mtime", "atime", "ctime"))
        return replace(self, mtime=0, pax=pax)


@dataclass(frozen=True)
class EntryDifference:
    """The first entry that differs, in the published and the rebuilt layer; None if the layer does not have it."""

    path: str
    published: FileEntry | None
    rebuilt: FileEntry | None
    order: bool = False  # the rebuilt layer has the same path at another position

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the entry that differ."""
        if self.published is None or self.rebuilt is None:
            return ()
        names = ("kind", "mode", "uid", "gid", "names", "mtime", "size", "target", "pax", "sha256")
        return tuple(name for name in names if getattr(self.published, name) != getattr(self.rebuilt, name))


def entries(tar: Stream) -> Iterator[FileEntry]:
    """Yield the entries of an uncompressed layer, in its order. Raises FetchError for a malformed tar."""
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", tar), mode="r|", bufsize=_BUFFER, tarinfo=Bounded) as archive:
            allowance = Allowance()
            for member in members(archive):
                texts = (member.name, member.linkname, *member.pax_headers, *member.pax_headers.values())
                if not allowance.take(member.size, *texts):
                    raise FetchError(
                        "a layer is larger than the limit",
                        code="fetch-layer-too-large",
                        where=member.name,
                        why="it may be a decompression bomb",
                    )
                yield _entry(member, archive)
    except DAMAGED as error:
        raise FetchError("a layer cannot be read", code="fetch-layer-invalid", why=str(error)) from error


def _entry(member: tarfile.TarInfo, archive: tarfile.TarFile) -> FileEntry:
    digest, head = hashlib.sha256(), b""
    content = archive.extractfile(member) if member.isreg() else None
    while content is not None and (chunk := content.read(_READ_SIZE)):
        head = head or chunk[:_HEAD_SIZE]
        digest.update(chunk)
    return FileEntry(
        path=member.name,
        kind=member.type,
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        names=(member.uname, member.gname),
        mtime=member.mtime,
        size=member.size,
        target=member.linkname,
        pax=tuple(sorted(member.pax_headers.items())),
        sha256=digest.hexdigest(),
        head=head,
    )


def first_difference(
    published: list[FileEntry], rebuilt: list[FileEntry], *, times: bool = True
) -> EntryDifference | None:
    """Return the first entry that differs, in the order of the streams; None if all entries are equal.

    Without `times` the times of entries are not compared.
    """
    for old, new in zip_longest(published, rebuilt):
        if old is None or new is None:
            return EntryDifference((old or new).path, old, new)
        if old == new if times else old.timeless() == new.timeless():
            continue
        if old.path == new.path:
            return EntryDifference(old.path, old, new)
        rebuilt_entries = {entry.path: entry for entry in reversed(rebuilt)}
        if old.path not in rebuilt_entries:
            return EntryDifference(old.path, old, None)
        if new.path not in {entry.path for entry in published}:
            return EntryDifference(new.path, None, new)
        return EntryDifference(old.path, old, rebuilt_entries[old.path], order=True)
    return None


# Check the bytes of an image against each other and against the lock that it was built from.
#
# Blobs are hashed while they are read, compressed and uncompressed, and not stored. Sources: OCI image-spec v1.1,
# manifest.md, config.md (diff_ids), layer.md.

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
    with piped(partial(source.stream, layer.digest, layer.size), client.close) as blob:
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
