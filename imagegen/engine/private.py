"""imagegen's private engine: Docker from Debian packages, with its own socket, data and bridge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from imagegen.config import Settings


@dataclass(frozen=True)
class Endpoint:
    """A private engine that runs: where it listens, and the programs that fit it."""

    docker_host: str
    client: Path
    buildx: Path
    home: Path


def running_endpoint(settings: Settings) -> Endpoint | None:
    """The private engine of this user's cache directory, if it runs."""
    return None
