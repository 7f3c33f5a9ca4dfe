"""imagegen export: an image's files for hosts without a container engine."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen.app.assemble import assemble_image, ensure_wheels
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.core.data import parse_json
from imagegen.core.errors import OptionConflictError, UsageError
from imagegen.core.progress import human
from imagegen.core.store.images import require_new, require_new_file
from imagegen.image.layers import Image
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.supply import export
from imagegen.supply.export import squashfs


@click.command("export")
@click.argument("cell", shell_complete=complete_cells)
@click.option(
    "-o", "--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write parts to DIR."
)
@click.option(
    "--squashfs",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a squashfs for enroot and pyxis to FILE.",
)
@click.option(
    "--inventory",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Leave out the files that the host has already: what `run_image.py inventory FILE` wrote there.",
)
@click.option("--dry-run", is_flag=True, help="Print what -o would write, and write nothing.")
@click.option("--no-audit", is_flag=True, help="Skip the audit that runs before the image is made.")
@json_option("Print JSON: files, bytes, and the parts.")
@pass_app
def command(
    app: App,
    *,
    cell: str,
    output: Path | None,
    file: Path | None,
    inventory: Path | None,
    dry_run: bool,
    no_audit: bool,
    as_json: bool,
) -> None:
    """Write CELL's image as files, for hosts that have no container engine.

    With -o, the host needs Python alone: DIR/run_image.py unpacks the files, verifies the sha256 of each, and runs the
    smoke checks or a command with the host's GPUs. `imagegen test CELL --results FILE` reads the results of the checks.

    With --squashfs, enroot and the Slurm plugin pyxis start FILE. mksquashfs writes it, without root.
    """
    if (output is None) == (file is None):
        raise OptionConflictError("an image is exported with either -o or --squashfs", fix="give one of them")
    if file and (inventory or dry_run):
        raise OptionConflictError("--inventory and --dry-run are for -o", fix="leave them out")
    chosen = app.matrix.select_one(cell)
    if file:
        require_new_file(file)
        squashfs.require_program(app.settings.env)
        image, _ = _assemble(app, chosen, audit=not no_audit)
        _write_squashfs(app, chosen, image, file, as_json=as_json)
    elif output:
        require_new(output)
        present = _read_inventory(inventory) if inventory else {}
        image, lock = _assemble(app, chosen, audit=not no_audit)
        plan = export.plan(image, app.store, present, app.progress)
        _write_parts(app, chosen, lock, plan, output, dry_run=dry_run, as_json=as_json)


def _assemble(app: App, cell: Cell, *, audit: bool) -> tuple[Image, Lock]:
    lock = ensure_wheels(app, cell, app.fresh_lock(cell))
    return assemble_image(app, cell, lock, audit=audit), lock


def _write_squashfs(app: App, cell: Cell, image: Image, file: Path, *, as_json: bool) -> None:
    written = squashfs.write(image, file, app.store, app.settings.env, app.progress)
    if as_json:
        app.json(written.as_dict())
        return
    unpacked, size = human(written.unpacked), human(written.size)
    app.progress.say(f"{cell.id}: {written.files} files, {unpacked}; {file}: {size}")
    app.progress.say(f"run it with Slurm: imagegen launch {cell.id} --for slurm --squashfs {file}")
    click.echo(written.image)


def _write_parts(
    app: App, cell: Cell, lock: Lock, plan: export.ExportPlan, output: Path, *, dry_run: bool, as_json: bool
) -> None:
    if dry_run:
        figures = plan.as_dict()
    else:
        figures = export.write(plan, lock, cell.declarations, output, app.store, app.progress)
    if as_json:
        app.json(figures)
        return
    size, missing, packed = (human(figures[name]) for name in ("bytes", "missing_bytes", "part_bytes"))
    app.progress.say(f"{cell.id}: {figures['files']} files, {size}; the host lacks {missing}")
    if dry_run:
        app.progress.say(f"would write about {figures['parts']} parts, {packed}")
    else:
        app.progress.say(f"{output}: {figures['parts']} parts, {packed}; copy it to the host, and there, as root:")
        app.progress.say("  python3 run_image.py test")
    click.echo(figures["image"])


def _read_inventory(path: Path) -> dict[str, str]:
    """Return sha256 -> path. Raises UsageError for a file that `run_image.py inventory` did not write."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        return {str(digest): str(file) for digest, file in found.items()}
    except (ValueError, AttributeError) as error:
        fix = "write it on the host: `python3 run_image.py inventory FILE`"
        raise UsageError(
            "the inventory cannot be read", code="usage-no-file", where=str(path), why=str(error), fix=fix
        ) from error
