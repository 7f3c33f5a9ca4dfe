"""The minimum versions of engines and buildx, and why one is too old."""

from __future__ import annotations

import re
from typing import Any

from packaging.version import Version

# How a user without an engine gets one; part of the `fix` of errors.
INSTALL = 'install Docker (https://docs.docker.com/engine/install/), or in a checkout run `eval "$(make -s engine-up)"`'
# Docker 26.1 embeds BuildKit 0.13: named contexts from an OCI layout, OCI exports, rewrite-timestamp. Measured.
ENGINE_FLOOR = Version("26.1")
BUILDX_FLOOR = Version("0.13")


def shortcomings(info: Any) -> tuple[str, ...]:
    """Why an engine cannot be used, as sentences; empty when it can. `info` is the API's /info."""
    if not isinstance(info, dict) or "ServerVersion" not in info:
        return ("it does not say what it is, as a Docker engine would",)
    sentences = []
    text = str(info["ServerVersion"])
    if not _at_least(text, ENGINE_FLOOR):
        sentences.append(
            f"it is version {text}; Docker {ENGINE_FLOOR} is the oldest whose BuildKit does what is needed"
        )
    if info.get("OSType") != "linux":
        sentences.append(f"it runs {info.get('OSType')} containers; images are for linux")
    status = info.get("DriverStatus")
    if not isinstance(status, list) or ["driver-type", "io.containerd.snapshotter.v1"] not in status:
        sentences.append(
            f"it keeps images in the classic store ({info.get('Driver')}), which can neither export OCI images nor "
            "keep a manifest's digest"
        )
    return tuple(sentences)


def buildx_version(output: str) -> Version | None:
    """The version in `docker buildx version`'s output ("github.com/docker/buildx 0.13.1+ds1 ..."), or None."""
    match = re.search(r"\bv?(\d+\.\d+\.\d+)", output)
    return Version(match[1]) if match else None


def _at_least(text: str, floor: Version) -> bool:
    try:
        return Version(text.split("-", maxsplit=1)[0]) >= floor
    except ValueError:
        return False
