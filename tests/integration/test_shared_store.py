"""Builds and a collector on one store at once, as real processes."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.store.upkeep import check, collect
from tests.support.machines import Debian
from tests.support.small_cell import Site, forget, spread
from tests.support.store_collector import age, base_of, collecting

pytestmark = pytest.mark.integration


@pytest.mark.fault(
    "Shared store",
    "`store gc` runs at a moment when a build has decided what it uses, all of it old and in no list",
    "what the build uses stays, however far it has come, and the build gives the same digest",
)
@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param((), id="the image is there"),
        pytest.param(("build",), id="layers are there"),
        pytest.param(("build", "layer"), id="layers are made"),
    ],
)
def test_a_collector_at_any_point_of_a_build(
    site: Site, debian: Debian, tmp_path: Path, unknown: tuple[str, ...]
) -> None:
    machine = site.machine(tmp_path / "machine")
    machine.build_here("first")
    forget(machine, *unknown)
    machine.build("second")
    for number in spread(machine.log.read_text().splitlines(), 5):
        forget(machine, *unknown)
        age(machine.store)
        (machine.store / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
        process = machine.start(f"image-{number}", KILLER_AT=str(number), KILLER_SIGNAL="SIGSTOP")
        while process.poll() is None and Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "T":
            time.sleep(0.01)
        # Stopped between finding a file and marking it, the build holds the gate: then it has to go on first.
        goes_on = threading.Timer(2, process.send_signal, (signal.SIGCONT,))
        goes_on.start()
        collect(Store(machine.store), base_of(debian))
        goes_on.cancel()
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert out.split()[-1] == site.reference


@pytest.mark.fault(
    "Shared store",
    "two builds and `store gc` over and over on one store whose files are all old and in no list",
    "both builds give the same digest as alone, every time, and the store is sound",
)
@pytest.mark.parametrize("rounds", [pytest.param(1, id="one"), pytest.param(40, id="many", marks=pytest.mark.slow)])
def test_two_builds_and_a_collector(site: Site, debian: Debian, tmp_path: Path, rounds: int) -> None:
    machine = site.machine(tmp_path / "machine")
    for turn in range(rounds):
        age(machine.store)
        (machine.store / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
        if turn % 2:
            forget(machine, "build", "layer")  # so that the wheels are needed, too
        with collecting(machine.store, debian):
            builds = [machine.start(f"image-{turn}-{number}") for number in range(2)]
            ended = [(*build.communicate(), build.returncode) for build in builds]
        for out, err, code in ended:
            assert code == 0, err
            assert out.split()[-1] == site.reference
            shutil.rmtree(tmp_path / "machine" / f"image-{turn}-0", ignore_errors=True)
    assert check(Store(machine.store), Quiet(), repair=False) == []
