"""One build: its stage of the Dockerfile on a builder, as much at once as planned, less where that was too much."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.errors import BuildError, EngineError
from imagegen.core.progress import human
from imagegen.core.text import counted
from imagegen.image import dockerfile as recipe
from imagegen.image.layers import Image
from imagegen.plan.lock.model import Lock, LockedBuild
from imagegen.plan.matrix.recipe import Recipe
from imagegen.wheels.builds.bench import BuildEnvironment
from imagegen.wheels.builds.hearing import Event, LogParser
from imagegen.wheels.throttle import Plan, halved

_ENDING = 30  # lines of the log in an error
_RECIPE = "correct its recipe under wheels/ and lock again"
_FIXES = {
    "another": "set in its recipe's env what its build takes the version from, or correct the release's name",
    "disk": "free space on the disk of the builder's data: `docker buildx prune`, `docker system df`",
    "empty": "set in its recipe's env the variables with which it compiles (FORCE_BUILD, CUDA_EXT), and lock again",
    "refused": _RECIPE,
    "stopped": "run it again: it goes on from what is compiled",
}


@dataclass(frozen=True)
class Stage:
    """The input of a build. The image is in the store."""

    lock: Lock  # with this build alone
    recipes: Mapping[str, Recipe]  # by package
    toolchain: Image


def run(build: LockedBuild, stage: Stage, plan: Plan, out: Path, bench: BuildEnvironment) -> Plan:
    """Compile into the new directory `out`; returns the plan that it succeeded with.

    Compiled objects stay in the builder's cache until then, so an interrupted build resumes.

    Raises BuildError when it fails, or runs out of memory with one job; EngineError when the builder does not work.
    """
    while True:
        output = _Shown(build, bench)
        try:
            with output:
                _once(build, stage, plan, out, bench, output)
        except EngineError as error:
            if not output.started:
                raise
            starved = output.starved()
            if starved is None:
                raise _failed(build, output, error) from error
            less = halved(plan)
            if less is None:
                raise BuildError(
                    f"{build.name} {build.version} ran out of memory with one job",
                    code="source-build-out-of-memory",
                    why=f"{starved}; its largest process took {human(output.largest)}",
                    fix="give the builder more memory, or name a larger one with --builder",
                ) from error
            bench.progress.say(f"{build.name}: out of memory with {_pace(plan)} ({starved})")
            bench.progress.say(f"{build.name}: again with {_pace(less)}, from where it was")
            plan = less
        else:
            return plan


def _pace(plan: Plan) -> str:
    return f"{counted(plan.jobs, 'job')} x {counted(plan.threads, 'thread')}"


def _once(build: LockedBuild, stage: Stage, plan: Plan, out: Path, bench: BuildEnvironment, output: _Shown) -> None:
    with bench.store.room("compile") as work_dir:
        rendered = recipe.render(stage.lock, stage.lock.cell)
        (work_dir / "Dockerfile").write_text(rendered.dockerfile, encoding="utf-8")
        (work_dir / "throttle.json").write_text(json.dumps({"jobs": plan.jobs, "threads": plan.threads}))
        recipe.write_builds([build], stage.recipes, work_dir / "builds", bench.store, bench.settings)
        contexts = {
            "toolchain": bench.layout(stage.toolchain),
            "builds": str(work_dir / "builds"),
            "wheels": str(
                work_dir / "builds"
            ),  # BuildKit 0.13 asks for it, though the stage that mounts it is replaced
        }
        arguments = [word for name, value in contexts.items() for word in ("--build-context", f"{name}={value}")]
        arguments += ["--secret", f"id=throttle,src={work_dir / 'throttle.json'}"]
        arguments += ["--output", f"type=local,dest={out}"]
        bench.buildx(["build", "--target", f"built-{build.name}", *arguments, "."], work_dir, output.hear)


class _Shown(LogParser):
    """Shows how far it is, with what it takes."""

    def __init__(self, build: LockedBuild, bench: BuildEnvironment) -> None:
        super().__init__(self._show)
        self._counter = bench.progress.counter(f"compiling {build.name}", "unit")
        self.started = False
        self.largest = 0

    def __enter__(self) -> _Shown:
        self._counter.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._counter.__exit__(*exc)

    def _show(self, event: Event) -> None:
        self.started = True
        self.largest = max(self.largest, event.largest)
        if event.kind == "progress":
            self._counter.reach(event.done, event.total, f"{human(event.memory)}, {human(event.peak)} at most")


def _failed(build: LockedBuild, output: LogParser, error: EngineError) -> BuildError:
    failure = output.failure
    said = (failure and failure.what) or error.what
    ending = output.ending(_ENDING)
    return BuildError(
        f"{build.name} {build.version} could not be compiled",
        code="source-build-failed",
        why=f"{said}\n{ending}" if ending else said,
        fix=_FIXES.get((failure and failure.cause) or ""),
    )
