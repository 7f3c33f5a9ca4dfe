"""An image as it lies in a registry after a publish: layers that imagegen wrote, and all that is attached to it.

It is put into the stand-in of registry_server.py, which keeps no lists of referrers: the tag that clients keep in its
place stands there (OCI distribution-spec v1.1, "Referrers Tag Schema").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imagegen.core.store import Store
from imagegen.image import base, layers
from imagegen.image.layers.codec import LayerSink
from imagegen.image.layers.plan import plan
from imagegen.image.layers.tar import TarWriter
from imagegen.lock import dumps_attached
from imagegen.lock.model import Lock
from imagegen.oci.documents import (
    EMPTY,
    EMPTY_CONTENT,
    INDEX_TYPE,
    MANIFEST_TYPE,
    ZSTD_TYPE,
    Descriptor,
    write_artifact,
)
from imagegen.oci.registry.referrers import fallback_tag
from tests.support.registry_server import StandIn, digest_of


def made(lock: Lock, store: Store, **files: bytes) -> tuple[Lock, layers.Image]:
    """The lock with its record, and its image in the store; a layer named in `files` holds these bytes in its file."""
    rows = [("base", base.key(lock.base)), *((part.name, part.key) for part in plan(lock))]
    image = layers.image(lock, [_layer(store, name, key, files.get(name, name.encode())) for name, key in rows])
    store.write(image.config)
    store.write(image.manifest)
    return replace(lock, record=layers.record_of(image)), image


def _layer(store: Store, name: str, key: str, content: bytes) -> layers.Layer:
    with store.writer() as blob:
        sink = LayerSink(blob)
        tar = TarWriter(sink)
        tar.file(f"/opt/{name}/file.py", len(content), [content])
        tar.close()
        diff_id = sink.close()
        return layers.Layer(ZSTD_TYPE, blob.commit(), blob.size, diff_id, name, key, sink.unpacked)


@dataclass
class Published:
    """In a stand-in, under `repository`:1. `attached` maps what an artifact is called to its digest and its blobs'."""

    registry: StandIn
    lock: Lock
    image: layers.Image
    store: Store
    repository: str = "acme/rl/tiny"
    attached: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        blobs = json.loads(self.image.manifest)
        for blob in (blobs["config"], *blobs["layers"]):
            self.registry.blob(self.repository, self.store.read(blob["digest"]), "")
        for name in (self.image.digest, "1"):
            self.registry.documents[self.manifest(name)] = (MANIFEST_TYPE, self.image.manifest)

    @property
    def reference(self) -> str:
        return f"{self.registry.host}/{self.repository}:1"

    def manifest(self, name: str) -> str:
        return f"/v2/{self.repository}/manifests/{name}"

    def blob(self, digest: str) -> str:
        return f"/v2/{self.repository}/blobs/{digest}"

    def attach(
        self,
        name: str,
        kind: str,
        content: bytes,
        annotations: Mapping[str, str] | None = None,
        subject: Descriptor | None = None,
    ) -> None:
        """Put an artifact there that refers to the image, or to `subject`, in place of the one of this name."""
        self.attach_all(name, kind, {"": content}, annotations, subject)

    def attach_all(
        self,
        name: str,
        kind: str,
        contents: Mapping[str, bytes],
        annotations: Mapping[str, str] | None = None,
        subject: Descriptor | None = None,
    ) -> None:
        """Attach contents by their titles, as `attach` does."""
        image = subject or Descriptor(MANIFEST_TYPE, self.image.digest, len(self.image.manifest))
        blobs = {title: Descriptor(kind, digest_of(content), len(content)) for title, content in contents.items()}
        manifest = write_artifact(kind, blobs.items(), annotations or {}, image)
        self.registry.blob(self.repository, EMPTY_CONTENT, EMPTY.media_type)
        for content in contents.values():
            self.registry.blob(self.repository, content, kind)
        digest = digest_of(manifest)
        self.registry.documents[self.manifest(digest)] = (MANIFEST_TYPE, manifest)
        entries = [each for each in self._listed(image.digest) if each["digest"] != self.attached.get(name, ("",))[0]]
        entry = Descriptor(MANIFEST_TYPE, digest, len(manifest)).as_dict()
        self._list([*entries, entry | {"artifactType": kind, "annotations": dict(annotations or {})}], image.digest)
        self.attached[name] = (digest, *(digest_of(content) for content in contents.values()))

    def drop(self, name: str) -> None:
        """Take an artifact away, from the list alone."""
        digest = self.attached.pop(name)[0]
        self._list([each for each in self._listed() if each["digest"] != digest])

    def flip(self, path: str) -> None:
        """Another byte in what the registry has under this path."""
        kind, data = self.registry.documents[path]
        middle = len(data) // 2
        self.registry.documents[path] = (kind, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])

    def layout(self, root: Path) -> str:
        """Write the registry's present content as an OCI layout with the lists in its index; return its name for
        commands.
        """
        folder = root / "blobs" / "sha256"
        folder.mkdir(parents=True)
        for path, (_, data) in self.registry.documents.items():
            name, _, digits = path.rpartition("sha256:")
            if digits and name.startswith(f"/v2/{self.repository}/"):
                (folder / digits).write_bytes(data)
        manifest = {"mediaType": MANIFEST_TYPE, "digest": self.image.digest, "size": len(self.image.manifest)}
        (root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest, *self._listed()]}))
        return f"oci:{root}"

    def _listed(self, subject: str | None = None) -> list[dict[str, Any]]:
        path = self.manifest(fallback_tag(subject or self.image.digest))
        _, data = self.registry.documents.get(path, ("", b'{"manifests":[]}'))
        return list(json.loads(data)["manifests"])

    def _list(self, entries: list[dict[str, Any]], subject: str | None = None) -> None:
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}
        path = self.manifest(fallback_tag(subject or self.image.digest))
        self.registry.documents[path] = (INDEX_TYPE, json.dumps(index).encode())


def lock_document(lock: Lock) -> bytes:
    return dumps_attached(lock).encode()
