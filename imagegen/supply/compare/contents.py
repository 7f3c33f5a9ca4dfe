"""An image's bytes: against each other, against its lock, and layer against layer; with the verdict step by step."""

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
    ABSENT = "absent"  # there is nothing to check, and nothing that would demand it
    UNCHECKED = "not checked"
    NOT_DONE = "not done"  # demanded, and not permitted


@dataclass(frozen=True)
class StepResult:
    """The result for one artifact: `name` is the artifact, `evidence` the observation, in words."""

    name: str
    outcome: StepStatus
    evidence: str


@dataclass(frozen=True)
class ImageVerdict:
    """`digest` is of the image's manifest; None where not even that could be read.

    Of an index, `digest` and `steps` are its own, and `platforms` has the verdict on the image of each platform.
    """

    reference: str
    digest: str | None
    steps: tuple[StepResult, ...]
    platforms: Mapping[str, ImageVerdict] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """True if no step failed, and all demanded steps were done."""
        return not self.wrong and not self._steps(StepStatus.NOT_DONE)

    @property
    def wrong(self) -> tuple[StepResult, ...]:
        return self._steps(StepStatus.FAIL)

    @property
    def wrong_names(self) -> str:
        return ", ".join(dict.fromkeys(step.name for step in self.wrong))

    def _steps(self, outcome: StepStatus) -> tuple[StepResult, ...]:
        return tuple(step for step in self._every if step.outcome is outcome)

    @property
    def _every(self) -> tuple[StepResult, ...]:
        """All steps; those on the image of a platform are called by its name too."""
        images = self.platforms.items()
        nested = [replace(step, name=f"{platform} {step.name}") for platform, each in images for step in each.steps]
        return (*self.steps, *nested)

    @property
    def sentence(self) -> str:
        """The verdict in one line: the steps that failed, or those that were not done or not checked."""
        if self.wrong:
            return f"{self.reference} is not what it should be: {self.wrong_names}"
        left = [
            f"{step.name} {step.outcome.value}: {step.evidence}"
            for step in (*self._steps(StepStatus.NOT_DONE), *self._steps(StepStatus.UNCHECKED))
        ]
        is_right = ": each image is what its lock says" if self.platforms else " is what its lock says"
        return "; ".join([f"{self.reference}{is_right}", *left])


def passed(name: str, evidence: str) -> StepResult:
    return StepResult(name, StepStatus.PASS, evidence)


def failed(name: str, evidence: str) -> StepResult:
    return StepResult(name, StepStatus.FAIL, evidence)


# Two layers as streams of files: which is the first that differs, and in what. Nothing is unpacked.
#
# Source: POSIX.1-2001 (ustar, pax) as the standard library reads it.

_BUFFER = 1 << 16
_READ_SIZE = 1 << 20
_KEPT = 16  # bytes of a file's beginning: as many as the header of byte-code has


@dataclass(frozen=True)
class FileEntry:
    """A file's header and content hash; `head` is the content's beginning."""

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
class Pair:
    """The first entry that differs: what is `there` (published) and what is `here` (made again); None: it has none."""

    path: str
    there: FileEntry | None
    here: FileEntry | None
    order: bool = False  # the other stream has the same entry elsewhere

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the entry that differ."""
        if self.there is None or self.here is None:
            return ()
        names = ("kind", "mode", "uid", "gid", "names", "mtime", "size", "target", "pax", "sha256")
        return tuple(name for name in names if getattr(self.there, name) != getattr(self.here, name))


def entries(tar: Stream) -> Iterator[FileEntry]:
    """Yield the entries of an uncompressed layer, in its order. Raises FetchError for a malformed tar."""
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", tar), mode="r|", bufsize=_BUFFER, tarinfo=Bounded) as archive:
            allowance = Allowance()
            for member in members(archive):
                kept = (member.name, member.linkname, *member.pax_headers, *member.pax_headers.values())
                if not allowance.take(member.size, *kept):
                    raise FetchError(
                        "a layer holds more than any layer holds",
                        code="fetch-layer-too-large",
                        where=member.name,
                        why="a bomb",
                    )
                yield _entry(member, archive)
    except DAMAGED as error:
        raise FetchError("a layer cannot be read", code="fetch-layer-invalid", why=str(error)) from error


def _entry(member: tarfile.TarInfo, archive: tarfile.TarFile) -> FileEntry:
    digest, head = hashlib.sha256(), b""
    content = archive.extractfile(member) if member.isreg() else None
    while content is not None and (chunk := content.read(_READ_SIZE)):
        head = head or chunk[:_KEPT]
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


def first_difference(there: list[FileEntry], here: list[FileEntry], *, times: bool = True) -> Pair | None:
    """The first entry, in the order of the streams, that is not the same in both; None: all are, as tar entries go.

    Without `times` entries may differ in them.
    """

    def seen(entry: FileEntry) -> FileEntry:
        return entry if times else entry.timeless()

    for one, other in zip_longest(there, here):
        if one is None or other is None:
            return Pair((one or other).path, one, other)
        if seen(one) == seen(other):
            continue
        if one.path == other.path:
            return Pair(one.path, one, other)
        theirs, ours = ({each.path for each in both} for both in (there, here))
        if one.path not in ours:
            return Pair(one.path, one, None)
        if other.path not in theirs:
            return Pair(other.path, None, other)
        return Pair(one.path, one, next(each for each in here if each.path == one.path), order=True)
    return None


# An image's own bytes against each other, and against the lock that it was made of.
#
# Nothing is kept: blobs are hashed as they come, packed and unpacked. Sources: OCI image-spec v1.1, manifest.md,
# config.md (diff_ids), layer.md.

_CHUNK = 1 << 20
_ANY = Platform("linux", "amd64")  # of an index in an index, which is an error for any platform


@dataclass(frozen=True)
class ReadImage:
    """An image whose manifest and config are those that their digests name; `names` are what its layers are called."""

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
    """An index of several images, which are not read yet, by platform."""

    digest: str
    images: Mapping[str, Descriptor]


def found_at(
    source: ImageLocation, requested: str, where: str
) -> tuple[ReadImage | ReadIndex | None, list[StepResult]]:
    """Return the image or index under a tag or digest with the steps about it; None if they are invalid.

    An index of one image is that image. Raises UnavailableError, NotFoundError.
    """
    try:
        digest, data, kind = source.manifest(requested)
        images = read_images(data, kind, where)
    except (UnavailableError, NotFoundError):
        raise
    except FetchError as error:
        return None, [failed("manifest", error.summary)]
    if images is None:
        return _image(source, digest, data, kind, where)
    if len(images) != 1:
        return _index(digest, data, images)
    ((platform, manifest),) = images
    return image_at(source, manifest, where, platform or None)


def _index(digest: str, data: bytes, images: list[tuple[str, Descriptor]]) -> tuple[ReadIndex | None, list[StepResult]]:
    """Return the index with its step; None where it does not say which image a machine gets."""
    by_platform = dict(sorted(images, key=lambda image: image[0]))
    if not images:
        return None, [failed("index", f"{digest} has no image")]
    if "" in by_platform:
        return None, [failed("index", f"{digest} names no platform for {by_platform[''].digest}")]
    if len(by_platform) < len(images):
        return None, [failed("index", f"{digest} has several images for one platform")]
    by = "" if data == write_image_index(by_platform) else "; another program wrote it"
    step = passed("index", f"{digest}, images for {' and '.join(by_platform)}{by}")
    return ReadIndex(digest, by_platform), [step]


def image_at(
    source: ImageLocation, manifest: Descriptor, where: str, platform: str | None = None
) -> tuple[ReadImage | None, list[StepResult]]:
    """Return an image of an index with the steps about its manifest and config; None if they are invalid.

    `platform` is the one that the index names for it, if it names one. Raises UnavailableError.
    """
    try:
        digest, data, kind = source.manifest(manifest.digest, manifest.size)
    except UnavailableError:
        raise
    except FetchError as error:
        return None, [failed("manifest", error.summary)]
    return _image(source, digest, data, kind, where, platform)


def _image(
    source: ImageLocation, digest: str, data: bytes, kind: str, where: str, platform: str | None = None
) -> tuple[ReadImage | None, list[StepResult]]:
    try:
        read = read_document(data, kind, _ANY, where)
    except FetchError as error:
        return None, [failed("manifest", error.summary)]
    if not isinstance(read, Manifest):
        return None, [failed("manifest", f"an index names {digest}, another index")]
    first = [passed("manifest", f"{digest}, {counted(len(read.layers), 'layer')}, {kind or MANIFEST_TYPE}")]
    try:
        raw = source.document(read.config)
        if len(raw) != read.config.size:
            why = f"{read.config.digest} has {len(raw)} bytes, and the manifest says {read.config.size}"
            return None, [*first, failed("config", why)]
        found = platform_of(raw)
        if platform not in (None, str(found)):
            return None, [*first, failed("config", f"{read.config.digest} is for {found}, the index says {platform}")]
        config, parts = read_config(raw, read, found, where)
    except UnavailableError:
        raise
    except FetchError as error:
        return None, [*first, failed("config", error.summary)]
    step = passed("config", f"{read.config.digest}, {counted(len(parts), 'diff_id')}, for {found}")
    names = _names(raw, len(parts))
    image = ReadImage(digest, data, kind or MANIFEST_TYPE, read.config.digest, raw, config, parts, names)
    return image, [*first, step]


def _names(config: bytes, count: int) -> tuple[str, ...]:
    """Return the names of layers that imagegen made, from the image's history; the numbers of others."""
    history = parse_json(config).get("history")
    entries = history if isinstance(history, list) else []
    names = [str(entry.get("created_by", "")) for entry in entries if isinstance(entry, dict)]
    if len(names) == count and all(name.startswith("imagegen: ") for name in names):
        return tuple(name.removeprefix("imagegen: ") for name in names)
    return tuple(str(number) for number in range(1, count + 1))


def layer_steps(found: ReadImage, source: ImageLocation, client: Client, progress: Progress) -> Iterator[StepResult]:
    """Verify every blob's bytes, packed and unpacked: a step for each layer that differs, or one for all.

    `client` reads the source; it is closed where the registry does not answer, and by an interruption.
    """
    bad = False
    total = sum(layer.size for layer in found.layers)
    with progress.meter("checking layers", total) as meter:
        for name, layer in zip(found.names, found.layers, strict=True):
            if wrong := _wrong(layer, source, client):
                bad = True
                yield failed(f"layer {name}", wrong)
            meter.advance(layer.size)
    if not bad:
        what = counted(len(found.layers), "blob")
        yield passed("layers", f"{what}, {human(total)}, have the digests of the manifest and unpack to the diff_ids")


def _wrong(layer: LayerDescriptor, source: ImageLocation, client: Client) -> str | None:
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


def read_lock(found: ReadImage, attached: bytes) -> tuple[Lock | None, StepResult]:
    """The attached lock, and whether it is the one whose inputs the image's label names."""
    try:
        lock = loads_attached(attached.decode(), "the attached lock")
    except (ImagegenError, UnicodeDecodeError) as error:
        return None, failed("lock", str(error).splitlines()[0])
    label, own = found.config.labels.get(f"{LABEL}inputs"), inputs_hash(lock)
    if label != own:
        return None, failed("lock", f"the image's label says inputs {label}, the lock's are {own}")
    return lock, passed("lock", f"of {lock.cell}, inputs {own}, as the image's label says")


def image_step(found: ReadImage, lock: Lock) -> StepResult:
    """The image that the lock gives, made of its record alone, beside the one that is there."""
    name = "image"
    if lock.record is None:
        return StepResult(
            name, StepStatus.UNCHECKED, "the lock has no record of what it gives: `verify --rebuild` tells"
        )
    made = layers.recorded_image(lock)
    if made.digest != lock.record.digest:
        return failed(name, f"the lock's record contradicts itself: it gives {made.digest}, not {lock.record.digest}")
    if made.digest == found.digest:
        return passed(name, f"what the lock gives is {made.digest}")
    if made.config == found.raw:
        return passed(name, f"what the lock gives is {made.digest}; here its layers are compressed otherwise")
    promised = dict(zip((each.name for each in made.layers), (each.diff_id for each in made.layers), strict=True))
    there = {name: layer.diff_id for name, layer in zip(found.names, found.layers, strict=True)}
    other = [name for name in promised | there if promised.get(name) != there.get(name)]
    words = f"other layers: {', '.join(other)}" if other else "the same layers, another config"
    return failed(name, f"the lock gives {made.digest}, and this is {found.digest}: {words}")
