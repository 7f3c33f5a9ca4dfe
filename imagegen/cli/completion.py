"""Completion of the names of images and cells in a shell; the shells' scripts are click's."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from imagegen.cli.app import App
from imagegen.core.errors import ImagegenError


def complete_cells(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's signature
    """Return the images and cells whose names begin with `incomplete`; a shell has no place for an error.

    Cells come after an image's whole name, since there are many.
    """
    try:
        matrix = App(os.environ, Path(ctx.find_root().params.get("project") or ".")).matrix
    except ImagegenError:
        return []
    images = [CompletionItem(name, help=matrix.select(name)[0].description) for name in matrix.defaults]
    cells = [CompletionItem(cell.id, help=cell.purpose) for cell in matrix.cells()]
    found = [each for each in images if each.value.startswith(incomplete)]
    whole = any(incomplete.startswith(each.value) for each in images)
    return found + [each for each in cells if each.value.startswith(incomplete)] if whole or not found else found
