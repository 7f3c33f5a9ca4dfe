"""imagegen launch: print a specification that runs an image in Docker, Kubernetes, Slurm or another launcher."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen.app import launch
from imagegen.cli.app import App, complete_cells, pass_app
from imagegen.cli.output import write_document
from imagegen.core.errors import OptionConflictError


@click.command("launch")
@click.argument("cell", shell_complete=complete_cells)
@click.option(
    "--for",
    "target",
    type=click.Choice(list(launch.TARGETS)),
    required=True,
    help=f"The target: {'; '.join(f'{name}: {description}' for name, description in launch.TARGETS.items())}.",
)
@click.option("--gpus", type=click.IntRange(1, 1024), metavar="COUNT", help="GPUs of each container.")
@click.option(
    "--squashfs",
    metavar="FILE",
    help="With --for slurm: start FILE, which `imagegen export --squashfs` writes, instead of pulling the image.",
)
@click.option(
    "-o", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write to FILE, not stdout."
)
@pass_app
def command(app: App, *, cell: str, target: str, gpus: int | None, squashfs: str | None, output: Path | None) -> None:
    """Print a specification that runs CELL's image by digest: shared memory, locked memory, GPUs, driver, cache, user.

    If publish.yaml names a registry, it is the published image, else the local one. Without --gpus, Docker gives a
    container all GPUs, and schedulers give it one.
    """
    if squashfs is not None and target != "slurm":
        raise OptionConflictError("--squashfs is only for Slurm", fix="--for slurm; or leave --squashfs out")
    chosen = app.session.matrix.select_one(cell)
    text = launch.render(launch.read_launch_spec(app.session.lock_files, chosen, gpus, squashfs), target)
    write_document(output, text.encode())
