"""imagegen wheels gc: remove wheels from the store."""

from __future__ import annotations

import dataclasses
import time

import click

from imagegen.cli.app import App, json_option, pass_app
from imagegen.core.errors import UsageError
from imagegen.core.progress import human
from imagegen.core.text import counted, did_you_mean
from imagegen.lock.builds import BuiltWheel
from imagegen.wheels import wheelhouse

_YOUNG = 30 * 24 * 3600  # seconds


@click.command("gc")
@click.argument("names", nargs=-1, metavar="[NAME | NAME==VERSION | KEY]...")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@json_option("Print JSON: the wheels and their bytes.")
@pass_app
def remove_wheels(app: App, *, names: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Remove wheels that no lock of the project or of imagegen needs, unused for 30 days.

    With names, remove only these wheels, which must then be compiled or pulled again.
    """
    wheels = list(wheelhouse.every(app.project.store))
    removed = [wheel for name in names for wheel in _find(name, wheels)] if names else _unneeded(app, wheels)
    removed = list({wheel.key: wheel for wheel in removed}.values())
    if dry_run:
        freed = wheelhouse.removable(app.project.store, removed)
    else:
        freed = sum(wheelhouse.remove(app.project.store, wheel) for wheel in removed)
    if as_json:
        app.json({"wheels": [dataclasses.asdict(wheel) for wheel in removed], "freed": freed, "dry_run": dry_run})
        return
    for wheel in removed:
        app.progress.say(f"{wheel.filename} ({human(wheel.size)}), {wheel.key}")
    verb = "would free" if dry_run else "freed"
    app.progress.say(f"{verb} {human(freed)}: {counted(len(removed), 'wheel')}")


def _find(name: str, wheels: list[BuiltWheel]) -> list[BuiltWheel]:
    """Return the wheels with a name, file name or key. Raises UsageError if there are none."""
    matches = [
        wheel for wheel in wheels if name in (wheel.name, f"{wheel.name}=={wheel.version}", wheel.key, wheel.filename)
    ]
    if not matches:
        fix = did_you_mean(name, {wheel.name for wheel in wheels}) or "`imagegen wheels list` shows the wheels"
        raise UsageError(f'the store has no wheel "{name}"', code="usage-unknown-wheel", fix=fix)
    return matches


def _unneeded(app: App, wheels: list[BuiltWheel]) -> list[BuiltWheel]:
    locks = [lock for cell in app.session.matrix.cells() if (lock := app.session.lock_files.find(cell))]
    needed = {build.key for lock in locks for build in lock.builds}
    return [
        wheel
        for wheel in wheels
        if wheel.key not in needed and wheelhouse.unused(app.project.store, wheel, time.time()) > _YOUNG
    ]
