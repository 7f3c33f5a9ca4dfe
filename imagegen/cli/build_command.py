"""imagegen build: make a smoke-tested, tagged image from a lock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from imagegen.app.build import BuildOptions, BuiltImage, build_image, build_layout
from imagegen.app.parallel_build import BuildResult, build_cells
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.options import builder_option, platform_option
from imagegen.cli.output import failed_checks_printed, print_report
from imagegen.cli.table import Styled, Table
from imagegen.core.errors import OptionConflictError, UsageError
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell


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
    groups = app.session.matrices.select_groups(cell, platform)
    if output is not None:
        directory = _directory(output, cell, groups)
        return build_into_layout(app, groups[0], directory, options, as_json=as_json)
    chosen = [chosen_cell for group in groups for chosen_cell in group]
    if len(chosen) > 1:
        results = build_cells(app.session.lock_files, chosen, options)
        if as_json:
            app.json([result.as_dict() for result in results])
        else:
            _results_table(results).print(app.out)
        return next((result.code for result in results if result.code), 0)
    (only,) = chosen
    built = build_into_engine(app, only, app.session.lock_files.fresh(only), options)
    if as_json:
        app.json([_as_dict(only, built)])
    else:
        click.echo(built.digest)
    return 0


def build_into_layout(app: App, cells: Sequence[Cell], directory: Path, options: BuildOptions, *, as_json: bool) -> int:
    """Build a layout of the cells, and print its digest. Raises the errors of `build_layout`."""
    locks = [(chosen_cell, app.session.lock_files.fresh(chosen_cell)) for chosen_cell in cells]
    app.progress.say("note: no smoke checks, they need an engine that runs the image")
    built = build_layout(app.session, locks, directory, options)
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
    from imagegen.engine import Engine  # late, because a build into a layout needs no engine

    with Engine.connect(app.project.settings, app.progress) as engine:
        with failed_checks_printed(app.console):
            built = build_image(app.session, cell, lock, engine, options)
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


def _results_table(results: Sequence[BuildResult]) -> Table:
    table = Table("cell", "result", "time", "", wraps=("",))
    for result in results:
        status = Styled("built", "green") if result.built else Styled("failed", "red")
        remark = result.built["digest"] if result.built else result.error
        table.add_row(result.cell, status, f"{result.seconds:.0f} s", remark)
    return table
