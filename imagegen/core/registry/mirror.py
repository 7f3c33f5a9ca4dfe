"""A private mirror: all that locks name, by digest, in a directory or in a repository of a registry.

IMAGEGEN_MIRROR names it, `imagegen mirror` fills it. Both forms hold the same: blobs, and artifacts that list them by
a name (a directory: an OCI image layout, the name in its index; a repository: the tag).
Sources: OCI image-spec v1.1 (image-layout.md, manifest.md), distribution-spec v1.1.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagegen.core.config import MIRROR_VARIABLE, Settings
from imagegen.core.errors import FetchError, UsageError
from imagegen.core.net import Client, NotFoundError
from imagegen.core.oci.layout import INDEX_FILE, Layout
from imagegen.core.oci.types import MANIFEST_TYPE, Artifact, read_artifact
from imagegen.core.progress import Meter
from imagegen.core.registry.pull import Repository
from imagegen.core.registry.reference import Reference, parse
from imagegen.core.store import Store


def place(text: str, said: str) -> Path | Reference:
    """Parse a directory (anything that begins with /, ./, ../ or ~) or a repository. Raises UsageError.

    `said` is where the text was written, for the error.
    """
    if text.startswith(("/", "./", "../", "~")) or text in {".", ".."}:
        try:
            return Path(text).expanduser()
        except RuntimeError as error:
            raise UsageError(
                f"{said} names no mirror", code="usage-invalid-mirror", why=f"{text}: there is no such user here"
            ) from error
    fix = "write ./mirror for a directory, registry.example.com/team/mirror for a repository"
    if not set(text) & set("/.:"):  # a name of Docker Hub, which is not meant
        raise UsageError(
            f"{said} names no mirror",
            code="usage-invalid-mirror",
            why=f'"{text}" may be a directory or a repository',
            fix=fix,
        )
    try:
        found = parse(text)
    except FetchError as error:
        raise UsageError(f"{said} names no mirror", code="usage-invalid-mirror", why=error.summary, fix=fix) from error
    if found.tag or found.digest:
        raise UsageError(f"{said} names no mirror", code="usage-invalid-mirror", why=f"{text} is one image", fix=fix)
    return found


class Mirror:
    """Thread-safe."""

    def __init__(self, at: Path | Reference, client: Client, settings: Settings) -> None:
        self._at = at
        self._lock = threading.Lock()
        self._reached: FetchError | bool = False
        self._source = Layout(at) if isinstance(at, Path) else Repository(at, client, settings, what="mirror")

    @classmethod
    def of(cls, settings: Settings, client: Client) -> Mirror | None:
        """The one that the environment names. Raises UsageError."""
        return cls(place(settings.mirror, MIRROR_VARIABLE), client, settings) if settings.mirror else None

    def __str__(self) -> str:
        return f"the mirror {self._at}"

    def take(self, digest: str, size: int, store: Store, meter: Meter) -> bool:
        """Bring a blob into the store; False where the mirror has none. `size` in bytes.

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
        """The artifact of this name; None where there is none. Raises FetchError."""
        if isinstance(self._source, Layout):
            return self._named(self._source, name)
        self._reach(self._source)
        try:
            _, manifest, kind = self._source.manifest(name)
        except NotFoundError:
            return None
        return read_artifact(manifest, kind, f"{self}: {name}")

    def _reach(self, repository: Repository) -> None:
        """Check the repository's host once: else every file would wait for a host that does not respond."""
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
        with self._reading(layout.path(digest)), store.writer() as writer:
            for chunk in layout.chunks(digest, size):
                writer.write(chunk)
                meter.advance(len(chunk))
            if writer.commit() != digest:
                raise FetchError(f"blob {digest} is damaged", code="fetch-digest-mismatch", why="its sha256 is another")
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
