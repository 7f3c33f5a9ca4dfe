"""imagegen store: check, gc, size."""

from __future__ import annotations

import sys

import click

from imagegen.cli.app import App, pass_app
from imagegen.progress import human
from imagegen.store import refs, upkeep


@click.group("store")
def command() -> None:
    """Look after the store, an OCI image layout under XDG_CACHE_HOME."""


@command.command()
@click.option("--repair", is_flag=True, help="Remove damaged blobs; the next build makes or fetches them again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def check(app: App, *, repair: bool, as_json: bool) -> None:
    """Read every blob and name the damaged ones; exit code 1 when there are any."""
    damaged = upkeep.check(app.store, repair=repair)
    if as_json:
        app.json([damage.digest for damage in damaged])
    for damage in damaged:
        app.progress.say(f"damaged: {damage.path}{' (removed)' if repair else ''}: its bytes have another sha256")
    if damaged and not repair:
        app.progress.say(
            "fix: `imagegen store check --repair` removes them; the next build makes or fetches them again"
        )
    if not as_json:
        app.progress.say(f"{len(list(upkeep.blobs(app.store)))} blobs, {len(damaged)} damaged")
    sys.exit(1 if damaged and not repair else 0)


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes).")
@pass_app
def gc(app: App, *, as_json: bool) -> None:
    """Remove what no image of the store and no lock of the project or of imagegen needs."""
    wanted = set(refs.images(app.store).values())
    for cell in app.matrix.cells():
        found = app.find_lock(cell)
        if found is None:
            continue
        files = [found.uv.file, *(wheel.file for wheel in found.wheels)]
        for wheel in found.wheels:
            if wheel.sdist:
                files += [wheel.sdist.file, *(needed.file for needed in wheel.sdist.build_requires)]
        wanted |= {file.digest for file in files} | {deb.digest for deb in found.base.debs}
        if found.record:
            wanted |= {layer.digest for layer in found.record.layers}
            wanted |= {layer.diff_id for layer in found.record.layers}
    freed = upkeep.collect(app.store, wanted)
    if as_json:
        app.json({"freed": freed})
    else:
        app.progress.say(f"freed {human(freed)}")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes).")
@pass_app
def size(app: App, *, as_json: bool) -> None:
    """How much disk the store takes."""
    sizes = upkeep.sizes(app.store)
    parts = {
        "blobs": sizes.blobs,
        "rootfs": sizes.rootfs,
        "records": sizes.records,
        "unfinished": sizes.unfinished,
        "total": sizes.total,
    }
    if as_json:
        app.json(parts)
        return
    for name, value in parts.items():
        click.echo(f"{name:<12}{human(value):>10}")
