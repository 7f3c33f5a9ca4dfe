"""Builds as they are planned, run, run again with less, and kept: with a builder that only plays one."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BuildError, EngineError
from imagegen.core.progress import Counter, Quiet
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.store.upkeep import check
from imagegen.engine import Engine
from imagegen.image import dockerfile as recipe
from imagegen.lock.model import Lock, LockedBuild
from imagegen.spec.model import Cell
from imagegen.wheels.builds.ensure import require_wheels
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.builds.schedule import ReservedResources, compile_all, reserve, reserved_resources
from imagegen.wheels.builds.store import cost_key, work
from imagegen.wheels.throttle import Machine
from imagegen.wheels.wheelhouse import every, known
from tests.support.errors import raises
from tests.support.forked_kills import run_in_child
from tests.support.golden import Golden
from tests.support.source_builds import BUILD, RECIPE, WITH_BUILD, packed
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

compiling = importlib.import_module("imagegen.wheels.builds.schedule")

GB = 10**9
POINTS = 3  # operations that are the last one once; a build survives each of its 74
KILLED = '#7 ERROR: process "/bin/sh -c" did not complete successfully: exit code: 137'
RECORD = {
    "units": 4,
    "unit_seconds": {"sum": 40.0, "longest": 12.0},
    "runs": [{"jobs": 2, "threads": 1, "memory": 6 * GB, "seconds": 20.0}],
    "seconds": 20.0,
    "memory": 6 * GB,
    "largest": 4 * GB,
}


def event(**said: Any) -> str:
    return f"#7 1.0 @imagegen {json.dumps(said)}"


@dataclass
class Builder:
    """Stands in for the engine: each attempt says lines, then fails, or leaves a wheel."""

    attempts: list[list[str]] = field(default_factory=list)  # of those that fail; then all succeed
    throttles: list[dict[str, int]] = field(default_factory=list)
    at_once: int = 0
    most: int = 0
    pause: float = 0.0
    lock: Any = field(default_factory=threading.Lock)

    def info(self) -> dict[str, str]:
        return {"ID": "here"}

    def buildx(
        self, args: Sequence[str], cwd: Path, progress: object, *, builder: str | None, output: SupportsWrite[str]
    ) -> str:
        words = " ".join(args)
        with self.lock:
            self.throttles.append(json.loads((cwd / "throttle.json").read_text()))
            lines = self.attempts.pop(0) if self.attempts else None
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self.pause)
        try:
            for line in lines or [event(event="start"), event(event="progress", done=4, total=4, memory=GB, peak=GB)]:
                output.write(line)
            if lines is not None:
                raise EngineError("buildx build failed with exit code 1")
            name = re.findall(r"--target built-(\S+)", words)[0]
            assert json.loads((cwd / "builds" / name / "spec.json").read_text())["name"] == name
            leave(Path(re.findall(r"type=local,dest=(\S+)", words)[0]), name)
        finally:
            with self.lock:
                self.at_once -= 1
        return ""


def leave(out: Path, name: str) -> None:
    out.mkdir()
    filename = f"{name.replace('-', '_')}-1.0-cp311-cp311-linux_x86_64.whl"
    info = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "WHEEL": WHEEL}
    make_wheel(out, {"demo.py": b""}, filename=filename, info=f"{name.replace('-', '_')}-1.0.dist-info", metadata=info)
    (out / "record.json").write_text(json.dumps(RECORD))
    (out / "build.log").write_text("compiled\n")


WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n"


class Said(Quiet):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@dataclass
class BuildHost:
    store: Store
    builder: Builder
    said: Said
    bench: BuildEnvironment
    cell: Cell
    lock: Lock

    def compile(self, *required: LockedBuild) -> None:
        lock = replace(self.lock, builds=required or self.lock.builds)
        compile_all(lock, lock.builds, self.cell, (), self.bench)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildHost:
    store, builder, said = Store(tmp_path / "store"), Builder(), Said()
    engine = cast("Engine", builder)
    bench = BuildEnvironment(engine, None, Context(store, Settings.from_environment({"HOME": str(tmp_path)}), said))
    image = SimpleNamespace(digest="sha256:" + "0" * 64)
    source = store.write(packed({"setup.py": b""})).removeprefix("sha256:")
    build = replace(BUILD, source=replace(BUILD.source, sha256=source), build_requires=())
    debs = (replace(WITH_BUILD.base.debs[0], name="g++"),)
    lock = replace(WITH_BUILD, builds=(build,), base=replace(WITH_BUILD.base, debs=debs))
    monkeypatch.setattr(compiling, "fetch_sources", lambda *_: None)
    monkeypatch.setattr(compiling.layers, "assemble_base", lambda *_: image)
    monkeypatch.setattr(compiling, "probe", lambda *_: Machine(4, 16 * GB, 14 * GB, limited=True))
    monkeypatch.setattr(compiling, "stage", lambda lock, recipes, _: compiling.Stage(lock, recipes, image))
    monkeypatch.setattr(compiling, "check_wheel", lambda *_: [])  # test_builds_check has it
    recipes = dict.fromkeys(("demo-ext", "other-ext"), RECIPE)
    cell = cast("Cell", SimpleNamespace(recipes=recipes, gpus=()))
    return BuildHost(store, builder, said, bench, cell, lock)


def test_a_build_lands_in_the_wheelhouse_with_its_record(host: BuildHost, golden: Golden) -> None:
    host.compile()
    (build,) = host.lock.builds
    wheel = known(host.store, build.key)
    assert wheel is not None
    assert wheel.filename == "demo_ext-1.0-cp311-cp311-linux_x86_64.whl"
    assert host.store.read(wheel.record["log"]) == b"compiled\n"
    kept = {name: wheel.record[name] for name in ("torch", "python", "architectures", "units", "memory")}
    assert kept == {
        "torch": "2.13.0+cpu",
        "python": "3.11",
        "architectures": ["9.0", "12.0"],
        "units": 4,
        "memory": 6 * GB,
    }
    assert wheel.record["planned"]["jobs"] == host.builder.throttles[0]["jobs"]
    golden.check(host.said.lines)
    assert list(host.store.scratch.iterdir()) == []

    host.compile()
    assert len(host.builder.throttles) == 1, "the same key is never built twice"


@pytest.mark.fault(
    "Killed and damaged",
    "kill -9 of `wheels build` before an operation on a file",
    "no blob is damaged; the next run has the wheel, and leaves nothing unfinished",
)
def test_a_build_survives_its_killing(host: BuildHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    shutil.copytree(host.store.root, tmp_path / "fresh")
    ended, operations = run_in_child(host.compile, tmp_path / "log")
    assert ended == 0
    (build,) = host.lock.builds
    for number in range(1, len(operations) + 1, len(operations) // POINTS + 1):
        shutil.rmtree(host.store.root)
        shutil.copytree(tmp_path / "fresh", host.store.root)
        ended, done = run_in_child(host.compile, tmp_path / "log", number)
        assert ended == -signal.SIGKILL
        assert check(Store(host.store.root), Quiet(), repair=False) == [], done[-1]
        host.compile()
        wheel = known(host.store, build.key)
        assert wheel
        host.store.verify(wheel.digest)
        assert not list(host.store.scratch.iterdir()), done[-1]


def test_a_refused_wheel_is_moved_aside(host: BuildHost, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    def refuse(*_: object) -> list[str]:
        raise BuildError("the audit refuses it", fix="look at it")

    monkeypatch.setattr(compiling, "check_wheel", refuse)
    with pytest.raises(BuildError, match="refuses it") as caught:
        host.compile()
    place = host.bench.context.settings.store.parent / "refused" / "demo_ext-1.0-cp311-cp311-linux_x86_64.whl"
    golden.check(caught.value)
    assert place.is_file()
    assert known(host.store, host.lock.builds[0].key) is None


def test_what_was_measured_wins_over_the_recipe(host: BuildHost) -> None:
    (build,) = host.lock.builds
    assert work(build, RECIPE, host.store).cost == RECIPE.cost
    host.compile()
    measured = work(build, RECIPE, host.store).cost
    assert measured is not None
    assert (measured.units, measured.memory, measured.largest) == (4, 3 * GB, 4 * GB)
    assert measured.seconds == 5.0, "a unit's CPU seconds for one architecture"


def test_what_another_imagegen_has_remembered_is_not_guessed_at(host: BuildHost) -> None:
    (build,) = host.lock.builds
    Cache("build-cost", dict).put(host.store, cost_key(build), {"units": 4, "minutes": 3})
    assert work(build, RECIPE, host.store).cost == RECIPE.cost


@pytest.mark.parametrize("ending", [[event(event="failed", cause="memory", what="the kernel ended cicc")], [KILLED]])
def test_out_of_memory_is_tried_again_with_half(host: BuildHost, ending: list[str], golden: Golden) -> None:
    host.builder.attempts = [[event(event="start"), *ending]] * 2
    host.compile()
    assert host.builder.throttles == [{"jobs": jobs, "threads": 1} for jobs in (4, 2, 1)]
    lines = [line for line in host.said.lines if "out of memory with" in line]
    golden.check([line.partition(" (")[0] for line in lines])
    wheel = known(host.store, host.lock.builds[0].key)
    assert wheel is not None
    assert wheel.record["done"] == {"jobs": 1, "threads": 1}


def test_out_of_memory_with_one_job_ends_it(host: BuildHost, golden: Golden) -> None:
    host.builder.attempts = [[event(event="start", largest=9 * GB), KILLED]] * 9
    with raises("source-build-out-of-memory") as caught:
        host.compile()
    golden.check(caught.value)
    assert len(host.builder.throttles) == 3


LOST = "ERROR: failed to receive status: rpc error: code = Unavailable desc = error reading from server: EOF"


@pytest.mark.parametrize("last", [LOST, "ERROR: keepalive ping failed to receive ACK within timeout"])
def test_a_builder_that_ends_under_the_last_job_is_not_said_to_lack_memory(host: BuildHost, last: str) -> None:
    host.builder.attempts = [[event(event="start", largest=GB), last]] * 9
    with raises("source-build-connection-lost") as caught:
        host.compile()
    assert [each["jobs"] for each in host.builder.throttles] == [4, 2, 1]
    assert last.removeprefix("ERROR: ") in str(caught.value.why)
    assert "1.00 GB" in str(caught.value.why)
    assert caught.value.fix
    assert known(host.store, host.lock.builds[0].key) is None


def test_a_build_that_fails_says_why(host: BuildHost) -> None:
    said = event(event="failed", cause="failed", what="it ended with exit code 1: a.cpp:1: error: no")
    host.builder.attempts = [[event(event="start"), "#7 2.0 a.cpp:1: error: no", said]]
    with raises("source-build-failed") as caught:
        host.compile()
    assert "a.cpp:1: error: no" in str(caught.value)
    assert known(host.store, host.lock.builds[0].key) is None


@pytest.mark.parametrize(
    ("cause", "fix"),
    [
        ("empty", "set in its recipe's env the variables with which it compiles"),
        ("another", "set in its recipe's env what its build takes the version from"),
        ("refused", "correct its recipe under wheels/ and lock again"),
    ],
)
def test_what_the_worker_refuses_is_reported_with_a_fix(host: BuildHost, cause: str, fix: str) -> None:
    host.builder.attempts = [[event(event="failed", cause=cause, what="no")]]
    with raises("source-build-failed") as caught:
        host.compile()
    assert caught.value.fix
    assert fix in caught.value.fix


def test_a_builder_that_does_not_start_is_no_failure_of_the_build(host: BuildHost, golden: Golden) -> None:
    host.builder.attempts = [["ERROR: rpc error: code = Unavailable desc = no such builder"]]
    with pytest.raises(EngineError) as caught:
        host.compile()
    golden.check(caught.value)


def other(host: BuildHost) -> LockedBuild:
    return replace(host.lock.builds[0], name="other-ext", key="sha256:" + "e" * 64)


def test_two_builds_share_one_memory(host: BuildHost) -> None:
    host.builder.pause = 0.2
    host.compile(host.lock.builds[0], other(host))
    assert host.builder.most == 2
    assert sum(each["jobs"] for each in host.builder.throttles) <= 4
    assert {wheel.name for wheel in every(host.store)} == {"demo-ext", "other-ext"}


def test_a_build_starts_from_what_its_own_key_names(host: BuildHost, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, list[str]] = {}
    fake = compiling.stage

    def stage(lock: Lock, *rest: Any) -> Any:
        (build,) = lock.builds
        started[build.name] = [wheel.name for wheel in recipe.toolchain(lock).wheels]
        return fake(lock, *rest)

    monkeypatch.setattr(compiling, "stage", stage)
    host.compile(host.lock.builds[0], replace(other(host), against=("nvidia-cuda-nvcc",)))
    assert started == {"demo-ext": ["nvidia-cuda-nvcc", "torch"], "other-ext": ["nvidia-cuda-nvcc"]}


def test_what_does_not_fit_beside_the_other_waits(host: BuildHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "probe", lambda *_: Machine(4, 4 * GB, 4 * GB, limited=True))
    host.builder.pause = 0.1
    host.compile(host.lock.builds[0], other(host))
    assert host.builder.most == 1
    assert "other-ext: when there is memory for it" in host.said.lines
    assert len(list(every(host.store))) == 2


def test_after_a_failure_the_other_build_is_let_finish(host: BuildHost) -> None:
    host.builder.pause = 0.1
    host.builder.attempts = [[event(event="start"), event(event="failed", cause="failed", what="broken")]]
    with raises("source-build-failed"):
        host.compile(host.lock.builds[0], other(host))
    assert len(list(every(host.store))) == 1


def test_memory_that_another_imagegen_has_planned_with_is_not_planned_again(host: BuildHost) -> None:
    with (
        reserve(host.store, "here", 7 * GB, 2),
        reserve(host.store, "elsewhere", 99 * GB, 64),
    ):
        assert reserved_resources(host.store, "here") == ReservedResources(7 * GB, 2)
        host.compile()
    assert host.builder.throttles == [{"jobs": 2, "threads": 1}]
    assert reserved_resources(host.store, "here") == ReservedResources(0, 0)


def test_what_another_imagegen_compiles_is_waited_for_aloud(host: BuildHost, golden: Golden) -> None:
    (build,) = host.lock.builds
    with ThreadPoolExecutor(1) as pool:
        with host.store.lock(f"build-{build.key}"):
            second = pool.submit(host.compile)
            until(lambda: bool(host.said.lines))
            golden.check(host.said.lines)
            assert host.builder.throttles == []
        second.result()
    assert len(host.builder.throttles) == 1


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not true() and time.monotonic() < end:
        time.sleep(0.01)


def test_no_memory_is_used_that_another_imagegen_has_planned_with(
    host: BuildHost, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(compiling, "POLL", 0.01)
    available = [1 * GB, 14 * GB]  # as it is found, before and after the other has left
    monkeypatch.setattr(compiling, "probe", lambda *_: Machine(4, 16 * GB, available.pop(0), limited=True))
    with ThreadPoolExecutor(1) as pool:
        with reserve(host.store, "here", 14 * GB, 2):
            second = pool.submit(host.compile)
            until(lambda: bool(host.said.lines))
            time.sleep(0.1)
            assert host.builder.throttles == []
        second.result()
    golden.check(host.said.lines)
    assert host.builder.throttles == [{"jobs": 4, "threads": 1}]


def test_a_reservation_whose_maker_was_killed_counts_no_more(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (store.scratch / "reserved-x").write_text(json.dumps({"place": "here", "memory": 5, "cores": 1}))
    assert reserved_resources(store, "here") == ReservedResources(0, 0)


def test_an_interrupted_run_stops_its_compilers(host: BuildHost, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def endless(args: object, cwd: object, progress: object, *, builder: object, output: SupportsWrite[str]) -> str:
        try:
            while True:
                output.write(event(event="progress", done=1, total=4))
                time.sleep(0.01)
        except BuildError:
            stopped.set()
            raise

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(host.builder, "buildx", endless)
    monkeypatch.setattr(compiling, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        host.compile()
    assert stopped.is_set()
    assert reserved_resources(host.store, "here") == ReservedResources(0, 0)


def test_a_lock_without_builds_needs_no_wheels(tmp_path: Path) -> None:
    lock = replace(WITH_BUILD, builds=())
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    assert require_wheels(lock, Context(Store(tmp_path / "store"), settings, Quiet())) is lock


def test_without_an_engine_the_error_names_the_command(host: BuildHost, golden: Golden) -> None:
    with raises("source-build-required") as caught:
        require_wheels(host.lock, Context(host.store, host.bench.context.settings, Quiet()))
    golden.check(caught.value)
    host.compile()
    whole = require_wheels(host.lock, Context(host.store, host.bench.context.settings, Quiet()))
    (wheel,) = (each for each in whole.wheels if each.build)
    assert (wheel.name, wheel.build) == ("demo-ext", host.lock.builds[0].key)
    assert whole.builds == host.lock.builds


def test_units_are_counted_on_a_pipe_and_on_a_terminal(golden: Golden) -> None:
    from io import StringIO

    from rich.console import Console

    from imagegen.core.progress import Terminal

    for terminal in (False, True):
        text = StringIO()
        progress = Terminal(Console(file=text, force_terminal=terminal, width=100))
        counter: Counter = progress.counter("compiling demo", "unit")
        with counter, progress.meter("fetching", 10) as meter:
            meter.advance(3)
            for done in range(1, 101):
                counter.reach(done, 100, "1.0 GB")
            time.sleep(0.15 if terminal else 0)
        if terminal:
            assert "100/100 units, 1.0 GB" in text.getvalue()
        else:
            lines = [line for line in text.getvalue().splitlines() if line.startswith("compiling")]
            golden.check(lines[0])
            assert len(lines) == 20
