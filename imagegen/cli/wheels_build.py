"""imagegen wheels build: compile the wheels that a cell's lock needs."""

from __future__ import annotations

from dataclasses import asdict

import click

from imagegen.cli.app import App, pass_app
from imagegen.cli.compiling import builder_option
from imagegen.core.errors import UsageError
from imagegen.core.text import did_you_mean
from imagegen.plan.lock.model import Lock
from imagegen.wheels import builds, wheelhouse


@click.command("build")
@click.argument("component", required=False)
@click.option("--cell", "pattern", required=True, metavar="CELL", help="The cell whose lock says what is compiled.")
@builder_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the wheels, with the record of each build.")
@pass_app
def command(app: App, *, component: str | None, pattern: str, builder: str | None, as_json: bool) -> None:
    """Compile COMPONENT, or every missing source build of CELL's lock.

    The plan is printed first. An interrupted build resumes. Prints each wheel's key and file name.
    """
    wheels = []
    for cell in app.matrix.select(pattern):
        lock = app.fresh_lock(cell)
        names = _wanted(lock, component)
        settings, gpus = app.sources(cell), tuple(app.matrix.gpus.values())
        missing = [build for build in builds.missing_builds(lock, app.store) if build.name in names]
        missing = list(builds.pull_wheels(missing, app.store, settings, app.progress))
        builds.compile_builds(lock, missing, cell, gpus, app.store, settings, app.progress, builder=builder)
        if not missing and names:
            app.progress.say(f"{cell.id}: all compiled wheels are there")
        elif not names:
            app.progress.say(f"{cell.id}: nothing has to be compiled, since wheels fit")
        keys = [build.key for build in lock.builds if build.name in names]
        wheels += [wheel for key in keys if (wheel := wheelhouse.known(app.store, key))]
    if as_json:
        app.json([asdict(wheel) for wheel in wheels])
        return
    for wheel in wheels:
        click.echo(f"{wheel.key} {wheel.filename}")


def _wanted(lock: Lock, component: str | None) -> set[str]:
    """Names of the lock's builds. Raises UsageError for a component that is none of them."""
    names = {build.name for build in lock.builds}
    if component is None:
        return names
    if component not in names:
        what = f"{lock.cell} does not have {component} compiled"
        fix = did_you_mean(component, names) or f"it has {', '.join(sorted(names)) or 'nothing'} compiled"
        raise UsageError(what, fix=fix)
    return {component}
