"""imagegen build; and options of all commands that compile wheels or select platforms."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import click

from imagegen.app.build import BuildOptions, BuiltImage, build_image, build_layout
from imagegen.cli.app import App, Styled, Table, complete_cells, json_option, pass_app, print_report
from imagegen.core.data import parse_json
from imagegen.core.errors import IncompatibleError, LockError, OptionConflictError, SmokeError, UsageError
from imagegen.core.text import counted
from imagegen.plan.lock.environments import parts
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell

builder_option = click.option(
    "--builder",
    metavar="NAME",
    help="Compile with this builder of `docker buildx ls` (remote, Kubernetes), instead of the engine's.",
)

platform_option = click.option(
    "--platform",
    metavar="PLATFORMS",
    help="CELL on these platforms: all, or linux/amd64,linux/arm64. Several get one image index.",
)


def cells_by_index(app: App, pattern: str, platforms: str | None) -> list[tuple[Cell, ...]]:
    """Return the selected cells one by one, or with `platforms` the cells of each index; see Matrix.select.

    Raises UsageError.
    """
    chosen = app.matrix.select(pattern)
    if platforms is None:
        return [(chosen_cell,) for chosen_cell in chosen]
    groups = [app.matrix.on_platforms(chosen_cell, platforms) for chosen_cell in chosen]
    return list({group[0].id: group for group in groups}.values())


# imagegen build makes a smoke-tested, tagged image from a lock.


@click.command("build")
@click.argument("cell", shell_complete=complete_cells)
@click.option("--no-test", is_flag=True, help="Skip the smoke checks.")
@click.option("--retest", is_flag=True, help="Run the smoke checks again that passed for this image in this engine.")
@click.option("--no-audit", is_flag=True, help="Skip the audit before the image is built.")
@click.option("--require-gpu", is_flag=True, help="Fail when a check is skipped for lack of a GPU.")
@click.option(
    "--output",
    metavar="oci:DIR",
    help="Write an OCI image layout to DIR instead of loading the image; needs no engine.",
)
@click.option(
    "--scratch-base",
    is_flag=True,
    help="If the archive lacks locked Debian packages, build on today's, from a scratch lock.",
)
@platform_option
@builder_option
@json_option("Print JSON: for each cell its digest, tags and smoke report.")
@pass_app
def command(
    app: App,
    *,
    cell: str,
    platform: str | None,
    no_test: bool,
    retest: bool,
    no_audit: bool,
    require_gpu: bool,
    output: str | None,
    scratch_base: bool,
    builder: str | None,
    as_json: bool,
) -> int:
    """Build CELL from its lock, smoke-test it, tag it. The last line on stdout is the image's digest.

    An audit of the files runs first; its errors end the build. Smoke checks that passed for exactly this image in the
    same engine do not run again, unless there is a GPU that they did not have.

    A glob ('hopper-*') that matches several cells builds them side by side, as far as cores, memory and disk allow,
    continues when one fails, and prints a table; the exit code is the first failed cell's.

    --platform adds the cells that differ from CELL only in the platform. With --output they are one layout with an
    image index, whose digest is the last line.
    """
    for flag, is_set in {"--require-gpu": require_gpu, "--retest": retest}.items():
        if no_test and is_set:
            raise OptionConflictError(f"{flag} and --no-test exclude each other", fix="leave out one of the two")
    options = BuildOptions(not no_test, not no_audit, require_gpu, scratch_base, builder, retest)
    groups = cells_by_index(app, cell, platform)
    if output is not None:
        directory = _directory(output, cell, groups)
        return build_into_layout(app, groups[0], directory, options, as_json=as_json)
    chosen = [chosen_cell for group in groups for chosen_cell in group]
    if len(chosen) > 1:
        flags = {
            "--no-test": no_test,
            "--retest": retest,
            "--no-audit": no_audit,
            "--require-gpu": require_gpu,
            "--scratch-base": scratch_base,
        }
        arguments = [flag for flag, is_set in flags.items() if is_set] + (["--builder", builder] if builder else [])
        return build(app, chosen, arguments, as_json=as_json)
    (only,) = chosen
    built = build_into_engine(app, only, app.fresh_lock(only), options)
    if as_json:
        app.json([_as_dict(only, built)])
    else:
        click.echo(built.digest)
    return 0


def build_into_layout(app: App, cells: Sequence[Cell], directory: Path, options: BuildOptions, *, as_json: bool) -> int:
    """Build a layout of the cells, and print its digest. Raises the errors of `build_layout`."""
    locks = [(chosen_cell, app.fresh_lock(chosen_cell)) for chosen_cell in cells]
    app.progress.say("note: no smoke checks, they need an engine that runs the image")
    built = build_layout(app, locks, directory, options, compile_wheels=options.builder is not None)
    if as_json:
        app.json([_as_dict(cell, image) for cell, image in zip(cells, built, strict=True)])
        return 0
    if built[0].index:
        for cell, image in zip(cells, built, strict=True):
            app.progress.say(f"{cell.platform}: {image.digest}, {cell.id}")
    click.echo(built[0].index or built[0].digest)
    return 0


def _as_dict(cell: Cell, built: BuiltImage) -> dict[str, Any]:
    report = built.report.as_dict() if built.report else None
    entry = {"cell": cell.id, "digest": built.digest, "tags": built.tags, "report": report}
    return entry | ({"index": built.index} if built.index else {})


def _directory(output: str, pattern: str, groups: Sequence[Sequence[Cell]]) -> Path:
    kind, _, directory = output.partition(":")
    if kind != "oci" or not directory:
        raise UsageError(
            f"--output {output} is not of the form oci:DIR", code="usage-invalid-value", fix="--output oci:./image"
        )
    if len(groups) != 1:
        names = ", ".join(chosen_cell.id for group in groups for chosen_cell in group)
        raise UsageError(
            f"--output takes one cell, and {pattern} matches {names}",
            code="usage-several-cells",
            why="a layout has one image, or with --platform the images of cells that differ only in the platform",
            fix="name one of them",
        )
    return Path(directory)


def build_into_engine(app: App, cell: Cell, lock: Lock, options: BuildOptions) -> BuiltImage:
    """Build the image in an engine, and print its smoke report, its tags and how to run it.

    Raises the errors of `build_image`.
    """
    from imagegen.run.engine import Engine  # late, because a build into a layout needs no engine

    with Engine.connect(app.settings, app.progress) as engine:
        try:
            built = build_image(app, cell, lock, engine, options)
        except SmokeError as error:
            from imagegen.run.smoke import SmokeFailed  # late, because few builds fail so

            if isinstance(error, SmokeFailed):
                print_report(app.console, error.report)
            raise
        if built.tested is not None:
            from imagegen.wheels.throttle import duration  # late, because only this line needs it

            app.progress.say(f"tested {duration(built.tested)} ago; --retest runs the checks again")
        elif built.report:
            print_report(app.console, built.report)
        else:
            app.progress.say("note: tagged without smoke checks (--no-test)")
        app.progress.say(f"{cell.id} is {' and '.join(built.tags)}; try it:")
        modules = ", ".join(names[0] for names in cell.declarations.imports.values() if names)
        program = ["python", "-c", f"import {modules}"] if modules else ["python"]
        has_own = any(field.name == "entrypoint" for field in lock.config)
        app.progress.say(f"  {engine.docker_run_line(built.tags[0], *program, own_entrypoint=has_own)}")
        if cell.gpus:
            app.progress.say("on a machine with GPUs, add --gpus all --ipc=host after `run`")
        return built


# Build several cells, each in a process of its own, as many at a time as cores, memory and disk allow.

_PROGRAM = (sys.executable, "-P", "-c", "from imagegen.cli.main import main; main()")
# One build keeps two cores busy for most of its time, and the containers of its smoke checks take up to four processes
# of 1 GB beside imagegen itself (bench/journal/2026-11-22-two-builds.md).
_CORES, _MEMORY = 2, 6_000_000_000
# Bytes on the disk for each byte of wheels, in the store and in the engine (imagegen.run.doctor).
_DISK = 5.2


@dataclass(frozen=True)
class BuildResult:
    """The result of building a cell. `built` is its entry in the JSON of a build; `error` its first line otherwise."""

    cell: str
    code: int  # exit code
    seconds: float
    built: Mapping[str, Any] | None
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry in the JSON of several builds."""
        entry = dict(self.built) if self.built else {"cell": self.cell, "error": self.error, "exit_code": self.code}
        return {**entry, "seconds": round(self.seconds, 1)}


class BuildProcesses:
    """The processes that run. `stop` ends them all, each as after Ctrl-C, and waits for them."""

    def __init__(self, say: Callable[[str], None], options: Sequence[str], project: Path) -> None:
        self._say, self._options, self._project = say, options, project
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._stopped = False

    def run(self, cell: str) -> BuildResult:
        """Build one cell and return how it ended; its messages are printed behind its name."""
        argv = [*_PROGRAM, "--project", str(self._project), "build", cell, "--json", *self._options]
        start = time.monotonic()
        lines: list[str] = []
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            self._running[cell] = process
            if self._stopped:
                process.terminate()
            relay = Thread(target=self._relay, args=(cell, process, lines))
            relay.start()
            output = process.stdout.read() if process.stdout else ""
            code = process.wait()
            code = 128 - code if code < 0 else code  # a signal, as shells count it
            relay.join()
        del self._running[cell]
        built = _parse(output) if code == 0 else None
        return BuildResult(
            cell, code or (0 if built else 70), time.monotonic() - start, built, "" if built else _error(lines)
        )

    def _relay(self, cell: str, process: subprocess.Popen[str], lines: list[str]) -> None:
        for line in process.stderr or ():
            lines.append(line.rstrip())
            self._say(f"{cell}: {lines[-1]}")

    def stop(self) -> None:
        """Ask all processes to end; they remove their containers and temporary files."""
        self._stopped = True
        for process in list(self._running.values()):
            process.terminate()


def _parse(output: str) -> Mapping[str, Any] | None:
    """Return the only entry of a build's JSON; None for any other output."""
    try:
        (entry,) = parse_json(output)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _error(lines: Sequence[str]) -> str:
    """Return the line that names the error: the last unindented one, below which why and fix are indented."""
    return next((line for line in reversed(lines) if line and not line.startswith(" ")), "no message")


def parallel_count(count: int, cores: int, memory: int) -> int:
    """Return how many of `count` builds run at a time; `memory` is the available one in bytes."""
    return max(1, min(count, cores // _CORES, memory // _MEMORY))


def run_builds(
    sizes: Mapping[str, int],
    most: int,
    free: Callable[[], int],
    run: Callable[[str], BuildResult],
    stop: Callable[[], None],
) -> Iterator[BuildResult]:
    """Run the builds of `sizes` (cell -> bytes of disk) in its order, at most `most` at a time; yield each as it ends.

    A build is started beside others only where `free` exceeds what it and they take. One alone always starts: the build
    itself refuses where the disk is too small. `stop` is called, and the builds that run are waited for, when this is
    interrupted.
    """
    waiting = list(sizes)
    running: dict[Future[BuildResult], str] = {}
    with ThreadPoolExecutor(most) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    used = sum(sizes[cell] for cell in running.values())
                    if running and free() < used + sizes[waiting[0]]:
                        break
                    cell = waiting.pop(0)
                    running[pool.submit(run, cell)] = cell
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    del running[future]
                    yield future.result()
        except BaseException:
            stop()
            raise


def build(app: App, cells: Sequence[Cell], options: Sequence[str], *, as_json: bool) -> int:
    """Build the cells, print a table (or one JSON document), and return the exit code of the first that failed."""
    ended: dict[str, BuildResult] = {}
    sizes: dict[str, int] = {}
    for cell in cells:
        try:
            locks = [lock for _, lock in parts(cell, app.fresh_lock(cell))]
            files = {wheel.file.digest: wheel.file.estimate for lock in locks for wheel in lock.wheels}
            sizes[cell.id] = int(_DISK * sum(files.values()))
        except (LockError, IncompatibleError) as error:
            app.progress.say(f"error[{error.code}]: {error}")
            ended[cell.id] = BuildResult(cell.id, error.exit_code, 0.0, None, f"error[{error.code}]: {error.what}")
    most = parallel_count(len(sizes), len(os.sched_getaffinity(0)), _available_memory())
    builds = BuildProcesses(app.progress.say, options, app.project)
    app.progress.say(f"{counted(len(sizes), 'build')}, {most} at a time")
    for run_build in run_builds(sizes, most, partial(_free, app.store.root), builds.run, builds.stop):
        ended[run_build.cell] = run_build
    results = [ended[cell.id] for cell in cells]
    if as_json:
        app.json([result.as_dict() for result in results])
    else:
        _rows_table(results).print(app.out)
    return next((result.code for result in results if result.code), 0)


def _rows_table(results: Sequence[BuildResult]) -> Table:
    table = Table("cell", "result", "time", "", wraps=("",))
    for each in results:
        result = Styled("built", "green") if each.built else Styled("failed", "red")
        table.add_row(each.cell, result, f"{each.seconds:.0f} s", each.built["digest"] if each.built else each.error)
    return table


def _free(path: Path) -> int:
    return shutil.disk_usage(path).free


def _available_memory() -> int:
    """Return MemAvailable of /proc/meminfo (proc(5)) in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
