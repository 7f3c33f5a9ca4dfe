"""imagegen lock: resolve a cell, or check or record its lock."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from imagegen.app.check_locks import LockedImage, check_locks
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.options import all_option, glob_of
from imagegen.core.errors import OptionConflictError, UsageError
from imagegen.lock.make.options import LockOptions, parse_upgrades


@click.command("lock")
@click.argument("cell", required=False, shell_complete=complete_cells)
@all_option
@click.option("--check", is_flag=True, help="Only check the locks that exist; fail when one is stale.")
@click.option("--record", is_flag=True, help="Build the layers and write their digests into the lock.")
@click.option("--upgrade", is_flag=True, help="Take the newest versions that the matrix allows, as of now.")
@click.option("--upgrade-package", "packages", multiple=True, metavar="NAME[==V]", help="Upgrade one package.")
@click.option("--upgrade-base", is_flag=True, help="Lock today's Debian packages, and change nothing else.")
@click.option("--as-of", metavar="TIME", help="Ignore files uploaded later (RFC 3339).")
@click.option("--set", "pins", multiple=True, metavar="NAME==VERSION", help="With --name: another version.")
@click.option(
    "--override", "overrides", multiple=True, metavar="NAME==VERSION", help="With --name: override a package."
)
@click.option("--add", "additions", multiple=True, metavar="NAME", help="With --name: one more package.")
@click.option("--package", "debs", multiple=True, metavar="NAME", help="With --name: one more Debian package.")
@click.option("--drop", "removals", multiple=True, metavar="NAME", help="With --name: leave out a package or variable.")
@click.option("--name", metavar="IMAGE", help="Write matrices/IMAGE.yaml, which extends CELL's image, and lock it.")
@json_option("Print JSON: for each cell its lock, and whether it changed.")
@pass_app
def command(
    app: App,
    *,
    cell: str | None,
    include_shipped: bool,
    check: bool,
    record: bool,
    upgrade: bool,
    packages: tuple[str, ...],
    upgrade_base: bool,
    as_of: str | None,
    pins: tuple[str, ...],
    overrides: tuple[str, ...],
    additions: tuple[str, ...],
    debs: tuple[str, ...],
    removals: tuple[str, ...],
    name: str | None,
    as_json: bool,
) -> None:
    """Resolve CELL and write locks/<cell>.toml. Locked versions stay unless an option upgrades them.

    With --check, all locks of CELL are checked, and the cells without one are listed. Without CELL, all locks of the
    project's cells are checked: their image or their lock is in the project. Exit code 67 when a lock is not
    fresh, or none exists.

    With --name, the lock is of a new image that extends CELL's image with the changes of --set, --add, --package,
    --override and --drop. `--set python==3.12` takes another value of the axis; an override replaces all requirements
    of a package. Its entry is written to matrices/ together with the lock, or not at all.
    """
    if (pins or additions or debs or removals or overrides) and name is None:
        raise UsageError(
            "the changed image needs a name",
            code="usage-name-missing",
            why="a lock belongs to an entry of the matrix, and the one of CELL does not state these changes",
            fix="add --name IMAGE: the changes are written to matrices/IMAGE.yaml",
        )
    names, bounds = parse_upgrades(packages)
    options = LockOptions(upgrade, names, upgrade_base, as_of, bounds)
    if check and (name or record or options != LockOptions()):
        raise OptionConflictError(
            "--check changes nothing, so it takes no other option", fix="leave out --check or the others"
        )
    cell = glob_of(cell, include_shipped=include_shipped)
    if check:
        lock_files = app.session.lock_files
        results = check_locks(
            lock_files,
            lock_files.select(cell) if cell else lock_files.require_project_cells("imagegen lock --check"),
        )
    elif cell is None:
        raise click.MissingParameter(param_hint="'CELL'", param_type="argument")
    elif name is not None:
        # late, here and below, since a check resolves and builds nothing
        from imagegen.app.entries import Changes, lock_changed

        changes = Changes(pins, additions, debs, removals, overrides)
        results = [
            lock_changed(
                app.session, app.session.matrix.select_one(cell, single=True), name, changes, options, record=record
            )
        ]
    else:
        from imagegen.app.make_locks import lock_image

        results = [
            lock_image(app.session, selected, options, record=record) for selected in app.session.matrix.select(cell)
        ]
    if as_json:
        app.json([_as_dict(result) for result in results])


def _as_dict(result: LockedImage) -> dict[str, Any]:
    locked = result.lock
    return {
        "cell": result.cell.id,
        "path": str(result.path),
        "changed": result.changed,
        "changes": [asdict(change) for change in result.changes],
        "digest": locked.record.digest if locked.record else None,
        "builds": [{"name": build.name, "version": build.version, "key": build.key} for build in locked.builds],
    }
