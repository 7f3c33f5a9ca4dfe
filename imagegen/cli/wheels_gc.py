"""imagegen wheels gc: remove wheels from the wheelhouse."""

from __future__ import annotations

import dataclasses
import time

import click

from imagegen.cli.app import App, pass_app
from imagegen.core.errors import UsageError
from imagegen.core.progress import human
from imagegen.core.text import counted, did_you_mean
from imagegen.plan.lock.built_wheel import BuiltWheel
from imagegen.wheels import wheelhouse

_YOUNG = 30 * 24 * 3600  # seconds


@click.command("gc")
@click.argument("names", nargs=-1, metavar="[NAME | NAME==VERSION | KEY]...")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the wheels, and how many bytes they had.")
@pass_app
def command(app: App, *, names: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Remove wheels that no lock of the project or of imagegen needs, unused for 30 days.

    With names, remove exactly those wheels: they are then compiled or pulled again.
    """
    wheels = list(wheelhouse.every(app.store))
    going = [wheel for name in names for wheel in _named(name, wheels)] if names else _unneeded(app, wheels)
    going = list({wheel.key: wheel for wheel in going}.values())
    freed = (
        wheelhouse.removable(app.store, going) if dry_run else sum(wheelhouse.remove(app.store, each) for each in going)
    )
    if as_json:
        app.json({"wheels": [dataclasses.asdict(wheel) for wheel in going], "freed": freed, "dry_run": dry_run})
        return
    for wheel in going:
        app.progress.say(f"{wheel.filename} ({human(wheel.size)}), {wheel.key}")
    verb = "would free" if dry_run else "freed"
    app.progress.say(f"{verb} {human(freed)}: {counted(len(going), 'wheel')}")


def _named(name: str, wheels: list[BuiltWheel]) -> list[BuiltWheel]:
    """Raises UsageError where none is called so."""
    found = [each for each in wheels if name in (each.name, f"{each.name}=={each.version}", each.key, each.filename)]
    if not found:
        fix = did_you_mean(name, {each.name for each in wheels}) or "`imagegen wheels list` shows what there is"
        raise UsageError(f'no wheel that is kept here is called "{name}"', code="usage-unknown-wheel", fix=fix)
    return found


def _unneeded(app: App, wheels: list[BuiltWheel]) -> list[BuiltWheel]:
    locks = [lock for cell in app.matrix.cells() if (lock := app.find_lock(cell))]
    needed = {build.key for lock in locks for build in lock.builds}
    return [
        each for each in wheels if each.key not in needed and wheelhouse.unused(app.store, each, time.time()) > _YOUNG
    ]
