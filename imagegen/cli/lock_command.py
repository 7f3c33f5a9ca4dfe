"""imagegen lock: resolve a cell, or check or record its lock."""

from __future__ import annotations

from typing import Any

import click

from imagegen.app.lock import LockedImage, check_locks, lock_image
from imagegen.cli.app import App, json_option, pass_app
from imagegen.core.errors import OptionConflictError
from imagegen.wheels.resolve import LockOptions


@click.command("lock")
@click.argument("cell")
@click.option("--check", is_flag=True, help="Only check the locks that exist; fail when one is stale.")
@click.option("--record", is_flag=True, help="Build the layers and write their digests into the lock.")
@click.option("--upgrade", is_flag=True, help="Take the newest versions that the matrix allows, as of now.")
@click.option("--upgrade-package", "packages", multiple=True, metavar="NAME", help="Upgrade one package.")
@click.option("--upgrade-base", is_flag=True, help="Lock today's Debian packages, and change nothing else.")
@click.option("--as-of", metavar="TIME", help="Ignore files uploaded later (RFC 3339).")
@json_option("Print JSON: for each cell its lock, and whether it changed.")
@pass_app
def command(
    app: App,
    *,
    cell: str,
    check: bool,
    record: bool,
    upgrade: bool,
    packages: tuple[str, ...],
    upgrade_base: bool,
    as_of: str | None,
    as_json: bool,
) -> None:
    """Resolve CELL and write locks/<cell>.toml. Locked versions stay unless an option upgrades them.

    With --check, all locks of CELL are checked, and the cells without one are listed. Exit code 67 when a lock is not
    fresh, or none exists.
    """
    options = LockOptions(upgrade=upgrade, packages=packages, upgrade_base=upgrade_base, as_of=as_of)
    if check and (record or options != LockOptions()):
        raise OptionConflictError(
            "--check changes nothing, so it takes no other option", fix="leave out --check or the others"
        )
    cells = app.matrix.select(cell)
    results = check_locks(app, cells) if check else [lock_image(app, each, options, record=record) for each in cells]
    if as_json:
        app.json([_as_dict(result) for result in results])


def _as_dict(result: LockedImage) -> dict[str, Any]:
    locked = result.lock
    return {
        "cell": result.cell.id,
        "path": str(result.path),
        "changed": result.changed,
        "digest": locked.record.digest if locked.record else None,
        "builds": [{"name": each.name, "version": each.version, "key": each.key} for each in locked.builds],
    }
