"""imagegen wheels: find, build, list, push, pull and remove wheels that no index has."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from typing import Any

import click
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.commands import CommandGroup
from imagegen.cli.options import builder_option
from imagegen.cli.table import Table
from imagegen.core.context import Context
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.oci import is_digest
from imagegen.core.progress import human
from imagegen.core.text import counted, did_you_mean, shown
from imagegen.plan import lock
from imagegen.plan.lock.builds import BuiltWheel
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell, Component, Requirement
from imagegen.plan.matrix.recipe import Recipe
from imagegen.supply.compare.difference import CORES, estimate
from imagegen.wheels import catalogue, wheelhouse
from imagegen.wheels.find import Candidate, WheelRequirement, find, unreachable
from imagegen.wheels.offers import WheelSource
from imagegen.wheels.resolve import candidates
from imagegen.wheels.throttle import BuildJob, duration

# imagegen wheels find shows the source of a wheel that may have to be compiled.


@click.command("find")
@click.argument("component")
@click.option(
    "--cell", "pattern", metavar="CELL", required=True, shell_complete=complete_cells, help="An image or a cell."
)
@json_option()
@pass_app
def find_wheels(app: App, *, component: str, pattern: str, as_json: bool) -> int:
    """Show which wheel of COMPONENT a cell gets, and why; exit code 1 if none is compatible.

    COMPONENT==VERSION searches that version instead of the cell's. Candidates are listed in search order; a file with a
    compatible name is fetched, hashed and audited, until one passes. Nothing is compiled, and no lock is changed.
    """
    name, version = _parse_component(component)
    wanted, cell = _component(app, name), app.matrix.select_one(pattern, single=True)
    catalogue_data = app.wheel_catalogue
    need, note = _need(app, wanted, version, cell, catalogue_data)
    if note:
        app.progress.say(note)
    settings = app.settings_for(cell)
    with Client(settings) as client:
        alias = next(
            (requirement.index for requirement in cell.requirements if requirement.component.name == wanted.name), None
        )
        alias = alias or wanted.index.get(cell.cuda, "pypi")
        index = candidates.index_listing(alias, wanted.package, settings, client)
        sources = candidates.candidate_places(catalogue_data, index, settings, app.store, client, app.progress)
        from imagegen.audit.readers import loose_wheels  # late, because it imports the readers of wheels

        results = find(need, sources, partial(loose_wheels.audit_wheel, gpus=cell.gpus, torch=need.torch))
    chosen = next((candidate for candidate in results if candidate.fits), None)
    if as_json:
        app.json(_as_dict(wanted, cell, need, results, chosen))
    else:
        _print(app, wanted, cell, need, results, chosen)
    return 0 if chosen else 1


def _parse_component(text: str) -> tuple[str, str | None]:
    """Parse NAME or NAME==VERSION, with a normalized name. Raises UsageError for other requirements."""
    name, pinned, version = text.partition("==")
    try:
        return canonicalize_name(name.strip(), validate=True), str(Version(version)) if pinned else None
    except ValueError as error:
        fix = "name a component, or a version of it as NAME==VERSION"
        raise UsageError(
            f'"{text}" is neither a component nor one with a version', code="usage-invalid-value", fix=fix
        ) from error


def _component(app: App, word: str) -> Component:
    """Return a component by its name or its package's. Raises UsageError if there is none, or if it is not compiled."""
    components = app.matrix.components
    component = next(
        (item for item in components.values() if word in (canonicalize_name(item.name), item.package)), None
    )
    compiled = sorted(item.name for item in components.values() if item.compiled)
    if component is None:
        fix = did_you_mean(word, components) or f"those that need a compiler are {', '.join(compiled)}"
        raise UsageError(f'there is no component "{word}"', code="usage-unknown-component", fix=fix)
    if not component.compiled:
        why = "its index has wheels of every release, and the lock takes a compatible one"
        variants = [name for name in compiled if name.startswith(f"{component.name}-")]
        fix = f"name {', '.join(variants)}, which needs one" if variants else f"name one of {', '.join(compiled)}"
        raise UsageError(f"{component.name} needs no compiler", code="usage-not-compiled", why=why, fix=fix)
    return component


def _need(
    app: App, component: Component, wanted: str | None, cell: Cell, catalogue_data: catalogue.Catalogue
) -> tuple[WheelRequirement, str | None]:
    """Return the cell's requirement. If it is not the lock's, return a sentence about the version as well."""
    locked = app.find_lock(cell)
    if locked and (lock.stale(locked, cell) or lock.contradictions(locked, cell)):
        locked = None
    recipe = app.matrix.recipes.get(component.name)
    if cell.cuda_version is None and (recipe is None or recipe.architectures):
        why = f"{component.name} is compiled for GPUs"
        raise UsageError(
            f"{cell.id} is only for the CPU", code="usage-no-gpu-cell", why=why, fix="name a cell with CUDA"
        )
    version = _locked_version(component, locked)
    if wanted and wanted != version:
        note = f"{cell.id} would get this with {component.name} {wanted}"
        return candidates.need_of(component, wanted, cell, locked, recipe), note
    if version:
        return candidates.need_of(component, version, cell, locked, recipe), None
    requested = _requirement(component, cell)
    other = (
        None
        if requested
        else next((sibling for sibling in app.matrix.cells() if _is_sibling(sibling, cell, component)), None)
    )
    model = requested or (_requirement(component, other) if other else None)
    version = candidates.version_of(component, model.specifier if model else "", recipe, catalogue_data)
    need = candidates.need_of(component, version, cell, locked, recipe)
    if requested:
        return need, None
    because = f"the version of {other.id}" if other else "the newest known version"
    return need, f"{cell.id} has no {component.name}; it would get this with {version}, {because}"


def _locked_version(component: Component, locked: Lock | None) -> str | None:
    versions = {wheel.name: wheel.version for wheel in locked.wheels} if locked else {}
    versions |= {build.name: build.version for build in locked.builds} if locked else {}
    version = versions.get(component.package)
    return Version(version).public if version else None  # a local label identifies the file


def _requirement(component: Component, cell: Cell) -> Requirement | None:
    return next(
        (requirement for requirement in cell.requirements if requirement.component.name == component.name), None
    )


def _is_sibling(other: Cell, cell: Cell, component: Component) -> bool:
    """Return whether `other` differs from the cell only in one axis and has the component."""
    differing = [axis for axis, value in cell.axes.items() if other.axes.get(axis) != value]
    return other.image == cell.image and len(differing) <= 1 and _requirement(component, other) is not None


def _as_dict(
    component: Component, cell: Cell, need: WheelRequirement, results: Sequence[Candidate], chosen: Candidate | None
) -> dict[str, Any]:
    return {
        "component": component.name,
        "version": need.version,
        "cell": cell.id,
        "python": need.python,
        "platform": need.platform,
        "torch": need.torch,
        "cuda": need.cuda,
        "candidates": [_row(candidate) for candidate in results],
        "choice": _row(chosen) if chosen else None,
    }


def _row(candidate: Candidate) -> dict[str, Any]:
    return {
        "place": candidate.place.value,
        "file": candidate.filename,
        "where": candidate.where,
        "fits": candidate.fits,
        "reason": candidate.reason,
        "sha256": candidate.sha256,
        "size": candidate.size,
    }


def _duration(recipe: Recipe, cell: Cell) -> str:
    """Return text such as " of about 25 min on 16 cores"; "" if the recipe has no cost."""
    count = len(cell.gpus) if recipe.architectures else 1
    work = BuildJob(recipe.cost, count, jobs=recipe.jobs is not None, threads=recipe.threads is not None)
    seconds = estimate(work) if recipe.cost else None
    return f" of about {duration(seconds)} on {CORES} cores" if seconds else ""


def _print(
    app: App,
    component: Component,
    cell: Cell,
    need: WheelRequirement,
    results: Sequence[Candidate],
    chosen: Candidate | None,
) -> None:
    target = f"Python {need.python}, torch {need.torch or 'none'}, CUDA {need.cuda or 'none'}"
    click.echo(f"{component.name} {need.version} for {cell.id}: {target}")
    unreachable_wheels = unreachable(results)
    if unreachable_wheels and chosen and chosen.place is WheelSource.SOURCE:
        click.echo(
            f"{counted(len(unreachable_wheels), 'prebuilt wheel')} may fit, but cannot be reached from this machine:"
        )
        for candidate in unreachable_wheels:
            click.echo(shown(f"  {candidate.where}"))
        time = _duration(app.matrix.recipes[component.name], cell)
        click.echo(f"without it, the lock has a source build{time}; a directory in PIP_FIND_LINKS can provide it")
    table = Table("file", "fits", "place", "why", wraps=("why",))
    # Files of one source that are rejected for one reason share a row; JSON has each.
    for (fits, source, why), group in groupby(results, lambda item: (item.fits, item.place.value, item.reason)):
        first, *more_names = [candidate.filename or candidate.where for candidate in group]
        suffix = f" and {len(more_names)} more" if more_names else ""
        table.add_row(shown(first + suffix), "yes" if fits else "no", source, shown(why))
    table.print(app.out)
    if chosen:
        click.echo(shown(f"choice: {chosen.place.value}, {chosen.filename}: {chosen.reason}"))
        click.echo(shown(f"  {chosen.where}"))
    else:
        why = f": {need.obstacle}" if need.obstacle else "; a recipe under wheels/ would compile it"
        click.echo(shown(f"choice: none, so the cell cannot have it{why}"))


# imagegen wheels, the group of commands.


@click.group("wheels", cls=CommandGroup)
def command() -> None:
    """Find, build, list, push, pull and remove wheels that no index has."""


command.add_command(find_wheels)


# imagegen wheels list shows the wheels that were compiled or pulled.

_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


@command.command("list")
@json_option()
@pass_app
def list_wheels(app: App, *, as_json: bool) -> None:
    """List the wheels of the store: torch, Python, GPUs, size, age, key."""
    wheels = list(wheelhouse.every(app.store))
    if as_json:
        app.json([dataclasses.asdict(wheel) for wheel in wheels])
        return
    table = Table("wheel", "version", "torch", "python", "GPUs", "size", "made", "key")
    for wheel in wheels:
        age = _age(wheel.record.get("made"), time.time())
        size = human(wheel.size)
        table.add_row(wheel.name, wheel.version, *map(_cell, _facts(wheel)), size, age, wheel.key)
    if wheels:
        table.print(app.out)
    else:
        app.progress.say("the store has no wheels; `imagegen wheels build` compiles the source builds of a cell's lock")


def _facts(wheel: BuiltWheel) -> tuple[Any, ...]:
    """Return torch, Python and architectures of a wheel's record; None for a missing or invalid field."""
    architectures = wheel.record.get("architectures")
    gpus = " ".join(map(str, architectures)) if isinstance(architectures, list | tuple) else None
    return wheel.record.get("torch"), wheel.record.get("python"), gpus


def _cell(fact: Any) -> str:
    return shown(str(fact)) if fact else "-"


def _age(timestamp: Any, now: float) -> str:
    """Return an age as text: "3 days"."""
    if not isinstance(timestamp, int | float) or not 0 <= timestamp < 1 << 40:
        return "-"
    passed = max(0.0, now - timestamp)
    for unit, seconds in _UNITS:
        if (number := int(passed // seconds)) > 0:
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "just now"


# imagegen wheels build compiles the wheels that a cell's lock needs.


@command.command("build")
@click.argument("component", required=False)
@click.option("--cell", "pattern", required=True, metavar="CELL", help="The cell whose lock has the source builds.")
@builder_option
@json_option("Print JSON: the wheels with the record of each build.")
@pass_app
def build_wheels(app: App, *, component: str | None, pattern: str, builder: str | None, as_json: bool) -> None:
    """Compile COMPONENT, or every missing source build of CELL's lock.

    The plan is printed first. An interrupted build resumes. Prints each wheel's key and file name.
    """
    from imagegen.wheels.builds import compile as source_builds  # late, because it imports the engine

    wheels = []
    for cell in app.matrix.select(pattern, single=True):
        lock = app.fresh_lock(cell)
        names = _required(lock, component)
        settings, gpus = app.settings_for(cell), tuple(app.matrix.gpus.values())
        missing = [build for build in wheelhouse.missing_builds(lock, app.store) if build.name in names]
        missing = list(source_builds.pull_wheels(missing, Context(app.store, settings, app.progress)))
        source_builds.compile_builds(
            lock, missing, cell, gpus, Context(app.store, settings, app.progress), builder=builder
        )
        if not missing and names:
            app.progress.say(f"{cell.id}: all compiled wheels are in the store")
        elif not names:
            app.progress.say(f"{cell.id}: no wheel must be compiled")
        keys = [build.key for build in lock.builds if build.name in names]
        wheels += [wheel for key in keys if (wheel := wheelhouse.known(app.store, key))]
    if as_json:
        app.json([asdict(wheel) for wheel in wheels])
        return
    for wheel in wheels:
        click.echo(f"{wheel.key} {wheel.filename}")


def _required(lock: Lock, component: str | None) -> set[str]:
    """Return the names of the lock's builds. Raises UsageError for another component."""
    names = {build.name for build in lock.builds}
    if component is None:
        return names
    if component not in names:
        summary = f"{lock.cell} does not compile {component}"
        fix = did_you_mean(component, names) or f"it compiles {', '.join(sorted(names)) or 'no component'}"
        raise UsageError(summary, fix=fix)
    return {component}


# imagegen wheels push copies wheels to the team's wheelhouse.


@command.command("push")
@click.argument("patterns", nargs=-1, metavar="[NAME | KEY]...")
@click.option("--to", "destination", metavar="REPOSITORY", help="registry.example.com/team/wheels, say.")
@click.option("--dry-run", is_flag=True, help="Print the wheels that would be pushed, and push nothing.")
@json_option("Print JSON: for each wheel its key, and whether it was pushed.")
@pass_app
def push_wheels(app: App, *, patterns: tuple[str, ...], destination: str | None, dry_run: bool, as_json: bool) -> None:
    """Push all wheels of the store, or the named ones, to a repository of a registry; * and ? are allowed.

    Without --to, IMAGEGEN_WHEELHOUSE names the repository. A wheel that it has under the same key is not changed.
    """
    repository = wheelhouse.place(app.settings, destination, "--to")
    if repository is None:
        fix = "name a repository with --to, or with IMAGEGEN_WHEELHOUSE"
        raise UsageError("there is no wheelhouse to push to", code="usage-no-wheelhouse", fix=fix)
    wheels = list(_chosen(list(wheelhouse.every(app.store)), patterns))
    pushed: dict[str, bool] = {}
    with Client(app.settings) as client:
        team = wheelhouse.RemoteWheelhouse(repository, client, app.settings)
        if wheels:
            team.reach()
        for wheel in wheels:
            pushed[wheel.key] = not team.has(wheel.key)
            if pushed[wheel.key] and not dry_run:
                team.push(wheel, app.store, app.progress)
            app.progress.say(f"{wheel.filename} ({human(wheel.size)}): {_outcome(pushed[wheel.key], dry_run)}")
    if as_json:
        keys = ("key", "name", "version", "filename", "sha256", "size")
        app.json(
            [{key: getattr(wheel, key) for key in keys} | {"pushed": pushed[wheel.key]} for wheel in wheels],
        )
    else:
        verb = "would be pushed" if dry_run else "pushed"
        app.progress.say(f"{sum(pushed.values())} of {counted(len(wheels), 'wheel')} {verb} to {team}")


def _outcome(pushed: bool, dry_run: bool) -> str:
    return ("would be pushed" if dry_run else "pushed") if pushed else "already there"


def _chosen(wheels: list[BuiltWheel], patterns: Iterable[str]) -> Iterator[BuiltWheel]:
    """Yield the wheels that match a pattern. Raises UsageError for a pattern that no wheel matches."""
    patterns = tuple(patterns)
    for pattern in patterns:
        if not any(_fits(wheel, pattern) for wheel in wheels):
            fix = did_you_mean(pattern, {wheel.name for wheel in wheels}) or "`imagegen wheels list` shows the wheels"
            raise UsageError(
                f'the store has no wheel with the name or key "{pattern}"', code="usage-unknown-wheel", fix=fix
            )
    yield from (wheel for wheel in wheels if not patterns or any(_fits(wheel, pattern) for pattern in patterns))


def _fits(wheel: BuiltWheel, pattern: str) -> bool:
    return any(fnmatchcase(text, pattern) for text in (wheel.name, wheel.key, wheel.key.removeprefix("sha256:")))


# imagegen wheels pull copies wheels from the team's wheelhouse.


@command.command("pull")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--cell", "cells", multiple=True, metavar="CELL", help="Every source build of CELL's lock.")
@click.option("--from", "source", metavar="REPOSITORY", help="registry.example.com/team/wheels, say.")
@json_option("Print JSON: for each key here, pulled, or absent.")
@pass_app
def pull_wheels(app: App, *, keys: tuple[str, ...], cells: tuple[str, ...], source: str | None, as_json: bool) -> None:
    """Pull wheels from a repository of a registry into the store, by their keys or for cells.

    Without --from, IMAGEGEN_WHEELHOUSE names the repository. Exit code 1 if neither the store nor the repository has a
    wheel.
    """
    repository = wheelhouse.place(app.settings, source, "--from")
    if repository is None:
        fix = "name a repository with --from, or with IMAGEGEN_WHEELHOUSE"
        raise UsageError("there is no wheelhouse to pull from", code="usage-no-wheelhouse", fix=fix)
    if not keys and not cells:
        raise UsageError("nothing to pull", code="usage-nothing-named", fix="name cells with --cell, or keys of wheels")
    requested = dict(_parse_keys(keys)) | dict(_build_keys(app, cells))
    outcomes: dict[str, str] = {}
    with Client(app.settings) as client:
        team = wheelhouse.RemoteWheelhouse(repository, client, app.settings)
        for key, name_and_version in requested.items():
            name = " ".join(name_and_version) if name_and_version else key
            if wheelhouse.known(app.store, key):
                outcomes[key] = "here"
            elif team.fetch(key, app.store, app.progress, required=name_and_version):
                outcomes[key] = "pulled"
            else:
                outcomes[key] = "absent"
            app.progress.say(f"{name}: {_OUTCOMES[outcomes[key]]}")
    if as_json:
        app.json(outcomes)
    else:
        counts = {outcome: list(outcomes.values()).count(outcome) for outcome in _OUTCOMES}
        app.progress.say(
            f"{counted(counts['pulled'], 'wheel')} pulled from {team}, {counts['here']} already in the store, "
            f"{counts['absent']} not found"
        )
    sys.exit(1 if "absent" in outcomes.values() else 0)


_OUTCOMES = {"here": "already in the store", "pulled": "pulled", "absent": "not found"}


def _parse_keys(keys: tuple[str, ...]) -> Iterator[tuple[str, None]]:
    for key in keys:
        whole = key if key.startswith("sha256:") else f"sha256:{key}"
        if not is_digest(whole):
            raise UsageError(
                f'"{key}" is not a key of a wheel',
                code="usage-invalid-value",
                fix="a key is sha256: and 64 lower-case hex digits",
            )
        yield whole, None


def _build_keys(app: App, cells: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, str]]]:
    for pattern in cells:
        for cell in app.matrix.select(pattern, single=True):
            for build in app.fresh_lock(cell).builds:
                yield build.key, (build.name, build.version)


# imagegen wheels gc removes wheels from the store.

_YOUNG = 30 * 24 * 3600  # seconds


@command.command("gc")
@click.argument("names", nargs=-1, metavar="[NAME | NAME==VERSION | KEY]...")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@json_option("Print JSON: the wheels and their bytes.")
@pass_app
def remove_wheels(app: App, *, names: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Remove wheels that no lock of the project or of imagegen needs, unused for 30 days.

    With names, remove only these wheels, which must then be compiled or pulled again.
    """
    wheels = list(wheelhouse.every(app.store))
    removed = [wheel for name in names for wheel in _find(name, wheels)] if names else _unneeded(app, wheels)
    removed = list({wheel.key: wheel for wheel in removed}.values())
    if dry_run:
        freed = wheelhouse.removable(app.store, removed)
    else:
        freed = sum(wheelhouse.remove(app.store, wheel) for wheel in removed)
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
    locks = [lock for cell in app.matrix.cells() if (lock := app.find_lock(cell))]
    needed = {build.key for lock in locks for build in lock.builds}
    return [
        wheel
        for wheel in wheels
        if wheel.key not in needed and wheelhouse.unused(app.store, wheel, time.time()) > _YOUNG
    ]
