"""A private mirror: all that locks name, by digest, in a directory or in a repository of a registry.

IMAGEGEN_MIRROR names it, `imagegen mirror` fills it. Both forms hold the same: blobs, and artifacts that list them by
a name (a directory: an OCI image layout, the name in its index; a repository: the tag).
Sources: OCI image-spec v1.1 (image-layout.md, manifest.md), distribution-spec v1.1.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from imagegen.core import data
from imagegen.core.config import MIRROR_VARIABLE, Settings
from imagegen.core.errors import FetchError, StoreError, UsageError
from imagegen.core.net import Client, NotFoundError
from imagegen.core.oci.types import MANIFEST_TYPE, REF_NAME, Artifact, digest_of, is_digest, read_artifact
from imagegen.core.progress import Meter
from imagegen.core.registry.pull import Repository
from imagegen.core.registry.reference import Reference, parse
from imagegen.core.store import Store

_CHUNK = 1 << 20
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


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
        raise UsageError(
            f"{said} names no mirror", code="usage-invalid-mirror", why=f"{error.what}: {error.why}", fix=fix
        ) from error
    if found.tag or found.digest:
        raise UsageError(f"{said} names no mirror", code="usage-invalid-mirror", why=f"{text} is one image", fix=fix)
    return found


class Mirror:
    """Thread-safe."""

    def __init__(self, at: Path | Reference, client: Client, settings: Settings) -> None:
        self._at = at
        self._lock = threading.Lock()
        self._reached: FetchError | bool = False
        self._repository = None if isinstance(at, Path) else Repository(at, client, settings, what="mirror")

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
        if self._repository is None:
            return self._copy(digest, size, store, meter)
        self._reach(self._repository)
        try:
            self._repository.download(digest, size, store, meter)
        except NotFoundError:
            return False
        return True

    def size(self, digest: str) -> int | None:
        """Return the size in bytes of a blob of the mirror; None where it has none. Raises FetchError."""
        if self._repository is None:
            path = _blob(Path(str(self._at)), digest)
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None
            except OSError as error:
                raise FetchError(
                    f"{self} cannot be read", code="fetch-mirror-unreadable", where=str(path), why=error.strerror
                ) from error
        self._reach(self._repository)
        try:
            return self._repository.size(digest)
        except NotFoundError:
            return None

    def listed(self, name: str) -> Artifact | None:
        """The artifact of this name; None where there is none. Raises FetchError."""
        if self._repository is None:
            return self._named(name)
        self._reach(self._repository)
        try:
            _, manifest, kind = self._repository.manifest(name)
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

    def _copy(self, digest: str, size: int, store: Store, meter: Meter) -> bool:
        path = _blob(Path(str(self._at)), digest)
        try:
            # An endless file, or a pipe of that name, must not block the build.
            with open(os.open(path, _READING), "rb") as source, store.writer() as writer:
                while chunk := source.read(min(_CHUNK, size - writer.size + 1)):
                    if writer.size + len(chunk) > size:
                        raise self._damaged(path, f"it has more than {size} bytes")
                    writer.write(chunk)
                    meter.advance(len(chunk))
                if writer.commit() != digest:
                    raise self._damaged(path, "its bytes have another sha256")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise FetchError(
                f"{self} cannot be read", code="fetch-mirror-unreadable", where=str(path), why=error.strerror
            ) from error
        return True

    def _named(self, name: str) -> Artifact | None:
        path = Path(str(self._at)) / "index.json"
        try:
            entries = json.loads(data.read(path))["manifests"]
            found = [each for each in entries if (each.get("annotations") or {}).get(REF_NAME) == name]
            if not found:
                return None
            path = _blob(path.parent, found[0]["digest"])
            manifest = data.read(path)
            if digest_of(manifest) != found[0]["digest"]:
                raise self._damaged(path, "its bytes have another sha256")
            return read_artifact(manifest, MANIFEST_TYPE, f"{path}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FetchError(
                f"{self} cannot be read", code="fetch-mirror-unreadable", where=str(path), why=error.strerror
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StoreError) as error:
            raise self._damaged(path, str(error)) from error

    def _damaged(self, path: Path, why: str) -> FetchError:
        return FetchError(
            f"{self} is damaged",
            code="fetch-mirror-damaged",
            where=str(path),
            why=why,
            fix="fill it again: `imagegen mirror`",
        )


def _blob(layout: Path, digest: str) -> Path:
    if not is_digest(digest):
        raise StoreError(f"not a digest: {digest!r}", code="store-invalid-digest")
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")
