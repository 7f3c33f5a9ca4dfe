"""`imagegen build 'GLOB'`: which builds run at a time, what a failure and an interruption do, and what is printed."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from imagegen.app import parallel_build
from imagegen.app.lock_files import LockFiles
from imagegen.app.matrices import Matrices
from imagegen.app.parallel_build import BuildProcesses, BuildResult, parallel_count, run_builds
from imagegen.cli import build_command
from imagegen.cli.app import App
from imagegen.core.errors import LockError
from imagegen.core.progress import Quiet
from tests.support.environment import environment
from tests.support.golden import Golden

# In the place of imagegen: argv is --project DIR build CELL --json OPTION ...
CHILD = """
import json, sys, time
cell = sys.argv[4]
print(f"building {cell}", file=sys.stderr, flush=True)
if "slow" in cell:
    time.sleep(600)
if "bad" in cell:
    print("error[audit-failed]: the audit found 1 error\\n  fix: look", file=sys.stderr)
    sys.exit(77)
if "mute" in cell:
    sys.exit(0)
print(json.dumps([{"cell": cell, "digest": "sha256:1", "tags": sys.argv[6:], "report": None}]))
"""


@pytest.fixture(autouse=True)
def child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_build, "PROGRAM", (sys.executable, "-c", CHILD))


def ended(cell: str) -> BuildResult:
    return BuildResult(cell, 0, 0.0, {"cell": cell})


@given(
    st.lists(st.integers(0, 100), max_size=12).map(lambda sizes: {f"c{n}": size for n, size in enumerate(sizes)}),
    st.integers(1, 4),
    st.integers(0, 200),
)
def test_no_more_run_at_a_time_than_cores_and_disk_allow(sizes: dict[str, int], most: int, free: int) -> None:
    lock, running, started, wrong = threading.Lock(), set[str](), [], []

    class Builds(BuildProcesses):
        def run(self, cell: str) -> BuildResult:
            with lock:
                running.add(cell)
                started.append(cell)
                if len(running) > most or (len(running) > 1 and sum(sizes[each] for each in running) > free):
                    wrong.append(set(running))
            time.sleep(0.0005)
            with lock:
                running.discard(cell)
            return ended(cell)

        def free(self) -> int:
            return free

    found = list(run_builds(sizes, most, Builds(Quiet(), (), Path(), Path())))
    assert not wrong
    assert sorted(each.cell for each in found) == sorted(sizes) == sorted(started)


@pytest.mark.parametrize(
    ("count", "cores", "memory", "expected"),
    [(5, 2, 24, 1), (5, 16, 128, 5), (5, 16, 13, 2), (2, 64, 512, 2), (3, 1, 1, 1)],
)
def test_builds_at_a_time(count: int, cores: int, memory: int, expected: int) -> None:
    assert parallel_count(count, cores, memory * 1_000_000_000) == expected


def test_a_build_says_how_it_ended(tmp_path: Path, golden: Golden) -> None:
    said: list[str] = []

    class Said(Quiet):
        def say(self, text: str) -> None:
            said.append(text)

    builds = BuildProcesses(Said(), ("--no-test",), tmp_path, tmp_path)
    good, bad, mute = (builds.run(cell) for cell in ("good", "bad", "mute"))
    assert (good.code, good.built and good.built["tags"], good.error) == (0, ["--no-test"], "")
    assert (bad.code, bad.built) == (77, None)
    assert (mute.code, mute.built) == (70, None), "a build that ends well and names no image has not built one"
    golden.check(bad.error, said[0])


def test_an_interruption_ends_all_builds(tmp_path: Path) -> None:
    class Interrupted(BaseException):
        pass

    builds = BuildProcesses(Quiet(), (), tmp_path, tmp_path)
    results = run_builds({"slow-1": 1, "slow-2": 1, "good": 1}, 3, builds)
    assert next(results).cell == "good"
    start = time.monotonic()
    with pytest.raises(Interrupted):
        results.throw(Interrupted())  # type: ignore[attr-defined]
    assert time.monotonic() - start < 60
    assert not builds.running
    assert builds.run("slow-3").code != 0, "what was about to start ends too"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    cells = tuple(SimpleNamespace(id=name) for name in ("good-1", "bad", "unlocked", "good-2"))

    def fresh_lock(_: App, cell: Any) -> Any:
        if cell.id == "unlocked":
            raise LockError("unlocked has no lock")
        lock = SimpleNamespace(wheels=[])
        lock.by_cell = lambda cell: [(cell, lock)]
        return lock

    monkeypatch.setattr(Matrices, "matrix", SimpleNamespace(select=lambda _, **__: cells))
    monkeypatch.setattr(LockFiles, "fresh", fresh_lock)
    return App(environment(tmp_path), tmp_path)


def test_it_goes_on_when_one_fails_and_ends_with_its_exit_code(app: App, golden: Golden) -> None:
    run = CliRunner().invoke(build_command.command, ("*", "--json"), obj=app, standalone_mode=False)
    assert run.return_value == 77
    found = cast("list[dict[str, Any]]", json.loads(run.stdout))
    assert [(each["cell"], each.get("digest"), each.get("exit_code")) for each in found] == [
        ("good-1", "sha256:1", None), ("bad", None, 77), ("unlocked", None, 67), ("good-2", "sha256:1", None),
    ]  # fmt: skip
    golden.check(found[1]["error"])


def test_each_build_gets_the_options(app: App) -> None:
    flags = ["--no-test", "--no-audit", "--scratch-base", "--builder", "far"]
    run = CliRunner().invoke(build_command.command, ("*", "--json", *flags), obj=app, standalone_mode=False)
    assert json.loads(run.stdout)[0]["tags"] == flags
    flags = ["--retest", "--require-gpu"]
    run = CliRunner().invoke(build_command.command, ("*", "--json", *flags), obj=app, standalone_mode=False)
    assert json.loads(run.stdout)[0]["tags"] == flags


def test_a_table_has_a_row_for_each_cell(app: App) -> None:
    run = CliRunner().invoke(build_command.command, ("*",), obj=app, standalone_mode=False)
    assert run.return_value == 77
    rows = [line.split()[:2] for line in run.stdout.splitlines()]
    assert rows == [
        ["cell", "result"],
        ["good-1", "built"],
        ["bad", "failed"],
        ["unlocked", "failed"],
        ["good-2", "built"],
    ]
