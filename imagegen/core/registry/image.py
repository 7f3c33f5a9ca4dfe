"""Parse a registry's documents: image indexes, manifests, configs. Pure: bytes in, dataclasses out, or an error.

Sources: OCI image-spec v1.1 (image-index.md, manifest.md, config.md, descriptor.md) and Docker's image manifest version
2, schema 2, which say the same under other media types.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import Field

from imagegen.core.errors import FetchError
from imagegen.core.store.layout import is_digest
from imagegen.core.text import unprintable
from imagegen.core.types import Digest, Line, Size, Variable, string

MAX_DOCUMENT = 4 << 20  # bytes: what registries take of a manifest (distribution-spec v1.1)
MAX_CONFIG = 8 << 20
_MAX_LAYERS = 127  # overlay file systems end there
_MAX_LAYER = 64 << 30  # bytes
MAX_LIST = 1000  # entries of env and the like

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
# Media type of a layer -> how it is compressed.
LAYERS = {
    _OCI_LAYER: "",
    f"{_OCI_LAYER}+gzip": "gzip",
    f"{_OCI_LAYER}+zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "zstd",
}
MediaType = Annotated[str, string("|".join(map(re.escape, LAYERS)), meaning="the media type of a layer")]
ACCEPT = ", ".join((*_MANIFESTS, *_INDEXES))
_TITLE = "org.opencontainers.image.title"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*=")  # it may become an instruction of a Dockerfile

T = TypeVar("T")


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
    digest: str
    size: int


@dataclass(frozen=True)
class RemoteLayer:
    """One layer, from the bottom up; `size` is of the compressed blob, `diff_id` of what it unpacks to."""

    media_type: MediaType
    digest: Digest
    size: Size
    diff_id: Digest

    @property
    def compression(self) -> str:
        """Return how the blob is compressed: gzip, zstd, or not at all."""
        return LAYERS[self.media_type]

    @property
    def oci_type(self) -> str:
        """The media type of the same blob in an OCI manifest, whatever its own manifest uses."""
        return _OCI_LAYER + (f"+{self.compression}" if self.compression else "")


@dataclass(frozen=True)
class Config:
    """The configuration that a container of the image starts with."""

    env: tuple[Variable, ...] = ()
    entrypoint: tuple[Line, ...] = ()
    command: tuple[Line, ...] = ()
    user: Line = ""
    directory: Line = ""
    # for users and tools: no lock holds them
    labels: Annotated[Mapping[str, str], Field(init=False)] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class RemoteImage:
    """One platform's image: the digest of its manifest, and the parts that the manifest and its config name.

    Annotations and the order of the fields are of a lock, which holds it as the content of a base (plan/lock/base.py).
    """

    digest: Digest
    config_digest: Annotated[Digest, Field(alias="config")]
    config: Annotated[Config, Field(alias=".config")]
    layers: Annotated[tuple[RemoteLayer, ...], Field(min_length=1, max_length=127)]


@dataclass(frozen=True)
class Manifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]


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
    """The manifest in `data`; of an index, the descriptor of the platform's manifest.

    `media_type` is the answer's Content-Type. Raises FetchError: of schema 1, of another platform, or malformed.
    """
    document = _json(data, where)
    declared = document.get("mediaType", media_type.partition(";")[0].strip())
    if document.get("schemaVersion") == 1:
        raise FetchError(
            f"{where} is an image in Docker's old format",
            code="fetch-manifest-unsupported",
            why="its manifest has schema version 1, which names layers without saying what they unpack to",
            fix="take a newer image, or push this one again with a current Docker",
        )

    def read() -> Descriptor | Manifest:
        _require(document.get("schemaVersion") == 2, "its schemaVersion is not 2")
        # One document must not be read as an index by one and as a manifest by another (CVE-2021-41190).
        _require(not {"manifests", "layers"} <= document.keys(), "it is an index and a manifest at once")
        if declared in _INDEXES:
            return _choose(document.get("manifests"), platform, where)
        _require(declared in _MANIFESTS, f"its media type is {declared!r}")
        return _manifest(document)

    return _checked(read, where)


def read_artifact(data: bytes, media_type: str, where: str) -> Artifact:
    """The artifact whose manifest is `data`; `media_type` is the answer's Content-Type. Raises FetchError."""
    document = _json(data, where)

    def read() -> Artifact:
        declared = document.get("mediaType", media_type.partition(";")[0].strip())
        _require(document.get("schemaVersion") == 2 and declared == _MANIFESTS[0], f"its media type is {declared!r}")
        _require("manifests" not in document, "it is an index and a manifest at once")
        config = _descriptor(document.get("config"))
        kind = document.get("artifactType", config.media_type)  # which stands for it where there is none
        parts = tuple(
            (_annotations(each).get(_TITLE, ""), _descriptor(each)) for each in _list(document.get("layers"), "layers")
        )
        _require(all(blob.size <= _MAX_LAYER for _, blob in parts), "a part of it would be larger than any layer")
        subject = _descriptor(document["subject"]).digest if document.get("subject") is not None else None
        return Artifact(_text(kind), _annotations(document), parts, subject)

    return _checked(read, where)


def entries_of(index: bytes, where: str) -> list[Any]:
    """Return the entries of an index, unparsed. Raises FetchError for anything else."""
    document = _json(index, where)

    def read() -> list[Any]:
        declared = document.get("mediaType", _INDEXES[0])
        _require(document.get("schemaVersion") == 2 and declared in _INDEXES, f"its media type is {declared!r}")
        _require("layers" not in document, "it is an index and a manifest at once")
        return _list(document.get("manifests"), "manifests")

    return _checked(read, where)


def read_entry(entry: Any) -> tuple[Descriptor, str, dict[str, str]] | None:
    """An index's entry for an artifact: what it names, its type ("" for none) and annotations, those in plain text.

    None for what is no entry, or has a digest of another kind: others may list what they like.
    """
    try:
        descriptor = _descriptor(entry)
        kind = _text(entry.get("artifactType", ""))
        annotations = _table(entry.get("annotations") or {}, "annotations")
    except _Malformed:
        return None
    plain = {
        name: text for name, text in annotations.items() if isinstance(text, str) and unprintable(name + text) is None
    }
    return descriptor, kind, plain


def read_config(
    data: bytes, manifest: Manifest, platform: Platform, where: str
) -> tuple[Config, tuple[RemoteLayer, ...]]:
    """Return the config, checked against its manifest and the platform, and the layers of both. Raises FetchError."""
    document = _json(data, where)

    def read() -> tuple[Config, tuple[RemoteLayer, ...]]:
        found = Platform(_text(document.get("os")), _text(document.get("architecture")))
        if found != platform:
            raise FetchError(
                f"{where} is an image for {found}, not for {platform}",
                code="fetch-wrong-platform",
                fix="take one for that platform",
            )
        rootfs = _table(document.get("rootfs"), "rootfs")
        diff_ids = tuple(_digest(each) for each in _list(rootfs.get("diff_ids"), "diff_ids"))
        _require(
            len(diff_ids) == len(manifest.layers),
            f"its config knows {len(diff_ids)} layers, its manifest {len(manifest.layers)}",
        )
        settings = _table(document.get("config") or {}, "config")
        env = _strings(settings.get("Env"), "Env")
        _require(all(map(_VARIABLE.match, env)), "a variable of its environment has no value, or a name that is none")
        config = Config(
            env=env,
            entrypoint=_strings(settings.get("Entrypoint"), "Entrypoint"),
            command=_strings(settings.get("Cmd"), "Cmd"),
            user=_text(settings.get("User") or ""),
            directory=_text(settings.get("WorkingDir") or ""),
            labels={str(name): str(value) for name, value in _table(settings.get("Labels") or {}, "Labels").items()},
        )
        pairs = zip(manifest.layers, diff_ids, strict=True)
        return config, tuple(RemoteLayer(each.media_type, each.digest, each.size, diff_id) for each, diff_id in pairs)

    return _checked(read, where)


def _choose(entries: Any, platform: Platform, where: str) -> Descriptor:
    """Return the platform's manifest: the first without a processor variant, else the first."""
    fitting: list[tuple[bool, int, dict[str, Any]]] = []
    offered: list[str] = []
    for entry in (_table(each, "an entry of its index") for each in _list(entries, "manifests")):
        described = _table(entry.get("platform") or {}, "platform")
        found = Platform(str(described.get("os")), str(described.get("architecture")))
        if found == platform:
            fitting.append((described.get("variant") not in (None, "", "v1"), len(fitting), entry))
        elif "unknown" not in (found.os, found.architecture):  # so BuildKit marks attestations
            offered.append(str(found))
    if not fitting:
        names = ", ".join(dict.fromkeys(offered)) or "nothing"
        raise FetchError(f"{where} is not made for {platform}", code="fetch-wrong-platform", why=f"it offers {names}")
    chosen = _descriptor(min(fitting, key=operator.itemgetter(0, 1))[2])
    _require(chosen.media_type in _MANIFESTS, f"its entry for {platform} is a {chosen.media_type!r}")
    _require(chosen.size <= MAX_DOCUMENT, f"its manifest would have {chosen.size} bytes")
    return chosen


def _manifest(document: dict[str, Any]) -> Manifest:
    config = _descriptor(document.get("config"))
    _require(config.media_type in _CONFIGS, f"it is no container image: its config is a {config.media_type!r}")
    _require(config.size <= MAX_CONFIG, f"its config would have {config.size} bytes")
    layers = tuple(_descriptor(each) for each in _list(document.get("layers"), "layers"))
    _require(0 < len(layers) <= _MAX_LAYERS, f"it has {len(layers)} layers")
    for layer in layers:
        _require(layer.media_type in LAYERS, f"it has a layer of the type {layer.media_type!r}")
        _require(layer.size <= _MAX_LAYER, f"a layer would have {layer.size} bytes")
    return Manifest(config, layers)


def _descriptor(value: Any) -> Descriptor:
    entry = _table(value, "a descriptor")
    size = entry.get("size")
    _require(isinstance(size, int) and not isinstance(size, bool) and size >= 0, f"a size is {size!r}")
    return Descriptor(_text(entry.get("mediaType")), _digest(entry.get("digest")), int(str(size)))


def _annotations(value: Any) -> dict[str, str]:
    entries = _table(_table(value, "a descriptor").get("annotations") or {}, "annotations")
    return {_text(name): _text(text) for name, text in entries.items()}


def _json(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _malformed(where, f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise _malformed(where, "it is no JSON object")
    return document


def _checked(read: Callable[[], T], where: str) -> T:
    try:
        return read()
    except _Malformed as error:
        raise _malformed(where, str(error)) from error


def _malformed(where: str, why: str) -> FetchError:
    return FetchError(
        f"{where} is described in a way that imagegen does not take", code="fetch-manifest-unsupported", why=why
    )


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise _Malformed(why)


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Malformed(f"{what} is no JSON object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_LIST:
        raise _Malformed(f"{what} is no list of at most {MAX_LIST} entries")
    return value


def _strings(value: Any, what: str) -> tuple[str, ...]:
    return tuple(_text(each) for each in _list([] if value is None else value, what))


def _text(value: Any) -> str:
    """Text that a lock can hold and an engine can be given."""
    if not isinstance(value, str) or unprintable(value) is not None:
        raise _Malformed(f"{value!r} is no plain text")
    return value


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not is_digest(value):
        raise _Malformed(f"{value!r} is no sha256 digest")
    return value
