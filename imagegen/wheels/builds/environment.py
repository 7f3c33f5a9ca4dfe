"""The machine of builds: an engine or a buildx builder with the store, its capacity, and the cost of builds there."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from imagegen.checks import WORKER
from imagegen.core import temporary
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import parse_json
from imagegen.core.errors import BuildError, EngineError
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.layers import Image
from imagegen.image.layers.plan import digest_of_json
from imagegen.lock.model import Lock, LockedBuild
from imagegen.spec.recipe import Cost, Recipe
from imagegen.wheels import throttle
from imagegen.wheels.throttle import BuildJob, Machine, learned

if TYPE_CHECKING:
    from imagegen.engine import Engine


@dataclass(frozen=True)
class BuildEnvironment:
    """The engine and store of source builds. `builder` is one of `docker buildx ls`; None is the engine's own."""

    engine: Engine
    builder: str | None
    context: Context
    stop: Event = field(default_factory=Event)  # once set, a running build ends at its next line

    @property
    def store(self) -> Store:
        return self.context.store

    @property
    def settings(self) -> Settings:
        return self.context.settings

    @property
    def progress(self) -> Progress:
        return self.context.progress

    @property
    def place(self) -> str:
        """The machine that builds run on: builds with an equal value share its memory."""
        return f"builder {self.builder}" if self.builder else str(self.engine.info().get("ID", "engine"))

    def layout(self, image: Image) -> str:
        """An image of the store, as the value of a build context."""
        return f"oci-layout://{self.context.store.root}@{image.digest}"

    def buildx(self, args: Sequence[str], cwd: Path, on_line: Callable[[str], None]) -> None:
        """See `Engine.buildx`. Raises BuildError when `stop` was set."""

        def listen(line: str) -> None:
            if self.stop.is_set():
                raise BuildError(
                    "stopped", code="source-build-stopped", fix="run it again; compiled objects are reused"
                )
            on_line(line)

        self.engine.buildx(args, cwd, self.context.progress, builder=self.builder, on_line=listen)


# The machine as a build will find it: its cores, and the memory that it may use. Asked of the builder itself.

# Runs on the base, which has a Python and is small. So the plan is logged before gigabytes are fetched.
_DOCKERFILE = """\
FROM base AS asked
USER root
RUN --network=none --mount=type=bind,from=worker,target=/mnt/worker {interpreter} -I /mnt/worker/build.py probe > /said
FROM scratch
COPY --from=asked /said /said
"""


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
            build_environment.buildx(arguments, work_dir, lambda _: None)
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


# The cost of compiling a component: measured here, else as its recipe states, else unknown.


@dataclass(frozen=True)
class _StoredCost:
    """The fields of Cost as the store has them; the schema of Cost describes the text of a recipe."""

    units: int
    seconds: float
    memory: int
    largest: int
    source: str


_COSTS = Cache("build-cost", _StoredCost)


def work(build: LockedBuild, recipe: Recipe, store: Store) -> BuildJob:
    """Return the build as its plan sees it."""
    measured = _COSTS.get(store, _key(build))
    return BuildJob(
        cost=Cost(**asdict(measured)) if measured else recipe.cost,
        architectures=max(1, len(set(build.architectures))),
        jobs=recipe.jobs is not None,
        threads=recipe.threads is not None,
    )


def learn(build: LockedBuild, record: Mapping[str, Any], store: Store) -> None:
    """Record the cost of a finished build; an incomplete record changes nothing."""
    with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
        cost = learned(record, max(1, len(build.architectures)), "measured here")
        if cost.units > 0 and cost.memory > 0:
            _COSTS.put(store, _key(build), _StoredCost(**asdict(cost)))


def _key(build: LockedBuild) -> str:
    return digest_of_json([build.name, build.version])


# Reservations of memory and cores on a machine by builds of this store, in all processes of imagegen.
#
# A reservation is a file of the store's tmp/ that its process has locked. The file of a killed process does not count,
# and is removed when a store is opened.

_PREFIX = "reserved-"


@dataclass(frozen=True)
class ReservedResources:
    """Memory and cores that running builds have reserved on a machine."""

    memory: int  # bytes
    cores: int


@contextmanager
def reserve(store: Store, machine_id: str, memory: int, cores: int) -> Iterator[None]:
    """Reserve `memory` bytes and `cores` on a machine until the end of the block, or of this process."""
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
