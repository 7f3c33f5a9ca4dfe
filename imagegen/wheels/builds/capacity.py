"""Measure the machine of a build: its cores, and the memory that it may use."""

from __future__ import annotations

import io

from imagegen.checks import WORKER
from imagegen.core.data import parse_json
from imagegen.core.errors import BuildError, EngineError
from imagegen.image.layers import Image
from imagegen.lock.model import Lock
from imagegen.wheels import throttle
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.throttle import Machine

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
