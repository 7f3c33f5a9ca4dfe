"""Repositories of the same registry from which a blob may be mounted.

A blob of another repository of the same registry is mounted, not uploaded. A registry that lacks the blob answers a
mount with a new upload, so each repository is first asked whether it has the blob: an upload as the answer then means
that the registry does not support mounts, and no further mount is tried. Source: OCI distribution-spec v1.1, "Mounting
a blob from another repository" and "Pushing blobs".
"""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Mounts:
    """Repositories from which a blob may be mounted, by name and in the order of the queries. Thread-safe."""

    def __init__(self, repositories: Sequence[str]) -> None:
        self._repositories = list(dict.fromkeys(repositories))
        self._lock = threading.Lock()

    @property
    def repositories(self) -> tuple[str, ...]:
        """Return the repositories; the one that had the last blob is first."""
        with self._lock:
            return tuple(self._repositories)

    def worked(self, repository: str) -> None:
        with self._lock:
            if repository in self._repositories:
                self._repositories.remove(repository)
                self._repositories.insert(0, repository)

    def drop(self, repository: str) -> None:
        """Remove a repository that may not be read."""
        with self._lock:
            if repository in self._repositories:
                self._repositories.remove(repository)

    def give_up(self) -> None:
        """Remove all repositories, because the registry does not support mounts."""
        with self._lock:
            self._repositories.clear()
