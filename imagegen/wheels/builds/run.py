"""One source build: its toolchain, its stage on a builder, and how buildx shows its progress and want of memory.

Source of the format: plain progress of buildx 0.13 and 0.29: `#12 34.5 text` is a line of step 12 after 34.5 seconds,
and `#12 ERROR: ...` its end. BuildKit repeats the log's end behind `------`.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagegen.audit.capability import arch, runs
from imagegen.audit.check import audit
from imagegen.audit.model import CodeTarget, Package, Severity
from imagegen.audit.readers import loose_wheels
from imagegen.compat import metadata
from imagegen.core import data, toml
from imagegen.core.config import Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import BuildError, EngineError, WheelError
from imagegen.core.progress import human
from imagegen.core.store import Store
from imagegen.core.text import counted, cut, redact
from imagegen.core.types import Gpu, parse_requirement
from imagegen.image import dockerfile as recipe
from imagegen.image import layers
from imagegen.image.layers import Image
from imagegen.lock.builds import patched_sources
from imagegen.lock.model import Lock, LockedBuild
from imagegen.oci.documents import MACHINES
from imagegen.spec.recipe import Recipe
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.throttle import JobPlan, halved

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
_SILENT = "BuildKit no longer answered, as where compilers take all memory"
_DISGUISES = (
    (re.compile(r"exit code: 137\b"), "exit code 137 (SIGKILL)"),
    (re.compile(r"exit code: 143\b"), "exit code 143 (SIGTERM)"),
    (re.compile(r"Killed \(program (\w+)\)|Killed signal terminated program (\w+)"), "a compiler was killed"),
    (re.compile(r"died due to signal 9"), "a program of nvcc's was killed"),
    (re.compile(r"(^|[\s:])Killed\b(?! \(| signal)"), "a process was killed"),
    (_LOST, _SILENT),
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


# One build: its stage of the Dockerfile on a builder, as much at once as planned, less where that was too much.

_ENDING = 30  # lines of the log in an error
_RECIPE = "correct its recipe under wheels/ and lock again"
_FIXES = {
    "another": "set in its recipe's env what its build takes the version from, or correct the release's name",
    "disk": "free space on the disk of the builder's data: `docker buildx prune`, `docker system df`",
    "empty": "set in its recipe's env the variables with which it compiles (FORCE_BUILD, CUDA_EXT), and lock again",
    "refused": _RECIPE,
    "stopped": "run it again; compiled objects are reused",
}


@dataclass(frozen=True)
class Stage:
    """The input of a build. The image is in the store."""

    lock: Lock  # with only this build
    recipes: Mapping[str, Recipe]  # by package
    toolchain: Image


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
        rendered = recipe.render(stage.lock, stage.lock.cell)
        (work_dir / "Dockerfile").write_text(rendered.dockerfile, encoding="utf-8")
        (work_dir / "throttle.json").write_text(json.dumps({"jobs": plan.jobs, "threads": plan.threads}))
        recipe.write_builds(
            [build],
            stage.recipes,
            work_dir / "builds",
            build_environment.store,
            build_environment.settings,
        )
        toolchain, folder = build_environment.layout(stage.toolchain), str(work_dir / "builds")
        contexts = {"toolchain": toolchain, "builds": folder}
        # BuildKit 0.13 asks for the inputs of the stage that `toolchain` replaces, and does not read them.
        contexts |= {"base": toolchain, "wheels": folder, "packages": folder}
        arguments = [word for name, value in contexts.items() for word in ("--build-context", f"{name}={value}")]
        arguments += ["--secret", f"id=throttle,src={work_dir / 'throttle.json'}"]
        arguments += ["--output", f"type=local,dest={out}"]
        build_environment.buildx(["build", "--target", f"built-{build.name}", *arguments, "."], work_dir, output.show)


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

    def show(self, line: str) -> None:
        event = self.feed(line)
        if event is None:
            return
        self.started = True
        self.largest = max(self.largest, event.largest)
        if event.kind == "progress":
            self._counter.reach(event.done, event.total, f"{human(event.memory)}, {human(event.peak)} at most")


def _starved(build: LockedBuild, output: _LogDisplay, evidence: str) -> BuildError:
    largest = f"its largest process took {human(output.largest)}"
    if evidence == _SILENT:
        return BuildError(
            f"the builder no longer answers while {_name(build)} is compiled",
            code="source-build-connection-lost",
            why=f"{output.lost()}; {largest}",
            fix="its log says why it ended; give it more memory if it had too little, start it and run this again; "
            "compiled objects are reused",
        )
    return BuildError(
        f"{_name(build)} ran out of memory with one job",
        code="source-build-out-of-memory",
        why=f"{evidence}; {largest}",
        fix="give the builder more memory, or name a larger one with --builder",
    )


def _failed(build: LockedBuild, output: LogParser, error: EngineError) -> BuildError:
    failure = output.failure
    cause = (failure and failure.what) or error.what
    ending = output.ending(_ENDING)
    return BuildError(
        f"{build.name} {build.version} could not be compiled",
        code="source-build-failed",
        why=f"{cause}\n{ending}" if ending else cause,
        fix=_FIXES.get((failure and failure.cause) or ""),
    )


# The image that a build starts from, with the cell's own layers and the wheels that it is compiled against.


def stage(lock: Lock, recipes: Mapping[str, Recipe], build_environment: BuildEnvironment) -> Stage:
    """The toolchain's image, in the store, for a lock with one build. Raises as `layers.assemble`."""
    toolchain = layers.assemble(recipe.toolchain(lock), build_environment.context)
    return Stage(lock, recipes, toolchain)


# Check that a build's sources match its recipe, before its toolchain is fetched.


def require_sources(build: LockedBuild, store: Store, settings: Settings) -> None:
    """Raise BuildError where the sources cannot be unpacked, a patch does not apply, or they are another release.

    Reads the store only, with the worker's own code.
    """
    with patched_sources(build, store, settings) as (sources, _):
        _require_release(build, sources / "pyproject.toml")


def _require_release(build: LockedBuild, pyproject: Path) -> None:
    """Raise BuildError where pyproject.toml states another version (PEP 621: no backend may change it)."""
    stated = _stated(pyproject)
    if stated is None:
        return
    name, version = stated
    if (canonicalize_name(name), Version(version.public)) != (build.name, Version(Version(build.version).public)):
        raise BuildError(
            f"the sources of {_name(build)} are another release",
            code="source-build-wrong-release",
            where="pyproject.toml",
            why=f"they call themselves {name} {version}",
            fix=f"name the release as its sources do: {_RECIPE}",
        )


def _stated(pyproject: Path) -> tuple[str, Version] | None:
    """Return name and version; None where the build decides, or where only the build's backend can report the fault."""
    if pyproject.is_symlink() or not pyproject.is_file():
        return None
    try:
        project: Any = toml.loads(data.read(pyproject, longest=data.MAX_SOURCE_FILE).decode()).get("project", {})
        return str(project["name"]), Version(project["version"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# Check a compiled wheel before it enters the wheelhouse.

_SHOWN = 5  # errors of an audit in one message


def built_wheel(folder: Path, build: LockedBuild) -> Path:
    """Return the one wheel of a build's output. Raises BuildError for none, for several, and for another release."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(path.name for path in wheels) or "none"
        raise BuildError(
            f"{_name(build)} gave {len(wheels)} wheels",
            code="source-build-wheel-count",
            why=f"one was requested; there are: {names}",
        )
    (path,) = wheels
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except ValueError as error:
        raise BuildError(
            f"{_name(build)} gave a file that is not a wheel",
            code="source-build-wheel-invalid",
            where=path.name,
            why=str(error),
        ) from error
    if (name, version) != (canonicalize_name(build.name), Version(build.version)):
        raise BuildError(
            f"{_name(build)} gave a wheel of another release",
            code="source-build-wrong-release",
            where=path.name,
            why=f"{build.name} {build.version} was requested, and this is {name} {version}",
            fix="set in its recipe's env what its build takes the version from, or correct the release's name",
        )
    return path


def check_wheel(
    path: Path, build: LockedBuild, lock: Lock, gpus: Sequence[Gpu], audited_gpus: Sequence[Gpu]
) -> list[str]:
    """Return remarks about an acceptable wheel. `gpus` are the cell's; an audit reports on `audited_gpus`.

    Raises BuildError for a wheel that is not acceptable.
    """
    torch = next((wheel.version for wheel in lock.wheels if wheel.name == "torch"), None)
    try:
        subject = replace(loose_wheels.wheels_subject([path], tuple(gpus), torch), python=lock.python)
    except WheelError as error:
        raise BuildError(
            f"{_name(build)} gave a wheel that cannot be used",
            code="source-build-wheel-invalid",
            where=error.what,
            why=error.why,
        ) from error
    (package,) = subject.packages
    _require_modules(package, build)
    _require_requirements(package, build, lock)
    remarks = _architectures(package, build)
    report = audit(subject, audited_gpus)
    if errors := [finding for finding in report.findings if finding.severity is Severity.ERROR]:
        lines = [f"{error.id}: {error.path or path.name}: {error.evidence}" for error in errors[:_SHOWN]]
        lines += [f"and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
        raise BuildError(
            f"the audit refuses the wheel of {_name(build)}",
            code="source-build-audit",
            where=path.name,
            why="\n       ".join(lines),
            fix=f"`imagegen audit --explain {errors[0].id}` says what that means",
        )
    return remarks


def _require_modules(package: Package, build: LockedBuild) -> None:
    extensions = {_module(path) for path, file in package.files.items() if path.endswith(".so") and file.elf}
    lacking = [name for name in build.modules if name not in extensions]
    if not build.modules and any(file.elf for file in package.files.values()):
        return  # installed below a prefix: libraries and programs, which no Python imports
    if not extensions:
        raise BuildError(
            f"{_name(build)} was built, and holds no extension",
            code="source-build-no-extension",
            why="nothing in it was compiled: its build left that out and did not say so"
            + (f"; asked for was {', '.join(build.modules)}" if build.modules else ""),
            fix="its recipe must set the variables with which it compiles (FORCE_BUILD, CUDA_EXT and their like)",
        )
    if lacking:
        raise BuildError(
            f"{_name(build)} lacks {', '.join(lacking)}",
            code="source-build-incomplete",
            why=f"it holds {', '.join(sorted(extensions))}",
            fix=f"its recipe must switch that part on, or not ask for it; {_RECIPE}",
        )


def _module(path: str) -> str:
    """The dotted name of a module: a/b.cpython-311-x86_64-linux-gnu.so is a.b."""
    pure = PurePosixPath(path)
    return ".".join([*pure.parent.parts, pure.name.partition(".")[0]])


def _require_requirements(package: Package, build: LockedBuild, lock: Lock) -> None:
    """Raise BuildError for a requirement of the wheel that the lock does not satisfy."""
    counted_on = {_parsed(require, build).name for require in build.requires}
    versions = {locked.name: locked.version for locked in lock.packages}
    for needed in _needed(package, build, lock):
        name = canonicalize_name(needed.name)
        if name not in {canonicalize_name(expected) for expected in counted_on}:
            raise BuildError(
                f"{_name(build)} asks for {needed}, which the lock does not hold",
                code="source-build-requirement-missing",
                why=f"its recipe says that it requires {', '.join(build.requires) or 'nothing'}",
                fix=f"add it to `requires`: {_RECIPE}",
            )
        if name in versions and not needed.specifier.contains(versions[name], prereleases=True):
            raise BuildError(
                f"{_name(build)} asks for {needed}, and the lock has {name} {versions[name]}",
                code="source-build-requirement-conflict",
                fix=f"correct `requires` in its recipe: {_RECIPE}",
            )


def _needed(package: Package, build: LockedBuild, lock: Lock) -> Iterator[Requirement]:
    """Yield the wheel's requirements in this image, also with an undecidable marker, but without its extras'."""
    for text in package.requires:
        requirement = _parsed(text, build)
        marker, machine = requirement.marker, MACHINES[lock.platform]
        if marker is None or metadata.holds(str(marker), f"{lock.python}.0", machine, "") is not False:
            yield requirement


def _parsed(text: str, build: LockedBuild) -> Requirement:
    try:
        return parse_requirement(text)
    except ValueError as error:
        raise BuildError(
            f"{_name(build)} has an invalid requirement", code="source-build-requirement-invalid", why=str(error)
        ) from error


def _architectures(package: Package, build: LockedBuild) -> list[str]:
    """Return remarks on unrequested GPU code. Raises BuildError if requested GPU code is missing."""
    if not build.architectures:
        return []
    targets = {target for file in package.files.values() for group in file.code for target in group.targets}
    lacking = [architecture for architecture in build.architectures if runs(targets, architecture) != "sass"]
    compiled_for = ", ".join(str(compiled_target) for compiled_target in sorted(targets)) or "none at all"
    if lacking:
        raise BuildError(
            f"{_name(build)} has no GPU code for compute capability {', '.join(lacking)}",
            code="source-build-no-gpu-code",
            why=f"it was compiled for {compiled_for}",
            fix=f"the variable of its recipe's `architectures` may not be the one that it reads: {_RECIPE}",
        )
    useless = sorted(
        compiled_target
        for compiled_target in targets
        if compiled_target.kind == "sass" and not _serves(compiled_target, build)
    )
    return [f"compiled for {', '.join(map(str, useless))} too, which was not requested"] if useless else []


def _serves(target: CodeTarget, build: LockedBuild) -> bool:
    return any(
        runs([target], architecture) == "sass" or arch(architecture) == target.arch
        for architecture in build.architectures
    )


def _name(build: LockedBuild) -> str:
    return f"{build.name} {build.version}"
