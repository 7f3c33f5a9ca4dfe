"""One build: its stage of the Dockerfile on a builder, as much at once as planned, less where that was too much.

Source of the log's format: plain progress of buildx 0.13 and 0.29: `#12 34.5 text` is a line of step 12 after 34.5
seconds, and `#12 ERROR: ...` its end. BuildKit repeats the log's end behind `------`.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagegen.core.data import parse_json
from imagegen.core.errors import BuildError, EngineError
from imagegen.core.progress import human
from imagegen.core.text import counted, cut, redact
from imagegen.image import dockerfile, folder, layers
from imagegen.image.dockerfile import toolchain
from imagegen.image.layers import Image
from imagegen.lock.model import Lock, LockedBuild
from imagegen.spec.recipe import Recipe
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.builds.wheel_check import RECIPE
from imagegen.wheels.throttle import JobPlan, halved

_ENDING = 30  # lines of the log in an error
_FIXES = {
    "another": "set in its recipe's env what its build takes the version from, or correct the release's name",
    "disk": "free space on the disk of the builder's data: `docker buildx prune`, `docker system df`",
    "empty": "set in its recipe's env the variables with which it compiles (FORCE_BUILD, CUDA_EXT), and lock again",
    "refused": RECIPE,
    "stopped": "run it again; compiled objects are reused",
}

_EVENT = re.compile(r"#[0-9]+ [0-9.]+ @imagegen (\{.*\})")
_LINE = re.compile(r"#[0-9]+ (?:[0-9.]+ (?P<text>.*)|(?P<end>ERROR: .*))")
_KEPT = 50_000  # lines of a log
_END = 400  # lines in which a disguise is looked for
_WIDTH = 300  # characters of a line in an error
_MOST = 1 << 60  # of whatever is counted: JSON has larger numbers, and infinite ones

# Each disguise with its name for human readers. Sources: flash-attention#2079, roboflow/inference#2068, and the
# messages of BuildKit's client (google.golang.org/grpc, "keepalive ping failed").
_LOST = re.compile(
    r"keepalive ping failed|closing transport due to: connection error|error reading from server: EOF"
    r"|rpc error: code = Unavailable"
)
SILENT = "BuildKit no longer answered, as where compilers take all memory"
_DISGUISES = (
    (re.compile(r"exit code: 137\b"), "exit code 137 (SIGKILL)"),
    (re.compile(r"exit code: 143\b"), "exit code 143 (SIGTERM)"),
    (re.compile(r"Killed \(program (\w+)\)|Killed signal terminated program (\w+)"), "a compiler was killed"),
    (re.compile(r"died due to signal 9"), "a program of nvcc's was killed"),
    (re.compile(r"(^|[\s:])Killed\b(?! \(| signal)"), "a process was killed"),
    (_LOST, SILENT),
)


@dataclass(frozen=True)
class Event:
    """One event line of the worker. Sizes are bytes; a missing value is 0 or None."""

    kind: str  # "start", "progress", "done" or "failed"
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    memory: int = 0  # of all processes of the build, now
    peak: int = 0  # the most that it was
    largest: int = 0  # of one process, so far
    cause: str | None = None  # of a failure: "memory" or another word
    what: str | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Event:
        def number(name: str) -> float:
            value = record.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST:
                return value
            return 0

        def text(name: str) -> str | None:
            value = record.get(name)
            return value if isinstance(value, str) else None

        return cls(
            kind=text("event") or "",
            done=int(number("done")),
            total=int(number("total")),
            seconds=float(number("seconds")),
            memory=int(number("memory")),
            peak=int(max(number("peak"), number("memory"))),
            largest=int(number("largest")),
            cause=text("cause"),
            what=text("what"),
        )


@dataclass
class LogParser:
    """Parses the plain progress of one build, line by line."""

    failure: Event | None = None
    _log: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def feed(self, line: str) -> Event | None:
        """Parse a line; return the worker's event that it holds, if any."""
        if event := _event(line):
            if event.kind == "failed":
                self.failure = event
        elif match := _LINE.fullmatch(line):
            self._log.append(match["text"] if match["end"] is None else match["end"])
        elif line.startswith(("ERROR", "error")):
            self._log.append(line)
        return event

    @property
    def log(self) -> str:
        """The output of the build's programs."""
        return "".join(f"{line}\n" for line in self._log)

    def starved(self) -> str | None:
        """The evidence that a failed build ran out of memory; None where it failed for another reason."""
        if self.failure and self.failure.cause:
            return (self.failure.what or "out of memory") if self.failure.cause == "memory" else None
        return disguise(list(self._log)[-_END:])

    def lost(self) -> str:
        """Return the last line that shows that the connection to BuildKit ended; empty without one."""
        matches = (cut(redact(line), _WIDTH) for line in reversed(self._log) if _LOST.search(line))
        return next(matches, "").removeprefix("ERROR: ")

    def ending(self, lines: int) -> str:
        """Return the last lines of the log, without BuildKit's lines about the step as a whole."""
        lines_shown = [cut(redact(line), _WIDTH) for line in self._log if not line.startswith("ERROR: ")]
        return "\n".join(lines_shown[-lines:])


def disguise(lines: Iterable[str]) -> str | None:
    """Return the first of these lines that shows an out-of-memory failure; None without one."""
    all_lines = list(lines)
    if any("context canceled" in line for line in all_lines):  # a stopped build has its programs killed too
        return None
    for pattern, name in _DISGUISES:
        if any(pattern.search(line) for line in all_lines):
            return name
    return None


def _event(line: str) -> Event | None:
    """Parse an event line; None for other lines, even similar ones: a compiler may print anything."""
    match = _EVENT.fullmatch(line)
    try:
        record = parse_json(match[1]) if match else None
    except ValueError:
        return None
    return Event.of(record) if isinstance(record, dict) and record.get("event") else None


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
