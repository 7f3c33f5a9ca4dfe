"""Builds and a collector on one store at once, as real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imagegen.progress import Quiet
from imagegen.store import Store, upkeep
from tests.integration.places import ROOT, Debian
from tests.integration.small_cell import Site

pytestmark = pytest.mark.integration

COLLECTOR = """
import sys
from pathlib import Path
from imagegen.store import Store, upkeep
print("ready", flush=True)
while True:
    upkeep.collect(Store(Path(sys.argv[1])), sys.argv[2:])
"""


def age(store: Path) -> None:
    """Nothing was used for years."""
    for path in (*(store / "blobs/sha256").iterdir(), *(store / "rootfs").iterdir()):
        os.utime(path, (0, 0))


@pytest.mark.fault(
    "Shared store",
    "two builds and `store gc` over and over on one store whose files are all old and in no list",
    "both builds give the same digest as alone, every time, and the store is sound",
)
@pytest.mark.parametrize("rounds", [pytest.param(4, id="a few"), pytest.param(40, id="many", marks=pytest.mark.slow)])
def test_two_builds_and_a_collector(site: Site, debian: Debian, tmp_path: Path, rounds: int) -> None:
    machine = site.machine(tmp_path / "machine")
    # What its lock would protect, and nothing of the cell itself: a base takes long to make again.
    base = [debian.layer.diff_id, *(deb.digest for deb in debian.locked.debs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for turn in range(rounds):
        age(machine.store)
        (machine.store / "index.json").unlink(missing_ok=True)
        if turn % 2:
            shutil.rmtree(machine.store / "records" / "layer")  # so that the wheels are needed, too
        command = [sys.executable, "-c", COLLECTOR, str(machine.store), *base]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as collector:
            assert collector.stdout is not None
            collector.stdout.readline()
            try:
                builds = [machine.start(f"image-{turn}-{number}") for number in range(2)]
                ended = [(*build.communicate(), build.returncode) for build in builds]
                assert collector.poll() is None
            finally:
                collector.kill()
        for out, err, code in ended:
            assert code == 0, err
            assert out.split()[-1] == site.reference
            shutil.rmtree(tmp_path / "machine" / f"image-{turn}-0", ignore_errors=True)
    assert upkeep.check(Store(machine.store), Quiet(), repair=False) == []
