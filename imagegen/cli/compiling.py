"""How commands that need a lock's compiled wheels get them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from imagegen.cli.app import App
from imagegen.plan.lock.model import Lock, LockedBuild
from imagegen.plan.matrix.model import Cell
from imagegen.run.engine import Engine
from imagegen.wheels import builds, resolve

builder_option = click.option(
    "--builder",
    metavar="NAME",
    help="A builder that `docker buildx ls` shows (remote, Kubernetes): it compiles, in place of the engine's own.",
)


def compiling(app: App, cell: Cell, engine: Engine, builder: str | None = None) -> builds.Compiling:
    """Compiles what the wheelhouse lacks, on the engine or a builder of the user's."""

    def work(lock: Lock, wanted: Sequence[LockedBuild]) -> None:
        bench = builds.Bench(engine, builder, app.store, app.sources(cell), app.progress)
        builds.compile_all(lock, wanted, cell, tuple(app.matrix.gpus.values()), bench)

    return work


def realised(app: App, cell: Cell, lock: Lock, compiling: builds.Compiling | None) -> Lock:
    """The lock with the wheels of its builds. Raises as `builds.realise`."""
    return builds.realise(lock, app.store, app.sources(cell), app.progress, compiling)


def with_engine(app: App, cell: Cell, builder: str | None = None) -> builds.Compiling:
    """As `compiling`, with an engine that is looked for once something must be compiled."""

    def work(lock: Lock, wanted: Sequence[LockedBuild]) -> None:
        with Engine.connect(app.settings, app.progress) as engine:
            compiling(app, cell, engine, builder)(lock, wanted)

    return work


def places(app: App, cell: Cell) -> resolve.Places:
    """Where a lock looks for the wheels of what needs a compiler."""
    from imagegen.image.inventory import loose  # late: it brings the readers of wheels

    known = app.catalogue
    settings = app.sources(cell)
    return resolve.Places(
        known, lambda path, torch: loose.examined(path, cell.gpus, torch), settings, app.store, app.progress
    )
