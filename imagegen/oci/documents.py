"""Documents of OCI images: descriptors, manifests, indexes, configs, artifacts.

Documents are hostile: a registry may send anything, and its data end up in locks. A document of another form is
an error. Sources: OCI image-spec v1.1 (descriptor.md, manifest.md, image-index.md, config.md, layer.md, annotations.md)
and Docker's image manifest version 2, schema 2, which has the same fields under other media types.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Annotated, Any

from imagegen.core.data import parse_json
from imagegen.core.deferred import dataclass
from imagegen.core.errors import FetchError
from imagegen.core.text import unprintable
from imagegen.core.types import Digest, Line, Size, Variable
from imagegen.core.validation import UNWRITTEN, field_info, string

MAX_MANIFEST = 4 << 20  # bytes of a manifest that registries take (distribution-spec v1.1)
MAX_CONFIG = 8 << 20
MAX_LAYERS = 127  # overlay file systems end there
MAX_LAYER = 64 << 30  # bytes
MAX_LIST = 1000  # entries of env and the like
MAX_ENTRIES = 10_000  # of an index

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
TAR_TYPE = "application/vnd.oci.image.layer.v1.tar"
GZIP_TYPE = f"{TAR_TYPE}+gzip"
ZSTD_TYPE = f"{TAR_TYPE}+zstd"
_MANIFESTS = (MANIFEST_TYPE, "application/vnd.docker.distribution.manifest.v2+json")
_INDEXES = (INDEX_TYPE, "application/vnd.docker.distribution.manifest.list.v2+json")
_CONFIGS = (CONFIG_TYPE, "application/vnd.docker.container.image.v1+json")
_DOCKER_TAR = "application/vnd.docker.image.rootfs.diff.tar"
# Media type of a layer -> how it is compressed.
LAYER_TYPES = {TAR_TYPE: "", GZIP_TYPE: "gzip", ZSTD_TYPE: "zstd"}
LAYER_TYPES |= {_DOCKER_TAR: "", f"{_DOCKER_TAR}.gzip": "gzip", f"{_DOCKER_TAR}.zstd": "zstd"}
MediaType = Annotated[str, string("|".join(map(re.escape, LAYER_TYPES)), meaning="the media type of a layer")]
ACCEPT = ", ".join((*_MANIFESTS, *_INDEXES))
REF_NAME = "org.opencontainers.image.ref.name"  # annotation with an image's name in a layout
_TITLE = "org.opencontainers.image.title"  # annotation with the file name of an artifact's blob
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*=")  # it may become an instruction of a Dockerfile


def digest_of(data: bytes) -> str:
    """Return the OCI digest of `data`: "sha256:" and 64 lower-case hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Return whether `text` has the form of an OCI digest, as `digest_of` writes it."""
    return _DIGEST.fullmatch(text) is not None


def canonical_json(value: Any) -> bytes:
    """Return the one form in which imagegen writes configs and manifests of images: their digests depend on it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# Of uname(2) and of the tags of wheels -> as OCI images name it; its architecture is Debian's name as well.
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
MACHINES = {platform: machine for machine, platform in PLATFORMS.items()}


@dataclass(frozen=True)
class Platform:
    os: str
    architecture: str

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


@dataclass(frozen=True)
class Descriptor:
    """A blob as a document names it; `size` in bytes."""

    media_type: str
    digest: Digest
    size: Size

    def as_dict(self) -> dict[str, Any]:
        """Return the descriptor as documents write it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


EMPTY_CONTENT = b"{}"  # the blob of EMPTY, which stands where an image has its config
EMPTY = Descriptor(EMPTY_TYPE, digest_of(EMPTY_CONTENT), len(EMPTY_CONTENT))


@dataclass(frozen=True)
class LayerDescriptor(Descriptor):
    """The blob of a layer, compressed as its media type says; `diff_id` is the digest of the uncompressed tar."""

    media_type: MediaType
    diff_id: Digest

    @classmethod
    def of_tar(cls, diff_id: str, size: int) -> LayerDescriptor:
        """Return the descriptor of a blob of `size` bytes that is the uncompressed tar itself."""
        return LayerDescriptor(TAR_TYPE, diff_id, size, diff_id)

    @property
    def compression(self) -> str:
        """Return how the blob is compressed: gzip, zstd, or not at all."""
        return LAYER_TYPES[self.media_type]

    @property
    def oci_type(self) -> str:
        """Return the media type of the same blob in an OCI manifest, whatever its own manifest uses."""
        return TAR_TYPE + (f"+{self.compression}" if self.compression else "")


@dataclass(frozen=True)
class ImageConfig:
    """The configuration that a container of the image starts with."""

    env: tuple[Variable, ...] = ()
    entrypoint: tuple[Line, ...] = ()
    command: tuple[Line, ...] = ()
    user: Line = ""
    directory: Line = ""
    # for users and tools: no lock holds them
    labels: Annotated[Mapping[str, str], UNWRITTEN] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class RemoteImage:
    """One platform's image, with its manifest's digest, and the parts that the manifest and its config name.

    Annotations and the order of the fields are of a lock, which holds it as a base's content (lock/foundation.py).
    """

    digest: Digest
    config_digest: Annotated[Digest, field_info("config")]
    config: Annotated[ImageConfig, field_info(".config")]
    layers: Annotated[tuple[LayerDescriptor, ...], field_info(min_length=1, max_length=MAX_LAYERS)]


@dataclass(frozen=True)
class Manifest:
    """The manifest of an image, in the form that `media_type` names; layers are from the bottom up."""

    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Return config and layers, each blob once."""
        return tuple({blob.digest: blob for blob in (self.config, *self.layers)}.values())


@dataclass(frozen=True)
class Artifact:
    """A manifest that is not an image's: its type, its annotations, and its blobs with their titles.

    `subject` is the digest of the manifest that it refers to.
    """

    kind: str
    annotations: Mapping[str, str]
    parts: tuple[tuple[str, Descriptor], ...]
    subject: str | None


class _Malformed(Exception):
    """A document with a value that is not valid in an image."""


def read_document(data: bytes, media_type: str, platform: Platform, where: str) -> Descriptor | Manifest:
    """Parse a manifest; of an index, return the descriptor of the platform's manifest.

    `media_type` is the answer's Content-Type. Raises FetchError: of schema 1, of another platform, or malformed.
    """
    with _checking(where):
        document, declared = _load(data, media_type, where)
        if declared in _INDEXES:
            return _choose(document.get("manifests"), platform, where)
        return _manifest(document, declared)


def read_manifest(data: bytes, where: str) -> Manifest:
    """Parse the manifest of an image. Raises FetchError."""
    with _checking(where):
        return _manifest(*_load(data, MANIFEST_TYPE, where))


def read_artifact(data: bytes, media_type: str, where: str) -> Artifact:
    """Parse the manifest of an artifact; `media_type` is the answer's Content-Type. Raises FetchError."""
    with _checking(where):
        document, declared = _load(data, media_type, where)
        _require(declared == MANIFEST_TYPE, f"its media type is {declared!r}")
        config = _descriptor(document.get("config"))
        kind = document.get("artifactType", config.media_type)  # which stands for it where there is none
        layers = tuple(
            (_annotations(entry).get(_TITLE, ""), _descriptor(entry))
            for entry in _list(document.get("layers"), "layers")
        )
        _require(all(blob.size <= MAX_LAYER for _, blob in layers), "a part of it would be larger than any layer")
        subject = _descriptor(document["subject"]).digest if document.get("subject") is not None else None
        return Artifact(_text(kind), _annotations(document), layers, subject)


def read_index(data: bytes, where: str) -> list[Any]:
    """Return the entries of an index as they are written; `read_entry` parses one. Raises FetchError."""
    with _checking(where):
        document, declared = _load(data, INDEX_TYPE, where)
        _require(declared in _INDEXES, f"its media type is {declared!r}")
        return _list(document.get("manifests"), "manifests", MAX_ENTRIES)


def read_images(data: bytes, media_type: str, where: str) -> list[tuple[str, Descriptor]] | None:
    """Return the images of an index as (platform, manifest), "" for an unnamed platform; None for a manifest.

    `media_type` is the answer's Content-Type. BuildKit's attestations are left out. Raises FetchError.
    """
    with _checking(where):
        document, declared = _load(data, media_type, where)
        if declared not in _INDEXES:
            return None
        entries = [_table(item, "an entry of its index") for item in _list(document.get("manifests"), "manifests")]
        platforms = [(_platform(entry), entry) for entry in entries]
        return [
            (str(platform or ""), _descriptor(manifest))
            for platform, manifest in platforms
            if not _is_attestation(platform)
        ]


def write_image_index(images: Mapping[str, Descriptor]) -> bytes:
    """Return the index of an image's manifests by platform ("linux/arm64"); only these decide its bytes.

    Source: OCI image-spec v1.1, image-index.md.
    """
    entries = []
    for platform, manifest in sorted(images.items()):
        system, _, architecture = platform.partition("/")
        entries.append(manifest.as_dict() | {"platform": {"os": system, "architecture": architecture}})
    return canonical_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries})


def read_entry(entry: Any) -> tuple[Descriptor, str, dict[str, str]] | None:
    """Parse an index's entry into a descriptor, its artifact type ("" for none), and annotations in plain text.

    None if `entry` is invalid or has a digest of another kind, because others may list any value.
    """
    try:
        descriptor = _descriptor(entry)
        kind = _text(entry.get("artifactType", ""))
        annotations = _table(entry.get("annotations") or {}, "annotations")
    except _Malformed:
        return None
    texts = {name: text for name, text in annotations.items() if isinstance(text, str)}
    return descriptor, kind, {name: text for name, text in texts.items() if unprintable(name + text) is None}


def read_config(
    data: bytes, manifest: Manifest, platform: Platform, where: str
) -> tuple[ImageConfig, tuple[LayerDescriptor, ...]]:
    """Return the config, checked against its manifest and the platform, and the layers of both. Raises FetchError."""
    with _checking(where):
        document = _json(data)
        config_platform = Platform(_text(document.get("os")), _text(document.get("architecture")))
        if config_platform != platform:
            fix = "take one for that platform"
            raise FetchError(
                f"{where} is an image for {config_platform}, not for {platform}", code="fetch-wrong-platform", fix=fix
            )
        rootfs = _table(document.get("rootfs"), "rootfs")
        diff_ids = tuple(_digest(item) for item in _list(rootfs.get("diff_ids"), "diff_ids"))
        count = len(manifest.layers)
        _require(len(diff_ids) == count, f"its config has {len(diff_ids)} layers, its manifest {count}")
        settings = _table(document.get("config") or {}, "config")
        env = _strings(settings.get("Env"), "Env")
        _require(all(map(_VARIABLE.match, env)), "a variable of its environment has no value, or a name that is none")
        config = ImageConfig(
            env=env,
            entrypoint=_strings(settings.get("Entrypoint"), "Entrypoint"),
            command=_strings(settings.get("Cmd"), "Cmd"),
            user=_text(settings.get("User") or ""),
            directory=_text(settings.get("WorkingDir") or ""),
            labels={str(name): str(value) for name, value in _table(settings.get("Labels") or {}, "Labels").items()},
        )
        pairs = zip(manifest.layers, diff_ids, strict=True)
        return config, tuple(LayerDescriptor(**vars(blob), diff_id=diff_id) for blob, diff_id in pairs)


def write_manifest(config: Descriptor, layers: Iterable[Descriptor]) -> bytes:
    """Return the manifest of an image; layers are from the bottom up."""
    blobs = [layer.as_dict() for layer in layers]
    document = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config.as_dict(), "layers": blobs}
    return canonical_json(document)


def write_artifact(
    kind: str,
    layers: Iterable[tuple[str | None, Descriptor]],
    annotations: Mapping[str, str],
    subject: Descriptor | None = None,
) -> bytes:
    """Return the manifest of an artifact of type `kind`: its blobs with their titles, if any, and its subject."""
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": kind,
        "config": EMPTY.as_dict(),
        "layers": [blob.as_dict() | ({"annotations": {_TITLE: title}} if title else {}) for title, blob in layers],
        "annotations": dict(annotations),
    }
    if subject:
        document["subject"] = subject.as_dict()
    return json.dumps(document, sort_keys=True).encode()


@contextmanager
def _checking(where: str) -> Iterator[None]:
    """Turn _Malformed into a FetchError about the document that `where` names."""
    try:
        yield
    except _Malformed as error:
        why = str(error)
        raise FetchError(
            f"{where} is described in a way that imagegen does not take", code="fetch-manifest-unsupported", why=why
        ) from error


def _load(data: bytes, media_type: str, where: str) -> tuple[dict[str, Any], Any]:
    """Return a manifest or index and its media type, for which `media_type` stands where it names none."""
    document = _json(data)
    if document.get("schemaVersion") == 1:
        raise FetchError(
            f"{where} is an image in Docker's old format",
            code="fetch-manifest-unsupported",
            why="its manifest has schema version 1, which names layers without saying what they unpack to",
            fix="take a newer image, or push this one again with a current Docker",
        )
    _require(document.get("schemaVersion") == 2, "its schemaVersion is not 2")
    # One document must not be read as an index by one and as a manifest by another (CVE-2021-41190).
    _require(not {"manifests", "layers"} <= document.keys(), "it is an index and a manifest at once")
    return document, document.get("mediaType", media_type.partition(";")[0].strip())


def _choose(entries: Any, platform: Platform, where: str) -> Descriptor:
    """Return the platform's first manifest without a processor variant, else its first manifest."""
    fitting: list[tuple[bool, int, dict[str, Any]]] = []
    offered: list[str] = []
    for entry in (_table(item, "an entry of its index") for item in _list(entries, "manifests")):
        offered_platform = _platform(entry)
        if offered_platform == platform:
            fitting.append((entry["platform"].get("variant") not in (None, "", "v1"), len(fitting), entry))
        elif offered_platform and not _is_attestation(offered_platform):
            offered.append(str(offered_platform))
    if not fitting:
        names = ", ".join(dict.fromkeys(offered)) or "nothing"
        raise FetchError(f"{where} is not made for {platform}", code="fetch-wrong-platform", why=f"it offers {names}")
    chosen = _descriptor(min(fitting, key=operator.itemgetter(0, 1))[2])
    _require(chosen.media_type in _MANIFESTS, f"its entry for {platform} is a {chosen.media_type!r}")
    _require(chosen.size <= MAX_MANIFEST, f"its manifest would have {chosen.size} bytes")
    return chosen


def _platform(entry: dict[str, Any]) -> Platform | None:
    """Return the platform of an index's entry; None where it names none."""
    described = _table(entry.get("platform") or {}, "platform")
    return Platform(str(described.get("os")), str(described.get("architecture"))) if described else None


def _is_attestation(platform: Platform | None) -> bool:
    """Return whether an entry's platform is the one with which BuildKit marks attestations."""
    return platform is not None and "unknown" in (platform.os, platform.architecture)


def _manifest(document: dict[str, Any], media_type: Any) -> Manifest:
    _require(media_type in _MANIFESTS, f"its media type is {media_type!r}")
    config = _descriptor(document.get("config"))
    _require(config.media_type in _CONFIGS, f"it is not a container image: its config is a {config.media_type!r}")
    _require(config.size <= MAX_CONFIG, f"its config would have {config.size} bytes")
    layers = tuple(_descriptor(item) for item in _list(document.get("layers"), "layers"))
    _require(0 < len(layers) <= MAX_LAYERS, f"it has {len(layers)} layers")
    for layer in layers:
        _require(layer.media_type in LAYER_TYPES, f"it has a layer of the type {layer.media_type!r}")
        _require(layer.size <= MAX_LAYER, f"a layer would have {layer.size} bytes")
    return Manifest(media_type, config, layers)


def _descriptor(value: Any) -> Descriptor:
    entry = _table(value, "a descriptor")
    size = entry.get("size")
    _require(isinstance(size, int) and not isinstance(size, bool) and size >= 0, f"a size is {size!r}")
    return Descriptor(_text(entry.get("mediaType")), _digest(entry.get("digest")), int(str(size)))


def _annotations(value: Any) -> dict[str, str]:
    entries = _table(_table(value, "a descriptor").get("annotations") or {}, "annotations")
    return {_text(name): _text(text) for name, text in entries.items()}


def _json(data: bytes) -> dict[str, Any]:
    try:
        return _table(parse_json(data), "it")
    except ValueError as error:
        raise _Malformed(f"it is not JSON: {error}") from error


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise _Malformed(why)


def _table(value: Any, subject: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Malformed(f"{subject} is not a JSON object")
    return value


def _list(value: Any, subject: str, most: int = MAX_LIST) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise _Malformed(f"{subject} is not a list of at most {most} entries")
    return value


def _strings(value: Any, subject: str) -> tuple[str, ...]:
    return tuple(_text(item) for item in _list([] if value is None else value, subject))


def _text(value: Any) -> str:
    """Return text that a lock can hold and an engine can be given."""
    if not isinstance(value, str) or unprintable(value) is not None:
        raise _Malformed(f"{value!r} is not plain text")
    return value


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not is_digest(value):
        raise _Malformed(f"{value!r} is not a sha256 digest")
    return value
