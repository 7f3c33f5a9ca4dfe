"""Debian's Podman in a file tree of its own, which pulls from a registry on loopback into a storage of its own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import base
from imagegen.plan.matrix.model import Base

# Debian 12's Podman 4.3 reads other annotations and no tar-split; Debian 13 has 5.4.
_PACKAGES = {"python3": "bases have an interpreter", "podman": "what is tested"}
_BASE = Base("debian13", "debian", "trixie", None, "debian13", "2.41", _PACKAGES, "for tests")
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "/srv/graph"
runroot = "/run/graph"
[storage.options.pull_options]
enable_partial_images = "true"
use_hard_links = "{hard_links}"
"""
# Mounts are seen by this process and its children alone, and end with them. Podman unpacks in a process that remounts
# its root, which must be a mount for that.
_INSIDE = """\
set -e
mount --bind "$0" "$0"
for directory in proc dev sys; do mount --rbind "/$directory" "$0/$directory"; done
for directory in run tmp var/tmp; do mount -t tmpfs tmpfs "$0/$directory"; done
mount --bind "$1" "$0/srv"
root="$0"; shift
exec chroot "$root" /usr/bin/env -i HOME=/srv PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    CONTAINERS_STORAGE_CONF=/srv/storage.conf podman "$@"
"""


def tree(store: Store, settings: Settings) -> Path:
    """Return the file tree of a Debian with Podman; 190 MB of packages once per store."""
    locked = base.resolve(_BASE, "linux/amd64", settings, Quiet())
    return base.rootfs(locked, Context(store, settings, Quiet()))


@dataclass(frozen=True)
class Podman:
    """Podman in the file tree `tree`, with images in `storage`, whose file system must be one for overlays.

    With `hard_links` its images share the files that are equal; otherwise it copies them.
    """

    tree: Path
    storage: Path
    hard_links: bool = False

    def __post_init__(self) -> None:
        self.storage.mkdir()
        (self.storage / "storage.conf").write_text(_STORAGE.format(hard_links=str(self.hard_links).lower()))

    def run(self, *arguments: str) -> str:
        """Run a command; return what it printed, and its log behind that."""
        inside = ["sh", "-c", _INSIDE, str(self.tree), str(self.storage), *arguments]
        command = ["unshare", "--mount", "--propagation", "private", *inside]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"podman {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}"
        return done.stdout + done.stderr

    def pull(self, ref: str, login: str) -> str:
        """Pull an image without TLS; return the log, which tells of each layer how many bytes were missing."""
        return self.run("--log-level=debug", "pull", "--tls-verify=false", "--creds", login, ref)
