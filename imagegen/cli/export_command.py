"""imagegen export: an image's files for hosts without a container engine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from imagegen.app.build import assemble_image, ensure_wheels
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.completion import complete_cells
from imagegen.core.errors import UsageError
from imagegen.core.progress import human
from imagegen.core.store.images import require_new
from imagegen.supply import export


@click.command("export")
@click.argument("cell", shell_complete=complete_cells)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Write to DIR.",
)
@click.option(
    "--inventory",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Leave out the files that the host has already: what `run_image.py inventory FILE` wrote there.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
@click.option("--no-audit", is_flag=True, help="Skip the audit that runs before the image is made.")
@json_option("Print JSON: files, bytes, and the parts.")
@pass_app
def command(
    app: App, *, cell: str, output: Path, inventory: Path | None, dry_run: bool, no_audit: bool, as_json: bool
) -> None:
    """Write CELL's image to DIR, for hosts that have no container engine.

    On the host, DIR/run_image.py unpacks the files, verifies the sha256 of each, and runs the smoke checks or a command
    with the host's GPUs. `imagegen test CELL --results FILE` reads the results of the checks.
    """
    chosen = app.matrix.select_one(cell)
    require_new(output)
    present = _read_inventory(inventory) if inventory else {}
    lock = app.fresh_lock(chosen)

    whole = ensure_wheels(app, chosen, lock)
    image = assemble_image(app, chosen, whole, audit=not no_audit)
    plan = export.plan(image, app.store, present, app.progress)
    if dry_run:
        figures = plan.as_dict()
    else:
        figures = export.write(plan, whole, chosen.declarations, output, app.store, app.progress)
    if as_json:
        app.json(figures)
        return
    size, missing, packed = (human(figures[name]) for name in ("bytes", "missing_bytes", "part_bytes"))
    app.progress.say(f"{chosen.id}: {figures['files']} files, {size}; the host lacks {missing}")
    if dry_run:
        app.progress.say(f"would write about {figures['parts']} parts, {packed}")
    else:
        app.progress.say(f"{output}: {figures['parts']} parts, {packed}; copy it to the host, and there, as root:")
        app.progress.say("  python3 run_image.py test")
    click.echo(figures["image"])


def _read_inventory(path: Path) -> dict[str, str]:
    """Return sha256 -> path. Raises UsageError for a file that `run_image.py inventory` did not write."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(digest): str(file) for digest, file in found.items()}
    except (ValueError, AttributeError) as error:
        fix = "write it on the host: `python3 run_image.py inventory FILE`"
        raise UsageError(
            "the inventory cannot be read", code="usage-no-file", where=str(path), why=str(error), fix=fix
        ) from error
