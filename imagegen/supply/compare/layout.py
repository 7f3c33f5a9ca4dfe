"""An OCI image layout as a repository: what a registry would answer, from a directory.

Source: OCI image-spec v1.1, image-layout.md (index.json, blobs), manifest.md (subject); distribution-spec v1.1 for the
tag under which referrers are listed where no API lists them. The store is such a directory, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imagegen.core import data
from imagegen.core.errors import FetchError
from imagegen.core.net import ByteSink, NotFoundError, UnavailableError
from imagegen.core.oci.types import MANIFEST_TYPE, Artifact, Descriptor, digest_of, is_digest, read_artifact
from imagegen.core.registry.referrers import Content, Referrer, fallback_tag

PREFIX = "oci:"
_NAME = "org.opencontainers.image.ref.name"
_CHUNK = 1 << 20


class Layout:
    """`requested` is an image's name in the layout, its digest, or "" for the only one. Raises FetchError."""

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._name = root, name

    def manifest(self, requested: str, size: int | None = None) -> tuple[str, bytes, str]:
        """Return a manifest as `Repository.manifest`; for "" that of the only image."""
        digest = requested if is_digest(requested) else self._chosen(requested)
        body = self._blob(digest)
        if digest_of(body) != digest:
            raise FetchError(
                f"manifest {digest} is damaged",
                code="fetch-digest-mismatch",
                where=self._name,
                why=f"its bytes are {digest_of(body)}",
            )
        if size is not None and size != len(body):
            raise FetchError(
                f"manifest {digest} has {len(body)} bytes, not {size}", code="fetch-digest-mismatch", where=self._name
            )
        return digest, body, str(_object(body).get("mediaType", MANIFEST_TYPE))

    def document(self, blob: Descriptor) -> bytes:
        """Read a document as `Repository.document`."""
        body = self._blob(blob.digest)
        if digest_of(body) != blob.digest:
            raise FetchError(
                f"blob {blob.digest} is damaged",
                code="fetch-digest-mismatch",
                where=self._name,
                why=f"its bytes are {digest_of(body)}",
            )
        return body

    def stream(self, digest: str, size: int, into: ByteSink) -> None:
        """Read a blob as `Repository.stream`."""
        try:
            # A pipe of that name must not block.
            with open(os.open(self._path(digest), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as blob:
                while chunk := blob.read(_CHUNK):
                    if into.size + len(chunk) > size:
                        raise FetchError(
                            f"blob {digest} has more than {size} bytes", code="fetch-size-mismatch", where=self._name
                        )
                    into.write(chunk)
        except OSError as error:
            raise self._absent(digest, error) from error
        if into.size < size:
            raise FetchError(
                f"blob {digest} ends after {into.size} of {size} bytes", code="fetch-size-mismatch", where=self._name
            )

    def referrers(self, digest: str, artifact_type: str | None = None) -> tuple[Referrer, ...]:
        """List every manifest whose subject is the one with this digest, as `Repository.referrers`."""
        found: dict[str, Referrer] = {}
        for each in self._manifests(fallback_tag(digest)):
            try:
                body = self._blob(each)
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
                found[each] = Referrer(each, len(body), str(kind), plain, digest)
        return tuple(each for each in found.values() if artifact_type in (None, each.artifact_type))

    def artifact(self, referrer: Referrer) -> Artifact:
        """Read an artifact as `Repository.artifact`."""
        where = f"{self._name}@{referrer.digest}"
        _, data, kind = self.manifest(referrer.digest, referrer.size)
        artifact = read_artifact(data, kind, where)
        if artifact.subject != referrer.subject:
            raise FetchError(f"{where} does not refer to {referrer.subject}", code="fetch-referrer-mismatch")
        return artifact

    def content(self, referrer: Referrer) -> Content:
        """Read an artifact's blob as `Repository.content`."""
        artifact = self.artifact(referrer)
        if len(artifact.parts) != 1:
            raise FetchError(f"{self._name}@{referrer.digest} is no single document", code="fetch-artifact-invalid")
        ((_, blob),) = artifact.parts
        return Content(artifact.kind, artifact.annotations, blob.media_type, self.document(blob))

    def _manifests(self, fallback: str) -> Iterator[str]:
        """Yield the manifests that the index names, and those that it lists under the fallback tag."""
        for entry in self._entries():
            yield str(entry["digest"])
            if _name(entry) == fallback:
                listed = _object(self._blob(str(entry["digest"]))).get("manifests")
                named = (each.get("digest") for each in listed or () if isinstance(each, dict))
                yield from (each for each in named if isinstance(each, str) and is_digest(each))

    def _chosen(self, requested: str) -> str:
        found = {}
        for entry in self._entries():
            name, digest = _name(entry), str(entry["digest"])
            if requested and name == requested:
                return digest
            if not name.startswith("sha256-") and "subject" not in _object(self._blob(digest)):
                found[digest] = name or digest
        if requested or len(found) != 1:
            what = f"no image {requested}" if requested else f"{len(found)} images"
            named = ", ".join(found.values()) or "none"
            raise NotFoundError(
                f"{self._name} holds {what}", why=f"it holds {named}", fix="name one of them: oci:DIR@DIGEST"
            )
        return next(iter(found))

    def _entries(self) -> list[dict[str, Any]]:
        try:
            index = json.loads(data.read(self._root / "index.json"))
            entries = [each for each in index["manifests"] if is_digest(str(each["digest"]))]
        except OSError as error:
            fix = "name a directory that `imagegen build --output` wrote: oci:DIR"
            why = f"{error.filename}: {error.strerror}"
            raise UnavailableError(
                f"{self._name} is no OCI layout", code="fetch-not-a-layout", why=why, fix=fix
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FetchError(
                f"{self._name} is no OCI layout", code="fetch-not-a-layout", why="its index.json is malformed"
            ) from error
        return entries

    def _blob(self, digest: str) -> bytes:
        try:
            return data.read(self._path(digest))
        except OSError as error:
            raise self._absent(digest, error) from error

    def _path(self, digest: str) -> Path:
        if not is_digest(digest):
            raise FetchError(f"{digest!r} is no digest", code="fetch-invalid-digest", where=self._name)
        return self._root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _absent(self, digest: str, error: OSError) -> FetchError:
        if isinstance(error, FileNotFoundError):
            return NotFoundError(f"{self._name} has no blob {digest}")
        return UnavailableError(f"blob {digest} cannot be read", where=self._name, why=error.strerror)


def _name(entry: dict[str, Any]) -> str:
    annotations = entry.get("annotations")
    return str(annotations.get(_NAME, "")) if isinstance(annotations, dict) else ""


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
