"""The environment of builds: the engine or a buildx builder, with the store beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BuildError, EngineError
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.image.layers import Image
from imagegen.incontainer import WORKER
from imagegen.plan.lock.model import Lock
from imagegen.run.engine import Engine
from imagegen.wheels import throttle
from imagegen.wheels.throttle import Machine


@dataclass(frozen=True)
class BuildEnvironment:
    """`builder` is one that `docker buildx ls` shows; None is the engine's own."""

    engine: Engine
    builder: str | None
    context: Context
    stop: Event = field(default_factory=Event)  # set: what runs on it ends at its next line

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
                    "stopped", code="source-build-stopped", fix="run it again: it goes on from what is compiled"
                )
            on_line(line)

        self.engine.buildx(args, cwd, self.context.progress, builder=self.builder, on_line=listen)


# The machine as a build will find it: its cores, and the memory that it may use. Asked of the builder itself.

# On the base, which has a Python and is small: the plan is logged before gigabytes are fetched.
_DOCKERFILE = """\
FROM base AS asked
USER root
RUN --network=none --mount=type=bind,from=worker,target=/mnt/worker {interpreter} -I /mnt/worker/build.py probe > /said
FROM scratch
COPY --from=asked /said /said
"""


def probe(lock: Lock, base: Image, build_environment: BuildEnvironment) -> Machine:
    """Ask. `base` is the lock's, in the store.

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
            if build_environment.builder:
                error.fix = "`docker buildx ls` shows the builders that there are, and whether they run"
            raise
        answer = (out / "said").read_text(errors="replace")
    try:
        return throttle.machine(json.loads(answer.partition("@imagegen ")[2]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(
            "the builder does not say what machine it is",
            code="source-build-probe-failed",
            why=f"its answer was {answer[:200]!r}",
            fix="name another one with --builder",
        ) from error
