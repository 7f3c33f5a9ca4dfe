"""Compile the source builds of a lock: planned within one memory budget, several at once if they fit."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from imagegen.checks import WORKER
from imagegen.core import temporary
from imagegen.core.data import parse_json
from imagegen.core.errors import BuildError, EngineError
from imagegen.core.gpu import Gpu
from imagegen.core.store import Store
from imagegen.image import layers
from imagegen.image.layers import Image
from imagegen.lock.build_sources import fetch_sources
from imagegen.lock.model import Lock, LockedBuild
from imagegen.spec.model import Cell
from imagegen.wheels import throttle, wheelhouse
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.builds.stage import Stage, run, stage
from imagegen.wheels.builds.store import describe_cost, learn, store_wheel, work
from imagegen.wheels.builds.wheel_check import built_wheel, check_wheel, require_sources
from imagegen.wheels.throttle import BuildJob, JobPlan, Machine

_PLANNING = "builds"  # lock around reading the reservations and adding one
POLL = 5.0  # seconds between looks whether another imagegen's builds have left

# Runs on the base, which has a Python and is small. So the plan is logged before gigabytes are fetched.
_DOCKERFILE = """\
FROM base AS asked
USER root
RUN --network=none --mount=type=bind,from=worker,target=/mnt/worker {interpreter} -I /mnt/worker/build.py probe > /said
FROM scratch
COPY --from=asked /said /said
"""

_PREFIX = "reserved-"  # of the file of a reservation


@dataclass(frozen=True)
class ReservedResources:
    """Memory and cores that running builds have reserved on a machine."""

    memory: int  # bytes
    cores: int


@contextmanager
def reserve(store: Store, machine_id: str, memory: int, cores: int) -> Iterator[None]:
    """Reserve `memory` bytes and `cores` on a machine until the end of the block, or of this process.

    A reservation is a file of the store's tmp/ that its process has locked. The file of a killed process does not
    count, and is removed when a store is opened.
    """
    with store.explained():
        handle, path = temporary.new_file(store.scratch, _PREFIX)
        with os.fdopen(handle, "w") as file:
            json.dump({"place": machine_id, "memory": memory, "cores": cores}, file)
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)


def reserved_resources(store: Store, machine_id: str) -> ReservedResources:
    """Return the memory and cores that running builds have reserved on a machine."""
    reservations = [_read_reservation(path, machine_id) for path in store.scratch.glob(f"{_PREFIX}*")]
    return ReservedResources(
        sum(reservation.memory for reservation in reservations), sum(reservation.cores for reservation in reservations)
    )


def _read_reservation(path: Path, machine_id: str) -> ReservedResources:
    """Return the resources of a reservation; none if it is for another machine, or its process has ended."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(handle) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                content = parse_json(file.read())
                if content["place"] == machine_id:
                    return ReservedResources(int(content["memory"]), int(content["cores"]))
    return ReservedResources(0, 0)


def compile_all(
    lock: Lock,
    required: Sequence[LockedBuild],
    cell: Cell,
    audited_gpus: Sequence[Gpu],
    build_environment: BuildEnvironment,
) -> None:
    """Compile builds of the lock whose wheels the wheelhouse lacks; `audited_gpus` are GPUs that an audit reports on.

    Two imagegen processes do not compile the same build. The second waits, and uses the wheel of the first. Recipe and
    tools were checked when the cell was locked.

    Raises BuildError, with the first failure; FetchError, EngineError.
    """
    with _claim_builds(required, build_environment) as pending:
        if not pending:
            return
        fetch_sources(pending.values(), cell.recipes, build_environment.context)
        for build in pending.values():
            require_sources(build, build_environment.store, build_environment.settings)
        base = layers.assemble_base(lock, build_environment.context)
        measure = partial(probe, lock, base, build_environment)
        works = {name: work(build, cell.recipes[name], build_environment.store) for name, build in pending.items()}
        scheduler = _BuildScheduler(build_environment, works, measure, measure())
        scheduler.announce()  # before anything large is fetched
        # Each only with its own wheels, since its key does not cover the wheels of other builds.
        stages = {
            name: stage(replace(lock, builds=(build,)), cell.recipes, build_environment)
            for name, build in pending.items()
        }
        scheduler.run(_Job(lock, stages, cell.gpus, audited_gpus, build_environment), pending)


@contextmanager
def _claim_builds(
    required: Sequence[LockedBuild], build_environment: BuildEnvironment
) -> Iterator[dict[str, LockedBuild]]:
    """Claim the builds that no other process has made or is making; yield them by name."""
    with ExitStack() as locks:
        for build in sorted(required, key=lambda build: build.key):  # in one order, so that no two wait for each other
            message = f"{build}: another imagegen compiles it; this one waits for its wheel"
            locks.enter_context(
                build_environment.store.lock(f"build-{build.key}", (build_environment.progress, message))
            )
        yield {build.name: build for build in required if wheelhouse.known(build_environment.store, build.key) is None}


@dataclass(frozen=True)
class _Job:
    """The common input of a lock's builds, and the stage of each, by name."""

    lock: Lock
    stages: Mapping[str, Stage]
    gpus: Sequence[Gpu]
    known: Sequence[Gpu]
    build_environment: BuildEnvironment

    def make(self, build: LockedBuild, plan: JobPlan) -> None:
        """Compile the build and store its wheel in the wheelhouse."""
        store, progress, lock = self.build_environment.store, self.build_environment.progress, self.lock
        with store.temporary_directory("built") as work_dir:
            out = work_dir / "out"
            finished = run(build, self.stages[build.name], plan, out, self.build_environment)
            path = built_wheel(out, build)
            try:
                remarks = check_wheel(path, build, lock, self.gpus, self.known)
            except BuildError as error:
                error.fix = "; ".join(
                    filter(None, [error.fix, f"the wheel is {_quarantine(path, self.build_environment)}"])
                )
                raise
            for remark in remarks:
                progress.say(f"note: {build} is {remark}")
            wheel = store_wheel(path, out, build, lock, plan, finished, store, time.time())
        wheelhouse.keep(store, wheel)
        learn(build, wheel.record, store)
        progress.say(describe_cost(wheel, plan))


def _quarantine(wheel: Path, build_environment: BuildEnvironment) -> Path:
    """Move a rejected wheel out of the way, since it may have taken hours, and the fault may be the recipe's."""
    target = build_environment.settings.store.parent / "refused" / wheel.name
    with build_environment.store.explained():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(wheel, target)
    return target


@dataclass
class _BuildScheduler:
    """Schedules builds on one machine: those that wait, and those that run."""

    build_environment: BuildEnvironment
    works: Mapping[str, BuildJob]
    probe: Callable[[], Machine]
    machine: Machine  # as it was when none of ours ran
    running: dict[Future[None], tuple[str, JobPlan, ExitStack]] = field(default_factory=dict)
    announced: dict[str, JobPlan] = field(default_factory=dict)

    def announce(self) -> None:
        """Log the plan."""
        plans = self._plans(self.works, reserved_resources(self.build_environment.store, self.build_environment.place))
        for name, plan in plans.items():
            self._log_plan(name, plan)
        if waiting := [name for name in self.works if name not in plans]:
            self.build_environment.progress.say(f"{', '.join(waiting)}: when there is memory for it")

    def _log_plan(self, name: str, plan: JobPlan) -> None:
        """Log the plan of a build once, and again after it changed."""
        if self.announced.get(name) != plan:
            self.announced[name] = plan
            self.build_environment.progress.say(plan.sentence(name))

    def run(self, job: _Job, pending: Mapping[str, LockedBuild]) -> None:
        """Run all builds. After a failure no further build is started, and running ones finish."""
        waiting = dict(pending)
        pool = ThreadPoolExecutor(len(waiting), thread_name_prefix="build")
        failure: BaseException | None = None
        try:
            while self.running or (waiting and failure is None):
                if failure is None:
                    for name, (plan, reservation) in self._startable(waiting).items():
                        self._log_plan(name, plan)
                        future = pool.submit(job.make, waiting.pop(name), plan)
                        self.running[future] = name, plan, reservation
                if not self.running:
                    self._wait_for_others()
                    continue
                finished, _ = wait(self.running, return_when=FIRST_COMPLETED)
                for future in finished:
                    name, _, reservation = self.running.pop(future)
                    reservation.close()
                    error = future.exception()
                    if error and self.running:
                        self.build_environment.progress.say(f"{name}: {error}")
                    failure = failure or error
        except BaseException:
            self.build_environment.stop.set()
            raise
        finally:
            pool.shutdown()
            for _, _, reservation in self.running.values():
                reservation.close()
        if failure:
            raise failure

    def _wait_for_others(self) -> None:
        """Wait until another imagegen process takes or releases memory or cores."""
        before = reserved_resources(self.build_environment.store, self.build_environment.place)
        while (
            before.memory and reserved_resources(self.build_environment.store, self.build_environment.place) == before
        ):
            time.sleep(POLL)
        self.machine = self.probe()

    def _startable(self, waiting: Mapping[str, LockedBuild]) -> dict[str, tuple[JobPlan, ExitStack]]:
        """Return the plans of builds that fit now, each with its memory reservation, until its stack is closed."""
        store, machine_id = self.build_environment.store, self.build_environment.place
        with store.lock(_PLANNING):
            reserved = reserved_resources(store, machine_id)
            if not waiting or (self.running and reserved.cores >= self.machine.cores):
                return {}
            startable = {}
            for name, plan in self._plans({name: self.works[name] for name in waiting}, reserved).items():
                startable[name] = plan, ExitStack()
                startable[name][1].enter_context(reserve(store, machine_id, plan.memory, plan.jobs * plan.threads))
        return startable

    def _plans(self, works: Mapping[str, BuildJob], reserved: ReservedResources) -> dict[str, JobPlan]:
        """Return the plans of builds that fit with the reservations; one that never fits may run without others."""
        plans = throttle.share(works, self._remaining(reserved), reserved.memory)
        return {name: plan for name, plan in plans.items() if not (plan.warning and reserved.memory)}

    def _remaining(self, reserved: ReservedResources) -> Machine:
        """Return the machine without the used cores and without the memory of our running builds."""
        planned = sum(plan.memory for _, plan, _ in self.running.values())
        cores, available = max(1, self.machine.cores - reserved.cores), max(0, self.machine.available - planned)
        return replace(self.machine, cores=cores, available=available)


def probe(lock: Lock, base: Image, build_environment: BuildEnvironment) -> Machine:
    """Ask the builder for its cores and memory. `base` is the lock's base, in the store.

    Raises EngineError when the builder cannot run anything, BuildError when the answer is none.
    """
    with build_environment.store.temporary_directory("probe") as work_dir:
        (work_dir / "Dockerfile").write_text(_DOCKERFILE.format(interpreter=lock.interpreter.path))
        context = ("--build-context", f"base={build_environment.layout(base)}", "--build-context", f"worker={WORKER}")
        out = work_dir / "out"
        arguments = ["build", "--no-cache", *context, "--output", f"type=local,dest={out}", "."]
        try:
            build_environment.buildx(arguments, work_dir, io.StringIO())
        except EngineError as error:
            if build_environment.builder and not error.fix:
                error.fix = "`docker buildx ls` shows the builders that there are, and whether they run"
            raise
        answer = (out / "said").read_text(errors="replace")
    try:
        return throttle.machine(parse_json(answer.partition("@imagegen ")[2]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(
            "the builder does not say what machine it is",
            code="source-build-probe-failed",
            why=f"its answer was {answer[:200]!r}",
            fix="name another one with --builder",
        ) from error
