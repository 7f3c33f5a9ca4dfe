"""Run the smoke checks: start a container, copy the programs into it, run one after the other."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Protocol

from imagegen.audit import catalogue
from imagegen.checks import SMOKE
from imagegen.checks.smoke.table import Check, applicable
from imagegen.core.data import parse_json
from imagegen.core.errors import ContainerError, NoGpuError, OutputLimitError
from imagegen.core.image_format import PREFIX
from imagegen.core.progress import Progress
from imagegen.core.types import SEARCH_PATHS
from imagegen.lock.model import Lock, LockedEnvironment
from imagegen.run.smoke.report import STATUSES, CheckResult, SmokeReport
from imagegen.spec.model import Declarations

ROOT = "/imagegen-smoke"  # in the container only; no layer of an image holds it
SHM_BYTES = 1 << 30  # the engine's default of 64 MiB is too small for NCCL and for torch's shared tensors
EMULATED = 20  # times a check's limit where the processor is emulated: GRPO then took 1,776 s on a busy machine
GRACE = 60  # seconds after a check's own limit; then the runner itself counts as dead


class SmokeOutcome(Protocol):
    """The end of a program in a container."""

    @property
    def exit_code(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


class SmokeContainer(Protocol):
    """The parts of imagegen.engine.Container that the checks need."""

    @property
    def emulated(self) -> bool:
        """Return whether the engine's machine emulates the processor that the image is for."""

    def exec(self, argv: Sequence[str], *, timeout: float) -> SmokeOutcome:
        """Run a program and wait.

        Raises TimeoutError after `timeout` seconds, OutputLimitError when it prints too much, ContainerError when the
        container has ended, EngineError when the engine fails.
        """


class SmokeEngine(Protocol):
    """The parts of imagegen.engine.Engine that the checks need."""

    def container(
        self, ref: str, *, files: Mapping[str, bytes], gpus: bool, shm_size: int
    ) -> AbstractContextManager[SmokeContainer]:
        """A started container without network, with `files` (path -> content) in it; removed afterwards."""


def run(
    engine: SmokeEngine,
    ref: str,
    lock: Lock,
    declared: Declarations,
    *,
    require_gpu: bool,
    progress: Progress,
    only: Collection[str] = (),
) -> SmokeReport:
    """Run every check that applies to the lock in one container of the image `ref`.

    If the image has several environments, run the checks of each (`run_in_environment`), and return one report.

    Args:
        engine: the engine that has the image.
        ref: the image's reference in the engine.
        lock: the lock of the image.
        declared: the matrix's declarations about the cell's packages.
        require_gpu: count a check that is skipped for lack of a GPU as failed.
        progress: logs each result.
        only: names of the checks to run; if empty, all checks that do not have to be named.

    A failure inside the container is a result. Raises EngineError if no container can be started or the engine fails;
    that is no result of the image.
    """
    if not lock.has_several:
        (only_environment,) = lock.environments
        return _run(engine, ref, only_environment, declared, require_gpu=require_gpu, progress=progress, only=only)
    reports = [
        run_in_environment(
            engine,
            ref,
            environment,
            declared.environments[environment.name],
            require_gpu=require_gpu,
            progress=progress,
            only=only,
        )
        for environment in lock.environments
    ]
    return join_reports(ref, lock.cell, reports)


def run_in_environment(
    engine: SmokeEngine,
    ref: str,
    environment: LockedEnvironment,
    declared: Declarations,
    *,
    require_gpu: bool,
    progress: Progress,
    only: Collection[str] = (),
) -> SmokeReport:
    """Run every check that applies to one of several environments, as `run`, and as programs that activated it.

    The names of checks in the report begin with the environment's.
    """
    progress.say(f"environment {environment.name}:")
    report = _run(engine, ref, environment, declared, require_gpu=require_gpu, progress=progress, only=only)
    results = [replace(result, check=check_name(environment.name, result.check)) for result in report.results]
    return replace(report, results=tuple(results))


def activation(environment: LockedEnvironment) -> tuple[str, ...]:
    """Return the words that run a program in an environment when they precede it; () for the only environment."""
    return ("sh", "-c", f'. {environment.prefix}/bin/activate && exec "$@"', "sh") if environment.name else ()


def check_name(environment: str, check: str) -> str:
    """Return the name of an environment's check in the report of its image; of the only one ("") the check's."""
    return f"{environment}: {check}" if environment else check


def join_reports(image: str, cell: str, reports: Sequence[SmokeReport]) -> SmokeReport:
    """Join the reports of all environments of an image; an environment without a passed check is a failure."""
    results = [
        result
        for report in reports
        for result in (
            report.results
            if report.passed or any(r.failed for r in report.results)
            else (CheckResult(f"{report.cell}: checks", "fail", 0.0, "no check passed in this environment"),)
        )
    ]
    return SmokeReport(image, cell, tuple(results))


def _run(
    engine: SmokeEngine,
    ref: str,
    environment: LockedEnvironment,
    declared: Declarations,
    *,
    require_gpu: bool,
    progress: Progress,
    only: Collection[str] = (),
) -> SmokeReport:
    """Run the checks of an environment in a container."""
    lock, results = environment.lock, []
    programs = files_for(environment, declared)
    with ExitStack() as stack:
        container = _start_container(stack, engine, ref, programs, gpus=lock.axes.get("cuda") != "cpu")
        for check in applicable(parts(lock), only):
            result = apply_gpu_requirement(
                _run_one(container, check, activation(environment)), check, require_gpu=require_gpu
            )
            note = f" ({result.explanation})" if result.explanation and not result.failed else ""
            progress.say(f"  {result.check}: {result.status}, {result.seconds:.1f} s{note}")
            results.append(result)
    return SmokeReport(ref, lock.cell, tuple(results))


def _start_container(
    stack: ExitStack, engine: SmokeEngine, ref: str, programs: Mapping[str, bytes], *, gpus: bool
) -> SmokeContainer:
    """Start a container, with all GPUs if they are required and the engine has them."""
    if gpus:
        try:
            return stack.enter_context(engine.container(ref, files=programs, gpus=True, shm_size=SHM_BYTES))
        except NoGpuError:
            pass  # the checks that need a GPU report that
    return stack.enter_context(engine.container(ref, files=programs, gpus=False, shm_size=SHM_BYTES))


def parts(lock: Lock) -> frozenset[str]:
    """Return the lock's distributions and variables, which decide what checks apply to its image."""
    return frozenset(package.name for package in (*lock.packages, *lock.env))


def spec(lock: Lock, declared: Declarations) -> dict[str, object]:
    """Return the fields of smoke.program.Spec for an image of `lock`."""
    return {
        "python": lock.python,
        "prefix": PREFIX,
        # Without search paths, to which programs may add.
        "env": {variable.name: variable.value for variable in lock.env if variable.name not in SEARCH_PATHS},
        "versions": {package.name: package.version for package in lock.packages},
        "imports": {name: list(modules) for name, modules in declared.imports.items()},
        "omits": dict(declared.omits),
        "overrides": dict(declared.overrides),
        "undeclared": list(declared.undeclared),
        "modules": dict(catalogue.data("modules")),
        "gpus": _architectures(lock),
    }


def _architectures(lock: Lock) -> list[str]:
    """The GPUs that the lock is for, as compilers name them."""
    return [f"sm_{capability.replace('.', '')}" for capability in (lock.gpu.capabilities if lock.gpu else ())]


def files_for(environment: LockedEnvironment, declared: Declarations) -> dict[str, bytes]:
    """Return the files that the checks of an environment put into a container."""
    return files(spec(environment.lock, declared) | {"prefix": environment.prefix})


def files(spec: Mapping[str, object]) -> dict[str, bytes]:
    """The suite and its spec, path in the container -> content."""
    programs = {f"{ROOT}/smoke/{path.relative_to(SMOKE)}": path.read_bytes() for path in sorted(SMOKE.rglob("*.py"))}
    return {**programs, f"{ROOT}/spec.json": json.dumps(spec, indent=2, sort_keys=True).encode()}


def apply_gpu_requirement(result: CheckResult, check: Check, *, require_gpu: bool) -> CheckResult:
    """Return the result, or a failure if a GPU is required and the check was skipped for lack of one."""
    if require_gpu and check.device == "cuda" and check.gpus == 1 and result.status == "skip":
        return replace(result, status="fail", reason=f"a GPU is required, and: {result.reason}")
    return result


def _run_one(container: SmokeContainer, check: Check, activated: Sequence[str]) -> CheckResult:
    times = EMULATED if container.emulated else 1
    argv = [
        *activated,
        "env",
        "-C",
        ROOT,
        "python",
        "-m",
        "smoke.runner",
        "spec.json",
        "--times",
        str(times),
        check.name,
    ]
    start = time.monotonic()
    try:
        outcome = container.exec(argv, timeout=check.timeout * times + GRACE)
    except OutputLimitError as error:
        return CheckResult(check.name, "fail", time.monotonic() - start, error.what, log=error.why or "")
    except (TimeoutError, ContainerError) as error:
        return CheckResult(check.name, "fail", time.monotonic() - start, f"the container gave no answer: {error}")
    return parse(check.name, outcome, time.monotonic() - start)


def parse(name: str, outcome: SmokeOutcome, seconds: float) -> CheckResult:
    """Return the runner's one line as a result; other output is a failure, because the container is not trusted."""
    text = outcome.stdout.decode("utf-8", "replace").strip()
    log = outcome.stderr.decode("utf-8", "replace").strip()
    try:
        result = read_result(name, parse_json(text)) if outcome.exit_code == 0 else None
    except ValueError:
        result = None
    if result:
        return result
    last_line = (log or text or "nothing").splitlines()[-1]
    return CheckResult(
        name, "fail", seconds, f"the runner ended with exit code {outcome.exit_code}: {last_line}", log=log
    )


def read_result(name: str, answer: Any) -> CheckResult | None:
    """Return the check's result from the runner's JSON object, or None if it has another form."""
    try:
        result = CheckResult(**answer)
    except TypeError:
        return None
    sound = (
        result.check == name
        and result.status in STATUSES
        and isinstance(result.seconds, (int, float))
        and isinstance(result.reason, str)
        and isinstance(result.details, dict)
        and isinstance(result.log, str)
    )
    return result if sound else None
