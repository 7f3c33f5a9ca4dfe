"""Write data about released packages, from the index into matrices/."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version

from imagegen import spec as matrix
from imagegen.audit.imports import starts
from imagegen.cli import main
from imagegen.cli.app import App
from imagegen.compat import harvested, import_names, metadata, metadata_file
from imagegen.compat import models as model_table
from imagegen.compat import package_names as shared_names
from imagegen.compat import wheel_scans as scans
from imagegen.compat.metadata import PackageReleases
from imagegen.compat.models import PACKAGES
from imagegen.compat.wheel_scans import PackageScans
from imagegen.core.context import Context
from imagegen.core.data import shipped
from imagegen.core.errors import UsageError
from imagegen.core.net import Client, package_index
from imagegen.core.net.package_index import DEFAULT
from imagegen.core.text import counted
from imagegen.spec.model import Component, Index
from tools.harvest import api as package_names
from tools.harvest import imports as import_harvest
from tools.harvest import interpreters, model_types, names_files, published, scans_file
from tools.harvest import torch_exports as torch_index
from tools.harvest import verdicts as summary
from tools.harvest.metadata import harvest, pinned_prereleases
from tools.harvest.published import RequiredScans
from tools.harvest.scans import SINCE, judged
from tools.session import project_option, start_session

_NAMED = 5  # versions that one line names
_MB = 1_000_000


@click.command("harvest")
@click.argument("components", nargs=-1)
@click.option(
    "--torch-exports",
    metavar="RELEASE",
    help="Instead: add a release of torch (2.16.0), or the release of a wheel, to the index of `imagegen audit`.",
)
@click.option(
    "--interpreters",
    "release",
    metavar="RELEASE",
    help="Instead: write a release of python-build-standalone (20260814) into matrices/interpreters.yaml.",
)
@click.option(
    "--models", is_flag=True, help="Instead: write matrices/models.json, the first releases with each model type."
)
@click.option(
    "--api",
    is_flag=True,
    help="Instead: write matrices/api/<package>.json for COMPONENTS, the names and keyword arguments that they use of "
    "other packages.",
)
@click.option(
    "--imports",
    is_flag=True,
    help="Instead: write matrices/imports/<package>.json for COMPONENTS, the names of others that their imports need.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --imports: the directory of what was read of wheels, from which an interrupted run goes on.",
)
@click.option("--verdicts", is_flag=True, help="Print changes as Markdown, with the cells whose verdict they change.")
@click.option(
    "--scan",
    "scanning",
    is_flag=True,
    help="Instead: read the wheels of releases of COMPONENTS, and write matrices/scans/<package>.json.",
)
@click.option("--dry-run", is_flag=True, help="With --scan: print the wheels and their bytes, and download none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: for each package its file, and what changed.")
@project_option
@click.pass_context
def command(
    context: click.Context,
    *,
    project: Path,
    components: tuple[str, ...],
    verdicts: bool,
    torch_exports: str | None,
    release: str | None,
    models: bool,
    scanning: bool,
    dry_run: bool,
    api: bool,
    imports: bool,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Read the metadata of COMPONENTS from the package index, and write matrices/metadata/<package>.json.

    Without COMPONENTS: of all packages with such a file. A file changes only when the metadata does; its `since` (the
    oldest version that is kept) and `extras` may be edited. With --scan, one wheel of each release is downloaded, read
    as `imagegen audit` reads it, and dropped; a release that has a scan of that wheel is skipped.
    """
    app = start_session(context, project)
    alone = {"--torch-exports": torch_exports, "--interpreters": release, "--models": models or None}
    exclusive = [option for option, value in alone.items() if value is not None]
    if verdicts and as_json:
        raise UsageError("--verdicts and --json both print the result", code="usage-option-conflict")
    flags = {"--verdicts": verdicts, "--scan": scanning, "--dry-run": dry_run, "--api": api, "--imports": imports}
    if api or imports:
        _require_alone([*exclusive, *(option for option, chosen in flags.items() if chosen)], [])
        write = _write_api if api else partial(_write_imports, cache=cache)
        write(app, components, as_json=as_json)
        return
    _require_alone(exclusive, [*components, *(option for option, chosen in flags.items() if chosen)])
    if scanning or dry_run:
        _scan_wheels(app, components, scanning=scanning, verdicts=verdicts, dry_run=dry_run, as_json=as_json)
        return
    if torch_exports is not None:
        _add_torch(app, torch_exports, as_json=as_json)
        return
    if release is not None:
        _refresh_interpreters(app, release, as_json=as_json)
        return
    if models:
        _write_models(app, as_json=as_json)
        return
    requested = [_known(app, name) for name in _packages(app, components)]
    before = {package.name: package for package in requested}
    settings = package_index.with_indexes(app.project.settings, _indexes(app))
    results: list[dict[str, Any]] = []
    harvested: list[PackageReleases] = []
    try:
        for package in harvest(requested, settings, str(dt.datetime.now(dt.UTC).date()), _pinned(app)):
            results.append(_keep(app, package, before[package.name]))
            harvested.append(package)
    finally:  # harvested packages are kept if others fail
        if verdicts:
            cells, rules, load = (
                app.session.matrix.all_cells,
                app.session.matrix.rules,
                partial(metadata.load, app.project.matrix_directories),
            )
            click.echo(summary.render(summary.compare(before, harvested, cells, rules, load)), nl=False)
        if as_json:
            app.json(sorted(results, key=lambda result: str(result["package"])))


def _require_alone(exclusive: Sequence[str], other_words: Sequence[str]) -> None:
    """Raise UsageError if an option that must be used alone is not."""
    if exclusive and (other_words or len(exclusive) > 1):
        why = f"{', '.join([*exclusive[1:], *other_words])} would not be harvested"
        raise UsageError(f"{exclusive[0]} must be used alone", code="usage-option-conflict", why=why)


def _scan_wheels(
    app: App, components: Sequence[str], *, scanning: bool, verdicts: bool, dry_run: bool, as_json: bool
) -> None:
    if not scanning:
        fix = "`python -m tools.harvest --scan --dry-run`"
        raise UsageError("--dry-run is for --scan", code="usage-option-conflict", fix=fix)
    if verdicts:
        raise UsageError("--verdicts is not for --scan", code="usage-option-conflict")
    known_components = app.session.matrix.components.values()
    packages = {_package(known_components, name) for name in components} or set(
        scans.names(app.project.matrix_directories)
    )
    _write_scans(app, sorted(packages), dry_run=dry_run, as_json=as_json)


def _write_scans(app: App, packages: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    """Scan the wheels of the packages' releases that have no scan yet, and write each package's file.

    Earlier scans are judged again, which needs no download. Raises FetchError, WheelError, MatrixError, StoreError.
    """

    def load_scans(name: str) -> PackageScans:
        return scans.load(app.project.matrix_directories, name) or PackageScans(name, DEFAULT, SINCE)

    today = str(dt.datetime.now(dt.UTC).date())
    settings = package_index.with_indexes(app.project.settings, _indexes(app))
    context = Context(app.project.store, settings, app.progress)
    with Client(settings) as client:
        requested = [published.required(load_scans(name), client, context) for name in packages]
        for package in requested:
            app.progress.say(_summary(package))
        app.progress.say(f"{sum(package.size for package in requested) / _MB:,.0f} MB to read")
        if not dry_run:
            requested = [replace(package, known=judged(package.known)) for package in requested]
            for package in requested:
                _keep_scans(app, package.known)
            for scanned in published.scan(requested, client, context, today):
                _keep_scans(app, scanned)
    if as_json:
        app.json([_result(app, package) for package in requested])


def _summary(required: RequiredScans) -> str:
    size = f", {required.size / _MB:,.0f} MB" if required.wheels else ""
    wheels = counted(len(required.wheels), "wheel")
    return f"{required.known.name}: {counted(required.releases, 'release')}, {wheels} to read{size}"


def _keep_scans(app: App, package: PackageScans) -> None:
    """Write a package's file if that changes it."""
    if package.releases and package != scans.load(app.project.matrix_directories, package.name):
        scans_file.write(package, scans.path_of(app.project.directory / "matrices", package.name))


def _result(app: App, required: RequiredScans) -> dict[str, Any]:
    name = required.known.name
    wheels = [{"wheel": wheel.link.filename, "sha256": wheel.sha256, "size": size} for wheel, size in required.wheels]
    path = str(scans.path_of(app.project.directory / "matrices", name))
    return {"package": name, "path": path, "releases": required.releases, "wheels": wheels, "bytes": required.size}


def _add_torch(app: App, requested: str, *, as_json: bool) -> None:
    added = torch_index.add(requested, Context(app.project.store, app.project.settings, app.progress))
    for release in added:
        news = "added" if release.written else "nothing new"
        app.progress.say(
            f"torch {release.release} for {release.machine}: {release.names} names, {news} ({release.path})"
        )
    if as_json:
        app.json([{**asdict(release), "path": str(release.path)} for release in added])


def _refresh_interpreters(app: App, release: str, *, as_json: bool) -> None:
    path = app.project.directory / "matrices" / interpreters.FILE
    directory = shipped("matrices")
    earlier = () if path.parent.resolve() == directory.resolve() else matrix.load([directory]).interpreters
    builds = interpreters.builds(release, app.project.settings)
    written = interpreters.write(builds, release, str(dt.datetime.now(dt.UTC).date()), path, earlier)
    versions = [build.version for build in builds]
    app.progress.say(
        f"{', '.join(versions)} of release {release}: {'written to' if written else 'nothing new in'} {path}"
    )
    if as_json:
        app.json({"release": release, "versions": versions, "path": str(path), "written": written})


def _write_models(app: App, *, as_json: bool) -> None:
    settings = package_index.with_indexes(app.project.settings, _indexes(app))
    packages = {name: _known(app, name) for name in PACKAGES}
    today = str(dt.datetime.now(dt.UTC).date())
    models = model_types.read(packages, settings, today, app.progress)
    path = app.project.directory / "matrices" / model_table.FILE
    changed = replace(models, read="") != replace(model_table.load(app.project.matrix_directories), read="")
    if changed:
        harvested.write(path, model_types.dumps(models))
    app.progress.say(f"{counted(len(models.first), 'model type')}, {'written' if changed else 'nothing new'} ({path})")
    if as_json:
        app.json({"path": str(path), "written": changed, "models": len(models.first)})


def _write_api(app: App, requested: Sequence[str], *, as_json: bool) -> None:
    packages = [_package(app.session.matrix.components.values(), name) for name in requested]
    packages = packages or shared_names.names(app.project.matrix_directories)
    if unknown := [name for name in packages if not starts(name)]:
        raise UsageError(
            f"{', '.join(unknown)}: not known which modules of it normal use imports",
            code="usage-invalid-value",
            fix="name packages under `users:` in imagegen/audit/data/api.yaml",
        )
    settings = package_index.with_indexes(app.project.settings, _indexes(app))
    results = []
    for package in package_names.read(packages, settings, str(dt.datetime.now(dt.UTC).date()), app.progress):
        before = shared_names.load(app.project.matrix_directories, package.package)
        path = shared_names.path_of(app.project.directory / "matrices", package.package)
        changed = before is None or replace(package, read="") != replace(before, read="")
        if changed:
            harvested.write(path, names_files.dump_names(package))
        news = "written" if changed else "nothing new"
        app.progress.say(f"{package.package}: {counted(len(package.names), 'shared name')}, {news} ({path})")
        results.append({"package": package.package, "path": str(path), "written": changed, "names": len(package.names)})
    if as_json:
        app.json(results)


def _write_imports(app: App, requested: Sequence[str], *, cache: Path | None, as_json: bool) -> None:
    """Write the import names of the requested packages, else of all that have metadata; those are also providers."""
    everything = metadata.names(app.project.matrix_directories)
    packages = list(dict.fromkeys(_package(app.session.matrix.components.values(), name) for name in requested))
    settings = package_index.with_indexes(app.project.settings, _indexes(app))
    components = app.session.matrix.components.values()
    roots = {component.package: component.imports for component in components}
    harvest = import_harvest.ImportHarvest(sorted({*everything, *packages}), settings, app.progress, cache, roots)
    results = []
    for table in harvest.read(packages or everything, str(dt.datetime.now(dt.UTC).date())):
        before = import_names.load(app.project.matrix_directories, table.package)
        path = import_names.path_of(app.project.directory / "matrices", table.package)
        changed = before is None or replace(table, read="") != replace(before, read="")
        if changed:
            harvested.write(path, names_files.dump_imports(table))
        news = "written" if changed else "nothing new"
        app.progress.say(f"{table.package}: {counted(len(table.names), 'shared name')}, {news} ({path})")
        results.append({"package": table.package, "path": str(path), "written": changed, "names": len(table.names)})
    if as_json:
        app.json(results)


def _packages(app: App, requested: Sequence[str]) -> list[str]:
    """Return the requested packages, else those that have a file.

    A component without a file is not looked up: its name on the index may belong to another project, as with apex.
    """
    components = app.session.matrix.components.values()
    chosen = {_package(components, name) for name in requested} or set(metadata.names(app.project.matrix_directories))
    if not requested and (without := sorted({component.package for component in components} - chosen)):
        app.progress.say(f"without a file, and so not asked for: {', '.join(without)}")
    return sorted(chosen)


def _package(components: Iterable[Component], name: str) -> str:
    """Return the package of a component, by its name or an alias; any other package by its own name."""
    for component in components:
        if name.lower() in {component.name, *(alias.lower() for alias in component.aliases)}:
            return component.package
    try:
        return canonicalize_name(name, validate=True)
    except InvalidName as error:
        raise UsageError(f'"{name}" is not the name of a package', code="usage-invalid-value") from error


def _known(app: App, package: str) -> PackageReleases:
    return metadata.load(app.project.matrix_directories, package) or PackageReleases(
        package, DEFAULT, None, None, (), {}
    )


def _pinned(app: App) -> dict[str, frozenset[Version]]:
    """Return the pre-releases that the harvested packages require exactly, by package."""
    names = metadata.names(app.project.matrix_directories)
    packages = (metadata.load(app.project.matrix_directories, name) for name in names)
    return pinned_prereleases(package for package in packages if package)


def _indexes(app: App) -> dict[str, Index]:
    return {alias: index for cell in app.session.matrix.cells() for alias, index in cell.indexes.items()}


def _keep(app: App, package: PackageReleases, before: PackageReleases) -> dict[str, Any]:
    """Write a changed file, log the changes and return them."""
    changed = replace(package, read=before.read) != before
    path = metadata.path_of(app.project.directory / "matrices", package.name)
    if changed:
        harvested.write(path, metadata_file.dumps(package))
    old, new = before.releases, package.releases
    news = {
        "added": [version for version in new if version not in old],
        "changed": [version for version in new if version in old and new[version] != old[version]],
        "gone": [version for version in old if version not in new],
    }
    changes = ", ".join(f"{len(versions)} {kind}{_some(versions)}" for kind, versions in news.items() if versions)
    app.progress.say(f"{package.name}: {counted(len(new), 'release')}, {changes or 'nothing new'}")
    return {"package": package.name, "path": str(path), "written": changed, "releases": len(new), **news}


def _some(versions: Sequence[str]) -> str:
    return f" ({', '.join(versions)})" if len(versions) <= _NAMED else ""


if __name__ == "__main__":
    main(command, "python -m tools.harvest")
