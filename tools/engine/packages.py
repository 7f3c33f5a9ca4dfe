"""Unpack Debian packages into a directory, without installing them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from imagegen.core import programs
from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress, timed
from imagegen.image.base.apt import Apt
from imagegen.image.base.resolution import official
from imagegen.lock.distributions import release

_RELEASE = "trixie"


def unpack(suite: str, packages: Sequence[str], target: Path, settings: Settings, progress: Progress) -> None:
    """Unpack the newest `packages` of the suite, without dependencies, into `target`, which appears when complete.

    No maintainer script runs, and the host's dpkg does not record the packages. Raises BaseError if apt cannot fetch
    them or no mirror is known, EngineError if a package cannot be unpacked.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".debs-") as name:
        work, root = Path(name) / "apt", Path(name) / "root"
        with timed(progress, f"get {', '.join(packages)} from Debian {suite}"):
            (debian,) = official(release(_RELEASE), settings, pockets=False)  # its archive has the other suites too
            apt = Apt(work, [replace(debian, suite=suite)], settings)
            apt.run("update", "--error-on=any")
            apt.run("download", *packages)
        root.mkdir()
        with timed(progress, "unpack them"), ThreadPoolExecutor() as threads:
            list(threads.map(lambda deb: _unpack(deb, root), work.glob("*.deb")))
        os.replace(root, target)


def _unpack(deb: Path, root: Path) -> None:
    ended = programs.run(["dpkg-deb", "-x", deb, root], capture_output=True, text=True)
    if ended.returncode:
        raise EngineError(f"{deb.name} cannot be unpacked", code="engine-package-invalid", why=ended.stderr.strip())
