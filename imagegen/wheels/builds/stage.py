"""One build: its stage of the Dockerfile on a builder, as much at once as planned, less where that was too much."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.errors import BuildError, EngineError
from imagegen.core.progress import human
from imagegen.core.text import counted
from imagegen.image import dockerfile, folder, layers
from imagegen.image.build_spec import toolchain
from imagegen.image.layers import Image
from imagegen.lock.model import Lock, LockedBuild
from imagegen.spec.recipe import Recipe
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.builds.log import SILENT, LogParser
from imagegen.wheels.builds.release_check import RECIPE
from imagegen.wheels.throttle import JobPlan, halved

_ENDING = 30  # lines of the log in an error
_FIXES = {
    "another": "set in its recipe's env what its build takes the version from, or correct the release's name",
    "disk": "free space on the disk of the builder's data: `docker buildx prune`, `docker system df`",
    "empty": "set in its recipe's env the variables with which it compiles (FORCE_BUILD, CUDA_EXT), and lock again",
    "refused": RECIPE,
    "stopped": "run it again; compiled objects are reused",
}


@dataclass(frozen=True)
class Stage:
    """The input of a build. The image is in the store."""

    lock: Lock  # with only this build
    recipes: Mapping[str, Recipe]  # by package
    toolchain: Image


def stage(lock: Lock, recipes: Mapping[str, Recipe], build_environment: BuildEnvironment) -> Stage:
    """The toolchain's image, in the store, for a lock with one build. Raises as `layers.assemble`."""
    return Stage(lock, recipes, layers.assemble(toolchain(lock), build_environment.context))


def run(build: LockedBuild, stage: Stage, plan: JobPlan, out: Path, build_environment: BuildEnvironment) -> JobPlan:
    """Compile into the new directory `out`; returns the plan that it succeeded with.

    Compiled objects stay in the builder's cache until then, so an interrupted build resumes.

    Raises BuildError when it fails, or runs out of memory with one job; EngineError when the builder does not work.
    """
    while True:
        output = _LogDisplay(build, build_environment)
        try:
            with output:
                _once(build, stage, plan, out, build_environment, output)
        except EngineError as error:
            if not output.started:
                raise
            starved = output.starved()
            if starved is None:
                raise _failed(build, output, error) from error
            less = halved(plan)
            if less is None:
                raise _starved(build, output, starved) from error
            build_environment.progress.say(f"{build.name}: out of memory with {_pace(plan)} ({starved})")
            build_environment.progress.say(f"{build.name}: again with {_pace(less)}, from where it was")
            plan = less
        else:
            return plan


def _pace(plan: JobPlan) -> str:
    return f"{counted(plan.jobs, 'job')} x {counted(plan.threads, 'thread')}"


def _once(
    build: LockedBuild, stage: Stage, plan: JobPlan, out: Path, build_environment: BuildEnvironment, output: _LogDisplay
) -> None:
    with build_environment.store.temporary_directory("compile") as work_dir:
        rendered = dockerfile.render(stage.lock, stage.lock.cell)
        (work_dir / "Dockerfile").write_text(rendered.dockerfile, encoding="utf-8")
        (work_dir / "throttle.json").write_text(json.dumps({"jobs": plan.jobs, "threads": plan.threads}))
        folder.write_builds(
            [build], stage.recipes, work_dir / "builds", build_environment.store, build_environment.settings
        )
        base, builds = build_environment.layout(stage.toolchain), str(work_dir / "builds")
        contexts = {"toolchain": base, "builds": builds}
        # BuildKit 0.13 asks for the inputs of the stage that `toolchain` replaces, and does not read them.
        contexts |= {"base": base, "wheels": builds, "packages": builds}
        arguments = [word for name, value in contexts.items() for word in ("--build-context", f"{name}={value}")]
        arguments += ["--secret", f"id=throttle,src={work_dir / 'throttle.json'}"]
        arguments += ["--output", f"type=local,dest={out}"]
        build_environment.buildx(["build", "--target", f"built-{build.name}", *arguments, "."], work_dir, output)


class _LogDisplay(LogParser):
    """A log parser that shows the build's progress and its memory."""

    def __init__(self, build: LockedBuild, build_environment: BuildEnvironment) -> None:
        super().__init__()
        self._counter = build_environment.progress.counter(f"compiling {build.name}", "unit")
        self.started = False
        self.largest = 0

    def __enter__(self) -> _LogDisplay:
        self._counter.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._counter.__exit__(*exc)

    def write(self, line: str) -> None:
        event = self.feed(line)
        if event is None:
            return
        self.started = True
        self.largest = max(self.largest, event.largest)
        if event.kind == "progress":
            self._counter.reach(event.done, event.total, f"{human(event.memory)}, {human(event.peak)} at most")


def _starved(build: LockedBuild, output: _LogDisplay, evidence: str) -> BuildError:
    largest = f"its largest process took {human(output.largest)}"
    if evidence == SILENT:
        return BuildError(
            f"the builder no longer answers while {build} is compiled",
            code="source-build-connection-lost",
            why=f"{output.lost()}; {largest}",
            fix="its log says why it ended; give it more memory if it had too little, start it and run this again; "
            "compiled objects are reused",
        )
    return BuildError(
        f"{build} ran out of memory with one job",
        code="source-build-out-of-memory",
        why=f"{evidence}; {largest}",
        fix="give the builder more memory, or name a larger one with --builder",
    )


def _failed(build: LockedBuild, output: LogParser, error: EngineError) -> BuildError:
    failure = output.failure
    cause = (failure and failure.what) or error.what
    ending = output.ending(_ENDING)
    return BuildError(
        f"{build} could not be compiled",
        code="source-build-failed",
        why=f"{cause}\n{ending}" if ending else cause,
        fix=_FIXES.get((failure and failure.cause) or ""),
    )
