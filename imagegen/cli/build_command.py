"""imagegen build; and options that commands share which compile wheels, or lock what must be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from imagegen.app.build import BuildOptions, BuiltImage, build_image, build_layout
from imagegen.cli import parallel_builds
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.report_command import print_report
from imagegen.core.errors import OptionConflictError, UsageError
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.run.engine import Engine
from imagegen.run.smoke import SmokeFailed

builder_option = click.option(
    "--builder",
    metavar="NAME",
    help="A builder that `docker buildx ls` shows (remote, Kubernetes): it compiles, in place of the engine's own.",
)


# imagegen build: from a lock to a smoke-tested, tagged image.


@click.command("build")
@click.argument("cell")
@click.option("--no-test", is_flag=True, help="Skip the smoke checks.")
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
    help="Where the archive lacks locked Debian packages, build on today's, from a scratch lock.",
)
@builder_option
@json_option("Print JSON: for each cell its digest, tags and smoke report.")
@pass_app
def command(
    app: App,
    *,
    cell: str,
    no_test: bool,
    no_audit: bool,
    require_gpu: bool,
    output: str | None,
    scratch_base: bool,
    builder: str | None,
    as_json: bool,
) -> int:
    """Build CELL from its lock, smoke-test it, tag it. The last line on stdout is the image's digest.

    An audit of the files runs first; its errors end the build. A glob ('hopper-*') that matches several cells builds
    them side by side, as far as cores, memory and disk allow, continues when one fails, and prints a table; the exit
    code is that of the first cell that failed.
    """
    if no_test and require_gpu:
        raise OptionConflictError(
            "--require-gpu is about the checks that --no-test leaves out", fix="leave out one of the two"
        )
    chosen = app.matrix.select(cell)
    directory = None if output is None else _directory(output, cell, chosen)
    if len(chosen) > 1:
        flags = {
            "--no-test": no_test,
            "--no-audit": no_audit,
            "--require-gpu": require_gpu,
            "--scratch-base": scratch_base,
        }
        given = [flag for flag, is_set in flags.items() if is_set] + (["--builder", builder] if builder else [])
        return parallel_builds.build(app, chosen, given, as_json=as_json)
    (only,) = chosen
    lock = app.fresh_lock(only)
    options = BuildOptions(not no_test, not no_audit, require_gpu, scratch_base, builder)
    if directory:
        app.progress.say("note: no smoke checks, they need an engine that runs the image")
        built = build_layout(app, only, lock, directory, options, compile_wheels=builder is not None)
    else:
        built = _into_engine(app, only, lock, options)
    report = built.report.as_dict() if built.report else None
    if as_json:
        app.json([{"cell": only.id, "digest": built.digest, "tags": built.tags, "report": report}])
    else:
        click.echo(built.digest)
    return 0


def _directory(output: str, pattern: str, chosen: Sequence[Cell]) -> Path:
    kind, _, directory = output.partition(":")
    if kind != "oci" or not directory:
        raise UsageError(
            f"--output {output} is not of the form oci:DIR", code="usage-invalid-value", fix="--output oci:./image"
        )
    if len(chosen) != 1:
        names = ", ".join(each.id for each in chosen)
        raise UsageError(
            f"--output takes one cell, and {pattern} matches {names}",
            code="usage-several-cells",
            fix="name one of them",
        )
    return Path(directory)


def _into_engine(app: App, cell: Cell, lock: Lock, options: BuildOptions) -> BuiltImage:
    with Engine.connect(app.settings, app.progress) as engine:
        try:
            built = build_image(app, cell, lock, engine, options)
        except SmokeFailed as error:
            print_report(app.console, error.report)
            raise
        if built.report:
            print_report(app.console, built.report)
        else:
            app.progress.say("note: tagged without smoke checks (--no-test)")
        app.progress.say(f"{cell.id} is {' and '.join(built.tags)}; try it:")
        modules = ", ".join(names[0] for names in cell.declarations.imports.values() if names)
        app.progress.say(f"  {engine.docker_run_line(built.tags[0], 'python', '-c', f'import {modules}')}")
        if cell.gpus:
            app.progress.say("on a machine with GPUs, add --gpus all --ipc=host after `run`")
        return built
