"""Export images for hosts without a container engine, and read the results of their smoke checks."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen.app.assemble import assemble_cell
from imagegen.checks.smoke.table import applicable
from imagegen.cli import main
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.test_command import present_report
from imagegen.core.data import parse_json
from imagegen.core.errors import SmokeError, UsageError
from imagegen.core.progress import human
from imagegen.core.store.images import require_new
from imagegen.image import layers
from imagegen.run import numerics
from imagegen.run.smoke.passed import SmokeRequirement, passed_report, save_passed_report
from imagegen.run.smoke.runner import parts
from imagegen.wheels.wheelhouse import with_local_wheels
from tools.run_image import export
from tools.run_image.results import read_results
from tools.session import project_option, start_session


@click.group("run_image")
@project_option
@click.pass_context
def command(context: click.Context, *, project: Path) -> None:
    """Run images on hosts without a container engine."""
    start_session(context, project)


@command.command("export")
@click.argument("cell")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write run_image.py and the files of the image to DIR.",
)
@click.option(
    "--inventory",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Leave out files that the host has; `run_image.py inventory FILE` writes their list there.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
@click.option("--no-audit", is_flag=True, help="Skip the audit that runs before the image is made.")
@json_option("Print JSON: files, bytes, and the parts.")
@pass_app
def write(
    app: App, *, cell: str, output: Path, inventory: Path | None, dry_run: bool, no_audit: bool, as_json: bool
) -> None:
    """Write CELL's image as files for a host that has Python and no container engine.

    DIR/run_image.py unpacks the files there, verifies the sha256 of each, and runs the smoke checks or a command with
    the host's GPUs. `results` reads the results of the checks.
    """
    chosen = app.session.matrix.select_one(cell)
    require_new(output)
    present = _read_inventory(inventory) if inventory else {}
    lock, image = assemble_cell(app.session, chosen, audit=not no_audit)
    plan = export.plan(image, app.project.store, present, app.progress)
    if dry_run:
        figures = plan.as_dict()
    else:
        figures = export.write(plan, lock, chosen.declarations, output, app.project.store, app.progress)
    if as_json:
        app.json(figures)
        return
    size, missing, packed = (human(figures[name]) for name in ("bytes", "missing_bytes", "part_bytes"))
    app.progress.say(f"{chosen.id}: {figures['files']} files, {size}; the host lacks {missing}")
    if dry_run:
        app.progress.say(f"would write about {figures['parts']} parts, {packed}")
    else:
        app.progress.say(f"{output}: {figures['parts']} parts, {packed}; copy it to the host, and run there as root:")
        app.progress.say("  python3 run_image.py test")
    click.echo(figures["image"])


def _read_inventory(path: Path) -> dict[str, str]:
    """Return sha256 -> path. Raises UsageError for a file of another format."""
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
        return {str(digest): str(file) for digest, file in document.items()}
    except (ValueError, AttributeError) as error:
        fix = "write it on the host: `python3 run_image.py inventory FILE`"
        raise UsageError(
            "the inventory cannot be read", code="usage-no-file", where=str(path), why=str(error), fix=fix
        ) from error


@command.command("results")
@click.argument("cell")
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.option("--require-gpu", is_flag=True, help="Fail when a check was skipped for lack of a GPU.")
@click.option("--numerics", "measure", is_flag=True, help="Read numerical measurements instead of smoke checks.")
@json_option("Print the report as JSON.")
@pass_app
def read(app: App, *, cell: str, file: Path, require_gpu: bool, measure: bool, as_json: bool) -> None:
    """Read FILE, the results that run_image.py of CELL's image wrote on another host.

    The store keeps smoke checks that all passed, for `imagegen publish` and `imagegen report`.
    """
    chosen = app.session.matrix.select_one(cell, single=measure)
    lock = with_local_wheels(app.session.lock_files.fresh(chosen), app.project.store)[0]
    names = numerics.CHECKS if measure else ()
    image = layers.built_digest(lock, app.project.store)
    if image is None:
        fix = f"`python -m tools.run_image export {chosen.id}` builds it"
        raise SmokeError(f"{chosen.id} was not built on this machine", code="smoke-not-built", fix=fix)
    required = SmokeRequirement.of(image, lock, chosen.declarations, require_gpu=require_gpu)
    checks = {environment.name: applicable(parts(environment.lock), names) for environment in lock.environments}
    report = read_results(file, required, checks, chosen.id)
    if measure:
        numerics.remember(app.project.store, image, report)
    elif report.passed:
        save_passed_report(app.project.store, passed_report(report, required, lock))
    present_report(app, chosen, report, as_json=as_json)


if __name__ == "__main__":
    main(command, "python -m tools.run_image")
