"""imagegen lock: resolve a cell, or check or record its lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from imagegen.app.audit import audit_before_image
from imagegen.app.build import ensure_wheels
from imagegen.cli.app import App, pass_app
from imagegen.cli.build_command import places
from imagegen.core.errors import AuditError, LockError, UsageError
from imagegen.image import layers
from imagegen.plan import lock
from imagegen.plan import rules as compat
from imagegen.plan.lock.model import LOCAL, Lock
from imagegen.plan.matrix.model import Cell
from imagegen.wheels import resolve


@click.command("lock")
@click.argument("cell")
@click.option("--check", is_flag=True, help="Only check the lock; fail when it is stale.")
@click.option("--record", is_flag=True, help="Build the layers and write their digests into the lock.")
@click.option("--upgrade", is_flag=True, help="Take the newest versions that the matrix allows, as of now.")
@click.option("--upgrade-package", "packages", multiple=True, metavar="NAME", help="Upgrade one package.")
@click.option("--upgrade-base", is_flag=True, help="Lock today's Debian packages, and change nothing else.")
@click.option("--as-of", metavar="TIME", help="Ignore files uploaded later (RFC 3339).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: for each cell its lock, and whether it changed.")
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
    """Resolve CELL and write locks/<cell>.toml. Locked versions stay unless an option upgrades them."""
    requested = {"upgrade": upgrade, "upgrade_packages": packages, "upgrade_base": upgrade_base, "as_of": as_of}
    if check and (record or any(requested.values())):
        raise UsageError(
            "--check changes nothing, so it takes no other option",
            code="usage-option-conflict",
            fix="leave out --check or the others",
        )
    results: list[dict[str, Any]] = []
    for chosen in app.matrix.select(cell):
        if check:
            found = app.fresh_lock(chosen)
            _require_unchanged(app, found, chosen)
            results.append(_result(chosen, app.lock_path(chosen), found, changed=False))
            app.progress.say(f"{chosen.id}: fresh")
            continue
        previous = app.find_lock(chosen)
        if record and previous and not any(requested.values()) and not _outdated(app, previous, chosen):
            made = previous
        else:
            made = _make(app, chosen, previous, requested)
            if made.record is None and previous:
                made = layers.keep_record(made, previous)
            if layers.record_contradictions(made):  # what was kept of an edited lock
                made = replace(made, record=None)
        if record:
            made = replace(made, record=None)
            whole = ensure_wheels(app, chosen, made)
            promise = layers.record_of(layers.assemble(whole, app.store, app.settings_for(chosen), app.progress))
            made = replace(made, record=promise)
            _audit(app, chosen, replace(whole, record=promise))
        path = app.project / "locks" / f"{chosen.id}.toml"
        changed = made != previous or not path.exists()
        if changed:
            _write(app, path, made, previous)
        else:
            app.progress.say(f"{path}: unchanged")
        results.append(_result(chosen, path, made, changed=changed))
    if as_json:
        app.json(results)


def _result(cell: Cell, path: Path, made: Lock, *, changed: bool) -> dict[str, Any]:
    recorded = made.record.digest if made.record else None
    return {
        "cell": cell.id,
        "path": str(path),
        "changed": changed,
        "digest": recorded,
        "builds": [{"name": each.name, "version": each.version, "key": each.key} for each in made.builds],
    }


def _outdated(app: App, previous: Lock, cell: Cell) -> bool:
    if lock.stale(previous, cell) or lock.contradictions(previous, cell):
        return True
    try:
        app.require_unedited(previous, cell)
        _require_unchanged(app, previous, cell)
    except LockError:
        return True
    return False


def _require_unchanged(app: App, locked: Lock, cell: Cell) -> None:
    """Raise LockError if sources on this disk changed, which no input of the lock covers."""
    if local := [build for build in locked.builds if build.source.index == LOCAL]:  # else no store is needed
        lock.require_unchanged(local, cell.recipes, app.store)


def _make(app: App, cell: Cell, previous: Lock | None, requested: dict[str, Any]) -> Lock:
    app.require_compatible(cell, compat.facts_of_cell(cell))
    made = resolve.lock_cell(
        cell,
        previous=previous,
        settings=app.settings_for(cell),
        chooser=places(app, cell),
        store=app.store,
        rules=app.matrix.rules,
        progress=app.progress,
        **requested,
    )
    app.require_compatible(cell, compat.facts_of_lock(made, cell.base.glibc))
    return made


def _audit(app: App, cell: Cell, made: Lock) -> None:
    """Print what the audit finds. The record is written all the same: the lock is where a finding is fixed."""
    try:
        audit_before_image(app, cell, made)
    except AuditError as error:
        app.progress.say(f"NOTE: {error}")
        app.progress.say(f"NOTE: the lock has its record all the same; `imagegen build {cell.id}` refuses.")


def _write(app: App, path: Path, made: Lock, previous: Lock | None) -> None:
    if made.record is None and previous is not None and previous.record is not None:
        app.progress.say("the lock changed, so its record went; `imagegen lock --record` makes it anew")
    lock.write(made, path)
    content = made.base.content
    below = (
        f"{len(content.layers)} layers of {made.base.image}" if content else f"{len(made.base.debs)} Debian packages"
    )
    names = ", ".join(f"{build.name} {build.version}" for build in made.builds)
    compiled = f", {len(made.builds)} of them to be compiled ({names})" if made.builds else ""
    app.progress.say(f"{path}: {len(made.packages)} packages{compiled}, {below}")
    if made.builds and made.record is None:
        app.progress.say(
            f"`imagegen wheels build --cell {made.cell}` compiles now what this machine lacks of that; "
            f"`imagegen build {made.cell}` does it when it needs it"
        )
