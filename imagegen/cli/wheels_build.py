"""imagegen wheels build: compile the wheels that a cell's lock needs."""

from __future__ import annotations

from dataclasses import asdict

import click

from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.options import builder_option
from imagegen.core.context import Context
from imagegen.core.errors import UsageError
from imagegen.core.text import did_you_mean
from imagegen.lock.model import Lock
from imagegen.wheels import wheelhouse


@click.command("build")
@click.argument("component", required=False)
@click.option("--cell", "pattern", required=True, metavar="CELL", help="The cell whose lock has the source builds.")
@builder_option
@json_option("Print JSON: the wheels with the record of each build.")
@pass_app
def build_wheels(app: App, *, component: str | None, pattern: str, builder: str | None, as_json: bool) -> None:
    """Compile COMPONENT, or every missing source build of CELL's lock.

    The plan is printed first. An interrupted build resumes. Prints each wheel's key and file name.
    """
    from imagegen.wheels.builds import compile as source_builds  # late, because it imports the engine

    wheels = []
    for cell in app.session.matrix.select(pattern, single=True):
        lock = app.session.lock_files.fresh(cell)
        names = _required(lock, component)
        settings, gpus = app.project.settings_for(cell), tuple(app.session.matrix.gpus.values())
        missing = [build for build in wheelhouse.missing_builds(lock, app.project.store) if build.name in names]
        missing = list(source_builds.pull_wheels(missing, Context(app.project.store, settings, app.progress)))
        source_builds.compile_builds(
            lock, missing, cell, gpus, Context(app.project.store, settings, app.progress), builder=builder
        )
        if not missing and names:
            app.progress.say(f"{cell.id}: all compiled wheels are in the store")
        elif not names:
            app.progress.say(f"{cell.id}: no wheel must be compiled")
        keys = [build.key for build in lock.builds if build.name in names]
        wheels += [wheel for key in keys if (wheel := wheelhouse.known(app.project.store, key))]
    if as_json:
        app.json([asdict(wheel) for wheel in wheels])
        return
    for wheel in wheels:
        click.echo(f"{wheel.key} {wheel.filename}")


def _required(lock: Lock, component: str | None) -> set[str]:
    """Return the names of the lock's builds. Raises UsageError for another component."""
    names = {build.name for build in lock.builds}
    if component is None:
        return names
    if component not in names:
        summary = f"{lock.cell} does not compile {component}"
        fix = did_you_mean(component, names) or f"it compiles {', '.join(sorted(names)) or 'no component'}"
        raise UsageError(summary, fix=fix)
    return {component}
