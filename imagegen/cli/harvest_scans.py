"""imagegen harvest --scan: what wheels of releases hold, from the index into matrices/scans/."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from imagegen.cli.app import App
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.net import Client
from imagegen.core.text import counted
from imagegen.image.inventory import published
from imagegen.image.inventory.published import RequiredScans
from imagegen.plan.harvest.scans import SINCE, judged
from imagegen.plan.lock.indexes import DEFAULT
from imagegen.plan.matrix import scans
from imagegen.plan.matrix.scans import PackageScans

_MB = 1_000_000


def scan_wheels(app: App, packages: Sequence[str], settings: Settings, *, dry_run: bool, as_json: bool) -> None:
    """Scan the wheels of the packages' releases that have no scan yet, and write each package's file.

    Earlier scans are judged again, which needs no download. Raises FetchError, WheelError, MatrixError, StoreError.
    """
    today = str(dt.datetime.now(dt.UTC).date())
    context = Context(app.store, settings, app.progress)
    with Client(settings) as client:
        requested = [published.required(_known(app, name), client, context) for name in packages]
        for each in requested:
            app.progress.say(_summary(each))
        app.progress.say(f"{sum(each.size for each in requested) / _MB:,.0f} MB to read")
        if not dry_run:
            requested = [replace(each, known=judged(each.known)) for each in requested]
            for each in requested:
                _write(app, each.known)
            for found in published.scan(requested, client, context, today):
                _write(app, found)
    if as_json:
        app.json([_result(app, each) for each in requested])


def _known(app: App, package: str) -> PackageScans:
    return scans.load(app.matrix_directories, package) or PackageScans(package, DEFAULT, SINCE)


def _summary(required: RequiredScans) -> str:
    size = f", {required.size / _MB:,.0f} MB" if required.wheels else ""
    wheels = counted(len(required.wheels), "wheel")
    return f"{required.known.name}: {counted(required.releases, 'release')}, {wheels} to read{size}"


def _write(app: App, found: PackageScans) -> None:
    """Write a package's file if that changes it."""
    if found.releases and found != scans.load(app.matrix_directories, found.name):
        scans.write(found, scans.path_of(app.project / "matrices", found.name))


def _result(app: App, required: RequiredScans) -> dict[str, Any]:
    name = required.known.name
    wheels = [{"wheel": wheel.link.filename, "sha256": wheel.sha256, "size": size} for wheel, size in required.wheels]
    path = str(scans.path_of(app.project / "matrices", name))
    return {"package": name, "path": path, "releases": required.releases, "wheels": wheels, "bytes": required.size}
