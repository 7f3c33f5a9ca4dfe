"""kill -9 at many points of a build: the next one succeeds, trusts nothing half-written, and gives the same digest.

Every build here is a real one, through the command line, of a small cell that has one of everything. Where it dies is
counted in operations on files and programs (tests/killer), or timed.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.store.upkeep import check
from tests.support.small_cell import Machine, Site, spread

pytestmark = pytest.mark.integration

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


@pytest.fixture(scope="module", autouse=True)
def _adopted() -> Iterator[None]:
    """Whatever the killed builds leave running becomes a child of this process, where it can be found."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def children() -> set[int]:
    found = (task / "children" for task in Path("/proc/self/task").iterdir())
    return {int(number) for path in found for number in path.read_text().split()}


def left_running(before: set[int]) -> set[int]:
    """Children that were not there before and do not end within ten seconds."""
    deadline = time.monotonic() + 10
    while (left := children() - before) and time.monotonic() < deadline:
        for number in left:
            os.waitpid(number, os.WNOHANG)
        time.sleep(0.02)
    return left


def end(process: subprocess.Popen[str], *, group: bool) -> None:
    if group:
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.communicate()


def undisturbed(machine: Machine, before: set[int]) -> None:
    """After a kill nothing runs on, nothing is mounted, nothing is damaged, and nothing half-written has a name."""
    left = left_running(before)
    assert not left, [Path(f"/proc/{number}/cmdline").read_text() for number in left]
    assert str(machine.root) not in Path("/proc/mounts").read_text()
    first = machine.root / "first"
    assert not first.exists() or json.loads((first / "index.json").read_text())["manifests"]
    assert check(Store(machine.store), Quiet(), repair=False) == []
    leftovers = [path.name for path in (machine.store / "tmp").iterdir()]
    assert all(name.startswith("part-") for name in leftovers), "the store sweeps when it is opened"


def survive(machine: Machine, before: set[int]) -> None:
    """Check as `undisturbed` does, and that the next build gives the reference digest and leaves nothing."""
    undisturbed(machine, before)
    assert machine.build_here("second") == machine.site.reference
    assert not list((machine.store / "tmp").iterdir())
    assert not list(machine.root.glob(".*"))


def kill_at(site: Site, root: Path, number: int, *, group: bool) -> str:
    """Kill a build at this operation, see that all is well, and tell what it was doing."""
    machine, before = site.machine(root), children()
    process = machine.start("first", KILLER_AT=str(number), **({"KILLER_GROUP": "1"} if group else {}))
    _, err = process.communicate()
    assert process.returncode in (-signal.SIGKILL, 0), err  # 0: this time it took fewer operations
    doing = machine.phase()
    survive(machine, before)
    shutil.rmtree(root)
    return doing


@pytest.mark.fault(
    "Killed and damaged",
    "kill -9 of a build, alone or with all it started, while it fetches, unpacks, converts, compiles, keeps or exports",
    "nothing runs on, nothing is damaged; the next build gives the same digest and leaves nothing unfinished",
)
@pytest.mark.parametrize("count", [pytest.param(5, id="a few"), pytest.param(90, id="many", marks=pytest.mark.slow)])
def test_a_build_survives_its_killing(site: Site, tmp_path: Path, count: int) -> None:
    died: Counter[str] = Counter()
    for turn, number in enumerate(spread(site.operations, count)):
        died[kill_at(site, tmp_path / "machine", number, group=turn % 2 == 1)] += 1
    logging.getLogger(__name__).info("died while %s", dict(died))
    assert sum(died.values()) > count / 2  # some phases have fewer operations than their share
    assert len(died) >= 5


@pytest.mark.slow
@pytest.mark.fault(
    "Killed and damaged",
    "kill -9 at moments spread over the time that a build takes, in the middle of writing and compiling",
    "as above",
)
def test_it_survives_at_any_moment(site: Site, tmp_path: Path) -> None:
    for turn in range(12):
        machine, before = site.machine(tmp_path / "machine", *(("rootfs",) if turn % 3 == 0 else ())), children()
        process = machine.start("first")
        time.sleep(site.seconds * (turn + 1) / 13)
        end(process, group=turn % 2 == 1)
        survive(machine, before)
        shutil.rmtree(machine.root)


@pytest.mark.fault(
    "Killed and damaged",
    "kill -9 of a build, alone or with all it started, while mmdebstrap makes its base",
    "mmdebstrap ends too, and no mount of /proc, /sys or /dev stays behind",
)
@pytest.mark.parametrize("group", [False, True], ids=["alone", "with its group"])
def test_a_killed_base_leaves_no_process_and_no_mount(site: Site, tmp_path: Path, group: bool) -> None:
    machine, before = site.machine(tmp_path / "machine", "rootfs", "base"), children()
    process = machine.start("first")
    while not list(machine.store.glob("tmp/base-*/mmdebstrap.*/dev/pts")):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)
    end(process, group=group)
    undisturbed(machine, before)


@pytest.mark.slow
@pytest.mark.fault(
    "Killed and damaged",
    "kill -9 at moments spread over the making of a base",
    "the next build makes it again, with the same digest",
)
@pytest.mark.parametrize("group", [False, True], ids=["alone", "with its group"])
def test_a_base_survives_at_any_moment(site: Site, tmp_path: Path, group: bool) -> None:
    machine, before = site.machine(tmp_path / "machine", "rootfs", "base"), children()
    start = time.monotonic()
    assert machine.build("first") == site.reference
    seconds = time.monotonic() - start - site.seconds
    for turn in range(3):
        shutil.rmtree(machine.root)
        site.machine(machine.root, "rootfs", "base")
        process = machine.start("first")
        time.sleep(2 + seconds * turn / 3)
        end(process, group=group)
        survive(machine, before)


@pytest.mark.fault(
    "Killed and damaged",
    "after a power failure, files that were just renamed are empty or full of zeros, all of a kind at once",
    "none is trusted: at most three builds that name what was damaged later, the digest is the same",
)
@pytest.mark.parametrize("kind", ["blobs", "records"])
@pytest.mark.parametrize("lost", ["empty", "zeros"])
def test_nothing_is_trusted_after_a_power_failure(site: Site, tmp_path: Path, kind: str, lost: str) -> None:
    machine = site.machine(tmp_path / "machine")
    machine.build_here("first")
    before = {path.name for path in site.warm.rglob("*")}
    fresh = [path for path in (machine.store / kind).rglob("*") if path.is_file() and path.name not in before]
    assert len(fresh) > 10
    for path in fresh:
        size = path.stat().st_size
        path.unlink()
        path.write_bytes(bytes(size) if lost == "zeros" else b"")
    for turn in range(4):
        process = machine.start(f"after-{turn}")
        out, err = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == 69, err
        assert "run the same command again" in err
    assert out.split()[-1] == site.reference
