"""imagegen cve: known vulnerabilities of what locks hold, from advisories that are here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from imagegen.cli.app import App, pass_app
from imagegen.core.errors import LockError
from imagegen.core.text import counted, shown
from imagegen.plan.lock.model import Lock
from imagegen.supply.trust import osv, project
from imagegen.supply.trust.advisories import PYPI, Package, Vulnerability, identity

_FEW = 5  # packages that ask for one


@click.command("cve")
@click.argument("pattern", metavar="CELL|GLOB")
@click.option(
    "--advisories",
    "places",
    multiple=True,
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="OSV records: a file, a directory, or an all.zip of osv.dev; several of them, if need be.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
@click.pass_context
def command(ctx: click.Context, app: App, *, pattern: str, places: tuple[Path, ...], as_json: bool) -> None:
    """Report known vulnerabilities of locked wheels and Debian packages. Nothing is fetched.

    The advisories are those that osv.dev publishes for each ecosystem (PyPI, Debian). What publish.yaml accepts until a
    day is told and does not count until that day is over. Exit code 1 when something is found that counts.
    """
    from imagegen.image.inventory.cell import known_system
    from imagegen.supply.trust.advisories import packages, vulnerabilities

    today = dt.datetime.now(dt.UTC).date()
    exemptions = project.load(app.project).exemptions
    held: dict[str, tuple[Package, ...]] = {}
    for lock in _locks(app, pattern):
        held[lock.cell] = packages(lock, known_system(lock, app.store))
        if all(each.ecosystem == PYPI for each in held[lock.cell]):
            app.progress.say(f"NOTE: {lock.cell}: what its base {lock.base.name} holds is not known, and not compared")
    names = {identity(each.ecosystem, each.name) for found in held.values() for each in found}
    read = osv.read(places, lambda ecosystem, name: identity(ecosystem, name) in names)
    reports = {name: vulnerabilities(found, read.advisories, exemptions) for name, found in held.items()}
    age = osv.told(read, today.isoformat())
    if as_json:
        document = {
            "advisories": {"records": read.records, "newest": read.newest, "ecosystems": sorted(read.ecosystems)},
            "cells": {name: [_as_dict(each, today) for each in found] for name, found in reports.items()},
        }
        app.json(document)
    else:
        for name, found in reports.items():
            for line in _lines(name, held[name], found, today):
                app.out.print(shown(line), soft_wrap=True)
        app.progress.say(f"advisories: {age}")
        for missing in sorted(_unread(held, read)):
            app.progress.say(f"NOTE: none of them is about {missing}, so packages of it were compared with nothing")
    if any(not each.accepted(today) for found in reports.values() for each in found):
        ctx.exit(1)


def _locks(app: App, pattern: str) -> list[Lock]:
    """Of the cells that have one; LockError where none has."""
    chosen = app.matrix.select(pattern)
    found = {cell.id: lock for cell in chosen if (lock := app.find_lock(cell))}
    lacking = [cell for cell in chosen if cell.id not in found]
    if not found:
        fix = f"`imagegen lock {lacking[0].id}`"
        raise LockError(
            f"{lacking[0].id} has no lock", code="lock-missing", where=str(app.lock_path(lacking[0])), fix=fix
        )
    if lacking:
        app.progress.say(f"NOTE: without a lock, and so left out: {counted(len(lacking), 'cell')}")
    return list(found.values())


def _lines(cell: str, held: tuple[Package, ...], found: tuple[Vulnerability, ...], today: dt.date) -> Iterator[str]:
    for each in found:
        first, *others = each.names
        also = f" ({', '.join(others)})" if others else ""
        yield f"{first}{also}: {each.package.shown}"
        yield from (f"  {line}" for line in _about(each, today))
    counting = [each for each in found if not each.accepted(today)]
    accepted = f"; accepted besides: {len(found) - len(counting)}" if len(counting) < len(found) else ""
    of = f"of {len({each.package for each in counting})} among {counted(len(held), 'package')}"
    yield (
        f"{cell}: known vulnerabilities: {len(counting)} {of}{accepted}"
        if counting
        else (f"{cell}: no known vulnerability in {counted(len(held), 'package')}{accepted}")
    )


def _about(found: Vulnerability, today: dt.date) -> Iterator[str]:
    if found.summary:
        yield found.summary
    if found.severity:
        yield f"severity: {', '.join(found.severity)}"
    askers = found.package.via
    more = f" and {len(askers) - _FEW} more" if len(askers) > _FEW else ""
    via = f"; asked for by {', '.join(askers[:_FEW])}{more}" if askers else ""
    yield (f"fixed in {found.fixed}" if found.fixed else "no fixed version is named") + via
    if exemption := found.exemption:
        until = f"until {exemption.until}"
        state = f"accepted {until}" if found.accepted(today) else f"was accepted {until}, which is over"
        yield f"{state}: {exemption.because}"


def _as_dict(found: Vulnerability, today: dt.date) -> dict[str, Any]:
    exemption = found.exemption
    return {
        "names": list(found.names),
        "ecosystem": found.package.ecosystem,
        "package": found.package.name,
        "version": found.package.version,
        "via": list(found.package.via),
        "summary": found.summary,
        "severity": list(found.severity),
        "fixed": found.fixed,
        "accepted": found.accepted(today),
        "exemption": {"because": exemption.because, "until": exemption.until.isoformat()} if exemption else None,
    }


def _unread(held: Mapping[str, tuple[Package, ...]], read: osv.Advisories) -> set[str]:
    """Ecosystems of packages of which no advisory that was read is."""
    wanted = {each.ecosystem.partition(":")[0] for found in held.values() for each in found}
    return wanted - read.ecosystems
