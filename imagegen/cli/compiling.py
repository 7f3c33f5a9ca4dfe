"""Shared by commands that compile wheels, or lock what must be compiled."""

from __future__ import annotations

import click

from imagegen.app.session import Session
from imagegen.plan.matrix.model import Cell
from imagegen.wheels import resolve

builder_option = click.option(
    "--builder",
    metavar="NAME",
    help="A builder that `docker buildx ls` shows (remote, Kubernetes): it compiles, in place of the engine's own.",
)


def places(session: Session, cell: Cell) -> resolve.LocalWheelSelector:
    """Return the places that are searched for wheels of components that need a compiler."""
    from imagegen.image.inventory import loose  # late: it brings the readers of wheels

    known = session.catalogue
    settings = session.sources(cell)
    return resolve.LocalWheelSelector(
        known, lambda path, torch: loose.examined(path, cell.gpus, torch), settings, session.store, session.progress
    )
