"""imagegen build: the whole road."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from imagegen.app import pipeline
from imagegen.cli import side_by_side
from imagegen.cli.app import App, pass_app
from imagegen.cli.compiling import builder_option, compiling, realised, with_engine
from imagegen.cli.gate import gate
from imagegen.cli.report import print_report
from imagegen.core.errors import UsageError
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.run.engine import Engine
from imagegen.supply.publish import proof
from imagegen.wheels import builds


@click.command("build")
@click.argument("cell")
@click.option("--no-test", is_flag=True, help="Skip the smoke checks.")
@click.option("--no-audit", is_flag=True, help="Build even what an audit finds errors in, and do not look for any.")
@click.option("--require-gpu", is_flag=True, help="Fail when a check is skipped for lack of a GPU.")
@click.option(
    "--output",
    metavar="oci:DIR",
    help="Write an OCI image layout to DIR instead of loading the image; needs no engine.",
)
@click.option(
    "--scratch-base",
    is_flag=True,
    help="Where locked Debian packages are gone from the archive, build on those of today, from a scratch lock.",
)
@builder_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: for each cell its digest, tags and smoke report.")
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

    What an audit finds wrong on the files ends it before there is an image. A pattern ('hopper-*') that several cells
    match builds them side by side, as far as cores, memory and disk allow, goes on when one fails, and prints a table;
    the exit code is that of the first cell that failed.
    """
    if no_test and require_gpu:
        raise UsageError(
            "--require-gpu is about the checks that --no-test leaves out",
            code="usage-option-conflict",
            fix="leave out one of the two",
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
        options = [flag for flag, is_set in flags.items() if is_set] + (["--builder", builder] if builder else [])
        return side_by_side.build(app, chosen, options, as_json=as_json)
    locks = [app.fresh_lock(each) for each in chosen]
    results: list[dict[str, Any]] = []

    def attempt(
        each: Cell, lock: Lock, work: Callable[[Lock], pipeline.Built], compiling: builds.Compiling | None
    ) -> None:
        built = app.with_base(each, lock, lambda lock: work(realised(app, each, lock, compiling)), scratch=scratch_base)
        report = built.report.as_dict() if built.report else None
        results.append({"cell": each.id, "digest": built.digest, "tags": built.tags, "report": report})
        if not as_json:
            click.echo(built.digest)

    if directory:
        app.progress.say("note: no smoke checks, they need an engine that runs the image")
        settings = app.sources(chosen[0])
        arguments = (directory, app.store, settings, app.progress, gate(app, chosen[0], no_audit=no_audit))
        attempt(
            chosen[0],
            locks[0],
            lambda lock: pipeline.Built(pipeline.to_layout(lock, *arguments), tags=(), report=None),
            with_engine(app, chosen[0], builder) if builder else None,
        )
    else:
        with Engine.connect(app.settings, app.progress) as engine:
            for each, lock in zip(chosen, locks, strict=True):
                held = gate(app, each, no_audit=no_audit)
                work = partial(_into_engine, app, engine, each, gate=held, test=not no_test, require_gpu=require_gpu)
                attempt(each, lock, work, compiling(app, each, engine, builder))
    if as_json:
        app.json(results)
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


def _into_engine(
    app: App, engine: Engine, cell: Cell, lock: Lock, *, gate: pipeline.Gate, test: bool, require_gpu: bool
) -> pipeline.Built:
    try:
        built = pipeline.to_engine(
            lock,
            cell.declarations,
            engine,
            app.store,
            app.sources(cell),
            app.progress,
            gate,
            test=test,
            require_gpu=require_gpu,
        )
    except pipeline.SmokeFailed as error:
        print_report(app.console, error.report)
        raise
    if built.report:
        print_report(app.console, built.report)
        wanted = proof.Wanted.of(built.digest, lock, cell.declarations, require_gpu=require_gpu)
        proof.remember(app.store, proof.of(built.report, wanted, lock))  # so that publishing need not run them again
    else:
        app.progress.say("note: tagged without smoke checks (--no-test)")
    app.progress.say(f"{cell.id} is {' and '.join(built.tags)}; try it:")
    modules = ", ".join(names[0] for names in cell.declarations.imports.values() if names)
    line = engine.docker_run_line(built.tags[0], "python", "-c", f"import {modules}")
    app.progress.say(f"  {line}")
    if cell.gpus:
        app.progress.say("on a machine with GPUs, add --gpus all --ipc=host after `run`")
    return built
