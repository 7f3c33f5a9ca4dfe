"""Get packages of one Debian suite through apt and its signature checks, leaving the host's own apt state alone."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress, timed
from imagegen.image.base.apt import Apt
from imagegen.image.base.resolve import official
from imagegen.plan.distributions import release
from imagegen.run.engine.connection import SUITE


def unpack(suite: str, packages: Sequence[str], target: Path, settings: Settings, progress: Progress) -> None:
    """Unpack the suite's newest `packages`, without what they depend on, into `target`, which appears when complete.

    No maintainer script runs and the host's dpkg learns nothing of it. Raises BaseError when apt cannot have them or
    no mirror is known here, EngineError when one cannot be unpacked.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".debs-") as name:
        work, root = Path(name) / "apt", Path(name) / "root"
        with timed(progress, f"get {', '.join(packages)} from Debian {suite}"):
            (debian,) = official(release(SUITE), settings, pockets=False)  # whose archive has the other suites too
            apt = Apt(work, [replace(debian, suite=suite)], settings)
            apt.run("update", "--error-on=any")
            apt.run("download", *packages)
        root.mkdir()
        with timed(progress, "unpack them"), ThreadPoolExecutor() as threads:
            list(threads.map(lambda deb: _unpack(deb, root), work.glob("*.deb")))
        os.replace(root, target)


def _unpack(deb: Path, root: Path) -> None:
    done = subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError(f"{deb.name} cannot be unpacked", code="engine-package-invalid", why=done.stderr.strip())
