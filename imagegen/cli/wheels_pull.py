"""imagegen wheels pull: take wheels from the team's wheelhouse."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from imagegen.cli.app import App, pass_app
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.store.layout import is_digest
from imagegen.core.text import counted
from imagegen.wheels import artifacts, wheelhouse


@click.command("pull")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--cell", "cells", multiple=True, metavar="CELL", help="Every source build of CELL's lock.")
@click.option("--from", "source", metavar="REPOSITORY", help="registry.example.com/team/wheels, say.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: for each key here, pulled, or absent.")
@pass_app
def command(app: App, *, keys: tuple[str, ...], cells: tuple[str, ...], source: str | None, as_json: bool) -> None:
    """Pull wheels from a repository of a registry into the store, by their keys or for cells.

    Without --from, IMAGEGEN_WHEELHOUSE names the repository. Exit code 1 when it lacks one that the store lacks too.
    """
    place = artifacts.place(app.settings, source, "--from")
    if place is None:
        fix = "name a repository with --from, or with IMAGEGEN_WHEELHOUSE"
        raise UsageError("there is no wheelhouse to pull from", code="usage-no-wheelhouse", fix=fix)
    if not keys and not cells:
        raise UsageError("nothing to pull", code="usage-nothing-named", fix="name cells with --cell, or keys of wheels")
    wanted = dict(_of_keys(keys)) | dict(_of_cells(app, cells))
    found: dict[str, str] = {}
    with Client(app.settings) as client:
        team = artifacts.RemoteWheelhouse(place, client, app.settings)
        for key, named in wanted.items():
            name = " ".join(named) if named else key
            if wheelhouse.known(app.store, key):
                found[key] = "here"
            elif team.fetch(key, app.store, app.progress, wanted=named):
                found[key] = "pulled"
            else:
                found[key] = "absent"
            app.progress.say(f"{name}: {_OUTCOMES[found[key]]}")
    if as_json:
        app.json(found)
    else:
        counts = {outcome: list(found.values()).count(outcome) for outcome in _OUTCOMES}
        app.progress.say(
            f"{counted(counts['pulled'], 'wheel')} pulled from {team}, {counts['here']} here already, "
            f"{counts['absent']} not there"
        )
    sys.exit(1 if "absent" in found.values() else 0)


_OUTCOMES = {"here": "here already", "pulled": "pulled", "absent": "not there"}


def _of_keys(keys: tuple[str, ...]) -> Iterator[tuple[str, None]]:
    for key in keys:
        whole = key if key.startswith("sha256:") else f"sha256:{key}"
        if not is_digest(whole):
            raise UsageError(
                f'"{key}" is no key of a wheel',
                code="usage-invalid-value",
                fix="a key is sha256: and 64 lower-case hex digits",
            )
        yield whole, None


def _of_cells(app: App, cells: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, str]]]:
    for pattern in cells:
        for cell in app.matrix.select(pattern):
            for build in app.fresh_lock(cell).builds:
                yield build.key, (build.name, build.version)
