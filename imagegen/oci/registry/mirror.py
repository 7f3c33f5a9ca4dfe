"""The private mirror: an OCI image layout in a directory, or a repository of a registry.

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

from imagegen.core.config import MIRROR_VARIABLE, Settings
from imagegen.core.errors import FetchError, UsageError
from imagegen.core.net import Client, NotFoundError
from imagegen.core.progress import Meter
from imagegen.core.store import Store
from imagegen.oci.documents import MANIFEST_TYPE, Artifact, read_artifact
from imagegen.oci.layout import INDEX_FILE, Layout
from imagegen.oci.registry.reference import Reference, parse
from imagegen.oci.registry.repository import Repository


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
