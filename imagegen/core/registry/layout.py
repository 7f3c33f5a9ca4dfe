"""OCI image layouts in place of a registry: the private mirror, and a directory with the interface of a repository.

IMAGEGEN_MIRROR names the mirror, `imagegen mirror` fills it. It is a directory or a repository, and both forms have the
same content: blobs, and artifacts that list them by a name (a directory: an OCI image layout, the name in its index; a
repository: the tag). Sources: OCI image-spec v1.1 (image-layout.md, manifest.md), distribution-spec v1.1.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from imagegen.core import data
from imagegen.core.config import MIRROR_VARIABLE, Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, UsageError
from imagegen.core.net import ByteSink, Client, NotFoundError, UnavailableError
from imagegen.core.oci import (
    INDEX_FILE,
    MANIFEST_TYPE,
    MAX_CONFIG,
    MAX_MANIFEST,
    Artifact,
    Descriptor,
    Layout,
    is_digest,
    name_of,
    read_artifact,
    read_entry,
    read_index,
)
from imagegen.core.progress import Meter
from imagegen.core.registry.pull import Referrer, ReferrerReader, Repository, fallback_tag
from imagegen.core.registry.reference import Reference, parse
from imagegen.core.store import Store


def place(text: str, origin: str) -> Path | Reference:
    """Parse a directory (anything that begins with /, ./, ../ or ~) or a repository. Raises UsageError.

    `origin` is the variable or option that the text is the value of, for the error.
    """
    if text.startswith(("/", "./", "../", "~")) or text in {".", ".."}:
        try:
            return Path(text).expanduser()
        except RuntimeError as error:
            raise UsageError(
                f"{origin} names no mirror", code="usage-invalid-mirror", why=f"{text}: there is no such user here"
            ) from error
    fix = "write ./mirror for a directory, registry.example.com/team/mirror for a repository"
    if not set(text) & set("/.:"):  # a name of Docker Hub, which is not meant
        raise UsageError(
            f"{origin} names no mirror",
            code="usage-invalid-mirror",
            why=f'"{text}" may be a directory or a repository',
            fix=fix,
        )
    try:
        location = parse(text)
    except FetchError as error:
        raise UsageError(
            f"{origin} names no mirror", code="usage-invalid-mirror", why=error.summary, fix=fix
        ) from error
    if location.tag or location.digest:
        raise UsageError(f"{origin} names no mirror", code="usage-invalid-mirror", why=f"{text} is one image", fix=fix)
    return location


class Mirror:
    """The private mirror, a directory or a repository. Thread-safe."""

    def __init__(self, at: Path | Reference, client: Client, settings: Settings) -> None:
        self._at = at
        self._lock = threading.Lock()
        self._reached: FetchError | bool = False
        self._source = Layout(at) if isinstance(at, Path) else Repository(at, client, settings, what="mirror")

    @classmethod
    def of(cls, settings: Settings, client: Client) -> Mirror | None:
        """Return the mirror that the settings name; None where they name none. Raises UsageError."""
        return cls(place(settings.mirror, MIRROR_VARIABLE), client, settings) if settings.mirror else None

    def __str__(self) -> str:
        return f"the mirror {self._at}"

    def take(self, digest: str, size: int, store: Store, meter: Meter) -> bool:
        """Copy a blob of `size` bytes into the store; return False where the mirror has none.

        Raises FetchError, StoreError.
        """
        if isinstance(self._source, Layout):
            return self._copy(self._source, digest, size, store, meter)
        self._reach(self._source)
        try:
            self._source.download(digest, size, store, meter)
        except NotFoundError:
            return False
        return True

    def size(self, digest: str) -> int | None:
        """Return the size in bytes of a blob of the mirror; None where it has none. Raises FetchError."""
        if isinstance(self._source, Layout):
            path = self._source.path(digest)
            with self._reading(path):
                return path.stat().st_size
            return None
        self._reach(self._source)
        try:
            return self._source.size(digest)
        except NotFoundError:
            return None

    def listed(self, name: str) -> Artifact | None:
        """Return the artifact of this name; None where there is none. Raises FetchError."""
        if isinstance(self._source, Layout):
            return self._named(self._source, name)
        self._reach(self._source)
        try:
            _, manifest, kind = self._source.manifest(name)
        except NotFoundError:
            return None
        return read_artifact(manifest, kind, f"{self}: {name}")

    def _reach(self, repository: Repository) -> None:
        """Connect to the repository's host once: else the download of each file would wait for an unreachable host."""
        with self._lock:
            if self._reached is False:
                try:
                    repository.reach()
                    self._reached = True
                except FetchError as error:
                    self._reached = error
        if isinstance(self._reached, FetchError):
            raise self._reached

    def _copy(self, layout: Layout, digest: str, size: int, store: Store, meter: Meter) -> bool:
        chunks = layout.chunks(digest, size)
        with self._reading(layout.path(digest)):
            first = next(chunks, b"")  # before there is a writer: a missing file is not a fault of the store
            with store.writer() as writer:
                for chunk in chain((first,), chunks):
                    writer.write(chunk)
                    meter.advance(len(chunk))
                if writer.commit() != digest:
                    why = "its sha256 is another"
                    raise FetchError(f"blob {digest} is damaged", code="fetch-digest-mismatch", why=why)
            return True
        return False

    def _named(self, layout: Layout, name: str) -> Artifact | None:
        digest: str | None = None
        with self._reading(layout.root / INDEX_FILE):
            digest = layout.find(name)
        if digest:
            with self._reading(layout.path(digest)):
                return read_artifact(layout.read(digest), MANIFEST_TYPE, digest)
        return None

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        """End the block where the directory has no such file. Raises FetchError for an unreadable or damaged one."""
        try:
            yield
        except FileNotFoundError:
            return
        except OSError as error:
            raise FetchError(
                f"{self} cannot be read", code="fetch-mirror-unreadable", where=str(path), why=error.strerror
            ) from error
        except FetchError as error:
            raise FetchError(
                f"{self} is damaged",
                code="fetch-mirror-damaged",
                where=str(path),
                why=error.summary,
                fix="fill it again: `imagegen mirror`",
            ) from error


# An OCI image layout with the interface of a repository.
#
# Source: OCI image-spec v1.1, image-layout.md (index.json, blobs), manifest.md (subject); distribution-spec v1.1 for
# the tag under which referrers are listed where no API lists them. The store is such a directory, too.

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
