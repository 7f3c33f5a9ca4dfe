"""An OCI image layout with the interface of a repository.

Source: OCI image-spec v1.1, image-layout.md (index.json, blobs), manifest.md (subject); distribution-spec v1.1 for
the tag under which referrers are listed where no API lists them. The store is such a directory, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imagegen.core import data
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError
from imagegen.core.net import ByteSink, NotFoundError, UnavailableError
from imagegen.oci.documents import (
    MANIFEST_TYPE,
    MAX_CONFIG,
    MAX_MANIFEST,
    Descriptor,
    is_digest,
    read_entry,
    read_index,
)
from imagegen.oci.layout import Layout, name_of
from imagegen.oci.registry.referrers import Referrer, ReferrerReader, fallback_tag

PREFIX = "oci:"


class LayoutRepository(ReferrerReader):
    """The images of an OCI layout, with the methods of a `Repository`. They raise FetchError.

    `name` is the name of the layout in messages, such as "the store".
    """

    def __init__(self, root: Path, name: str) -> None:
        self._layout, self.name = Layout(root), name

    def manifest(self, requested: str, size: int | None = None) -> tuple[str, bytes, str]:
        """Return a manifest as `Repository.manifest`.

        `requested` is an image's name in the layout, its digest, or "" for the only image.
        """
        digest = requested if is_digest(requested) else self._chosen(requested)
        body = self._read(digest)
        if size is not None and size != len(body):
            raise FetchError(
                f"manifest {digest} has {len(body)} bytes, not {size}", code="fetch-digest-mismatch", where=self.name
            )
        return digest, body, str(_object(body).get("mediaType", MANIFEST_TYPE))

    def document(self, blob: Descriptor, limit: int = MAX_CONFIG) -> bytes:
        """Read a document as `Repository.document`."""
        return self._read(blob.digest, limit)

    def stream(self, digest: str, size: int, into: ByteSink) -> None:
        """Read a blob as `Repository.stream`."""
        with self._explained(digest):
            for chunk in self._layout.chunks(digest, size):
                into.write(chunk)

    def referrers(self, digest: str, artifact_type: str | None = None) -> tuple[Referrer, ...]:
        """List every manifest whose subject is the one with this digest, as `Repository.referrers`."""
        by_digest: dict[str, Referrer] = {}
        for manifest in self._manifests(fallback_tag(digest)):
            try:
                body = self._unverified(manifest)
            except NotFoundError:
                continue
            described = _object(body)
            subject, config = described.get("subject"), described.get("config")
            if isinstance(subject, dict) and subject.get("digest") == digest:
                kind = described.get("artifactType") or (config.get("mediaType") if isinstance(config, dict) else "")
                annotations = described.get("annotations")
                plain = (
                    {str(name): str(text) for name, text in annotations.items()}
                    if isinstance(annotations, dict)
                    else {}
                )
                by_digest[manifest] = Referrer(manifest, len(body), str(kind), plain, digest)
        return tuple(referrer for referrer in by_digest.values() if artifact_type in (None, referrer.artifact_type))

    def _manifests(self, fallback: str) -> Iterator[str]:
        """Yield the manifests that the index names, and those that it lists under the fallback tag."""
        for entry in self._entries():
            yield str(entry["digest"])
            if name_of(entry) == fallback:
                nested = map(read_entry, read_index(self._unverified(str(entry["digest"])), self.name))
                yield from (manifest[0].digest for manifest in nested if manifest)

    def _chosen(self, requested: str) -> str:
        images = {}
        for entry in self._entries():
            name, digest = name_of(entry), str(entry["digest"])
            if requested and name == requested:
                return digest
            if not name.startswith("sha256-") and "subject" not in _object(self._unverified(digest)):
                images[digest] = name or digest
        if requested or len(images) != 1:
            problem = f"no image {requested}" if requested else f"{len(images)} images"
            image_names = ", ".join(images.values()) or "none"
            raise NotFoundError(
                f"{self.name} holds {problem}", why=f"it holds {image_names}", fix="name one of them: oci:DIR@DIGEST"
            )
        return next(iter(images))

    def _entries(self) -> list[dict[str, Any]]:
        try:
            return self._layout.entries()
        except OSError as error:
            fix = "name a directory that `imagegen build --output` wrote: oci:DIR"
            why = f"{error.filename}: {error.strerror}"
            raise UnavailableError(
                f"{self.name} is not an OCI layout", code="fetch-not-a-layout", why=why, fix=fix
            ) from error
        except FetchError as error:
            why = f"its index.json: {error.why}"
            raise FetchError(f"{self.name} is not an OCI layout", code="fetch-not-a-layout", why=why) from error

    def _read(self, digest: str, longest: int = MAX_MANIFEST) -> bytes:
        with self._explained(digest):
            return self._layout.read(digest, longest)

    def _unverified(self, digest: str) -> bytes:
        """Return a manifest without verifying its digest, for listing; `artifact` and `content` verify it."""
        with self._explained(digest):
            return data.read(self._layout.path(digest))

    @contextmanager
    def _explained(self, digest: str) -> Iterator[None]:
        """Raise FetchError that names the layout if the block cannot read the blob."""
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.name} has no blob {digest}") from error
        except OSError as error:
            raise UnavailableError(f"blob {digest} cannot be read", where=self.name, why=error.strerror) from error
        except FetchError as error:
            error.where = self.name
            raise


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = parse_json(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
