"""Open a connection to an engine with Docker's SDK."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import docker
from docker.errors import DockerException

_DEFAULT = "unix:///var/run/docker.sock"


def open_client(place: Mapping[str, Any], patience: int) -> docker.DockerClient:
    """A client that has spoken to the engine at `place` (the SDK's base_url and tls). DockerException otherwise.

    `patience` is in seconds.
    """
    host = str(place.get("base_url") or _DEFAULT)
    for scheme in ("unix://", "http+unix://"):
        if host.startswith(scheme):
            _knock("/" + host.removeprefix(scheme).lstrip("/"))
    return docker.DockerClient(
        **{**place, "base_url": host}, version="auto", timeout=patience, use_ssh_client=host.startswith("ssh://")
    )


def _knock(path: str) -> None:
    """The SDK leaves a socket open when nobody listens, so see first."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            raise DockerException(f"nothing listens at {path}: {error.strerror or error}") from error
