"""Options that commands share."""

from __future__ import annotations

import click

from imagegen.cli.app import App
from imagegen.spec.model import Cell

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
    chosen = app.session.matrix.select(pattern)
    if platforms is None:
        return [(chosen_cell,) for chosen_cell in chosen]
    groups = [app.session.matrix.on_platforms(chosen_cell, platforms) for chosen_cell in chosen]
    return list({group[0].id: group for group in groups}.values())
