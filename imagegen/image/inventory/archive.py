"""An image in an archive, as `docker save` writes it and as OCI layouts have it: its config and its layers' entries.

An archive is read once, from its first byte to its last: layers come before the documents that give their order.
Sources: OCI image-spec v1.1, image-layout.md; Docker image specification v1.2 (manifest.json), for engines that do
not write an OCI layout yet.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members
from imagegen.image.inventory.layers import LayerEntry, Stream
from imagegen.image.inventory.streams import PrefixedStream, layer
from imagegen.oci.documents import (
    ImageConfig,
    LayerDescriptor,
    Manifest,
    Platform,
    digest_of,
    read_config,
    read_document,
    read_entry,
    read_index,
)
from imagegen.oci.layout import BLOBS, INDEX_FILE, LAYOUT_FILE, blob_name

_BLOCK = 1 << 20
_MAX_FILES = 10_000
_MAX_DOCUMENTS = 64 << 20  # bytes, of all
_MAX_DEPTH = 4  # indexes in indexes
_MANIFEST = "manifest.json"
_OTHERS = ("VERSION", "repositories", LAYOUT_FILE)


@dataclass(frozen=True)
class ArchivedImage:
    """An image, read: `layers` from the bottom up."""

    config: ImageConfig
    layers: tuple[list[LayerEntry], ...]


def read(stream: Stream, platform: Platform, where: str, scratch: Path) -> ArchivedImage:
    """The one image of an archive, for `platform`. `scratch` as for `read_layer`. Raises FetchError."""
    archive = _Archive(where, scratch)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", bufsize=_BLOCK, tarinfo=Bounded) as tar:
            for member in members(tar):
                archive.add(member, tar)
    except DAMAGED as error:
        raise FetchError(f"{where} is not an archive of an image", code="fetch-not-an-image", why=str(error)) from error
    return archive.contents(platform)


class _Archive:
    """The members of the archive, by the names that its own documents use."""

    def __init__(self, where: str, scratch: Path) -> None:
        self._where, self._scratch = where, scratch
        self._documents: dict[str, bytes] = {}
        self._layers: dict[str, list[LayerEntry]] = {}
        self._links: dict[str, str] = {}
        self._held = 0  # bytes of documents
        self._allowance = Allowance()

    def add(self, member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
        """A file is a document, which is short JSON, or else a layer."""
        name = member.name
        if len(self._documents) + len(self._layers) + len(self._links) >= _MAX_FILES:
            raise FetchError(f"{self._where} holds too many files", code="fetch-image-too-large", where=member.name)
        if member.issym():  # the same layer once more, as old engines write it
            self._links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            return
        content = tar.extractfile(member) if member.isreg() else None
        if content is None or posixpath.basename(name) in _OTHERS:
            return
        head = content.read(1)
        if head in (b"{", b"["):
            self._held += member.size
            if self._held > _MAX_DOCUMENTS:
                raise FetchError(
                    f"{self._where} has too many bytes outside of its layers",
                    code="fetch-image-too-large",
                    where=member.name,
                )
            self._documents[name] = head + content.read()
        elif head:
            digest = f"sha256:{posixpath.basename(name)}" if name.startswith(f"{BLOBS}/") else None
            blob, where = PrefixedStream(head, content), f"{self._where}: {name}"
            self._layers[name] = layer(blob, digest, where, self._scratch, self._allowance)

    def contents(self, platform: Platform) -> ArchivedImage:
        if INDEX_FILE in self._documents:
            index = self._documents[INDEX_FILE]
            config, descriptors = chosen(
                index, lambda digest: self._documents.get(blob_name(digest)), platform, self._where
            )
            names = [blob_name(descriptor.digest) for descriptor in descriptors]
        else:
            config, names = self._classic()
        layers = [self._layers.get(self._links.get(name, name)) for name in names]
        if None in layers:
            raise FetchError(
                f"{self._where} lacks a layer",
                code="fetch-image-incomplete",
                why=f"{names[layers.index(None)]} is not in it",
            )
        return ArchivedImage(config, tuple(entries for entries in layers if entries is not None))

    def _classic(self) -> tuple[ImageConfig, list[str]]:
        """Return the config and layers of the one image in manifest.json."""
        try:
            (entry,) = parse_json(self._documents[_MANIFEST])
            settings = parse_json(self._documents[posixpath.normpath(entry["Config"])]).get("config") or {}
            config = ImageConfig(
                env=tuple(str(variable) for variable in settings.get("Env") or ()),
                entrypoint=tuple(str(word) for word in settings.get("Entrypoint") or ()),
                command=tuple(str(word) for word in settings.get("Cmd") or ()),
                user=str(settings.get("User") or ""),
                directory=str(settings.get("WorkingDir") or ""),
                labels={str(name): str(value) for name, value in (settings.get("Labels") or {}).items()},
            )
            return config, [posixpath.normpath(path) for path in entry["Layers"]]
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise FetchError(
                f"{self._where} is not an archive of one image", code="fetch-not-an-image", why=f"{_MANIFEST}: {error}"
            ) from error


def chosen(
    index: bytes, document: Callable[[str], bytes | None], platform: Platform, where: str, digest: str | None = None
) -> tuple[ImageConfig, tuple[LayerDescriptor, ...]]:
    """Config and layers of the one image that an OCI layout's index names, or of the one with this digest.

    `document` gives a blob by digest. Raises FetchError.
    """
    try:
        manifests = [entry[0] for entry in map(read_entry, read_index(index, where)) if entry]
    except FetchError as error:
        why = f"{INDEX_FILE}: {error.why}"
        raise FetchError(f"{where} is not an OCI layout", code="fetch-not-a-layout", why=why) from error
    entries = {manifest.digest: manifest.media_type for manifest in manifests}
    required = [entry_digest for entry_digest in entries if digest in (None, entry_digest)]
    if len(required) != 1:
        problem = f"{where} holds {len(required)} images" if digest is None else f"{where} has no image {digest}"
        raise FetchError(
            problem, code="fetch-not-an-image", why=", ".join(entries), fix="name one of them: oci:DIR@DIGEST"
        )
    name, kind = required[0], entries[required[0]]
    for _ in range(_MAX_DEPTH):
        read = read_document(_blob(document, name, where), kind, platform, where)
        if isinstance(read, Manifest):
            return read_config(_blob(document, read.config.digest, where), read, platform, where)
        name, kind = read.digest, read.media_type
    raise FetchError(f"{where} is described in circles", code="fetch-nested-index")


def _blob(document: Callable[[str], bytes | None], digest: str, where: str) -> bytes:
    data = document(digest)
    if data is None or digest_of(data) != digest:
        raise FetchError(
            f"{where} lacks a blob that it names",
            code="fetch-image-incomplete",
            why=f"{digest} is not there" if data is None else "it is damaged",
        )
    return data
