"""A process that collects garbage in a store, over and over, and leaves builds beside it some of the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.machines import ROOT, Debian

COLLECTOR = """
import sys, time
from pathlib import Path
from imagegen.core.store import Store, images
from imagegen.core.store.upkeep import collect
print("ready", flush=True)
while True:
    collect(Store(Path(sys.argv[1])), sys.argv[2:])
    time.sleep(0.02)
"""


def base_of(debian: Debian) -> list[str]:
    """Return the digests of the base that a lock would protect; nothing of the cell is protected."""
    return [debian.layer.diff_id, *(deb.digest for deb in debian.locked.debs)]


def age(store: Path) -> None:
    """Nothing was used for years."""
    for path in (*(store / "blobs/sha256").iterdir(), *(store / "rootfs").iterdir()):
        os.utime(path, (0, 0))


@contextmanager
def collecting(store: Path, debian: Debian) -> Iterator[None]:
    """A process that collects over and over, and must not end before the block does."""
    command = [sys.executable, "-c", COLLECTOR, str(store), *base_of(debian)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE) as collector:
        assert collector.stdout is not None
        collector.stdout.readline()
        try:
            yield
            assert collector.poll() is None
        finally:
            collector.kill()
