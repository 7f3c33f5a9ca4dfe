"""imagegen wheels find: where the wheel of a component that needs a compiler comes from, and why."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import click
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.cli.app import App, Table, json_option, pass_app
from imagegen.cli.completion import complete_cells
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.text import counted, did_you_mean, shown
from imagegen.plan import lock
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell, Component, Requirement
from imagegen.plan.matrix.recipe import Recipe
from imagegen.supply.compare.difference import CORES, estimate
from imagegen.wheels import catalogue
from imagegen.wheels.find import Candidate, WheelRequirement, find, unreachable
from imagegen.wheels.resolve import candidates
from imagegen.wheels.throttle import BuildJob, duration
from imagegen.wheels.wheelhouse import WheelSource


@click.command("find")
@click.argument("component")
@click.option(
    "--cell", "pattern", metavar="CELL", required=True, shell_complete=complete_cells, help="An image or a cell."
)
@json_option()
@pass_app
def find_wheels(app: App, *, component: str, pattern: str, as_json: bool) -> int:
    """Show which wheel of COMPONENT a cell gets, and why not another: exit code 1 where none is compatible.

    COMPONENT==VERSION searches that version, whatever the cell has. Candidates are listed in search order; a file with
    a compatible name is fetched, hashed and audited, until one passes. Nothing is compiled, and no lock is changed.
    """
    name, version = _asked_about(component)
    wanted, cell = _component(app, name), app.matrix.select_one(pattern)
    known = app.wheel_catalogue
    need, note = _need(app, wanted, version, cell, known)
    if note:
        app.progress.say(note)
    settings = app.settings_for(cell)
    with Client(settings) as client:
        alias = next((each.index for each in cell.requirements if each.component.name == wanted.name), None)
        alias = alias or wanted.index.get(cell.cuda, "pypi")
        index = candidates.index_listing(alias, wanted.package, settings, client)
        places = candidates.candidate_places(known, index, settings, app.store, client, app.progress)
        from imagegen.image.inventory import subjects  # late: it brings the readers of wheels

        found = find(need, places, partial(subjects.examined, gpus=cell.gpus, torch=need.torch))
    chosen = next((each for each in found if each.fits), None)
    if as_json:
        app.json(_as_dict(wanted, cell, need, found, chosen))
    else:
        _print(app, wanted, cell, need, found, chosen)
    return 0 if chosen else 1


def _asked_about(text: str) -> tuple[str, str | None]:
    """The name in its normal form, and the version of NAME==VERSION. Raises UsageError for other requirements."""
    name, pinned, version = text.partition("==")
    try:
        return canonicalize_name(name.strip(), validate=True), str(Version(version)) if pinned else None
    except ValueError as error:
        fix = "name a component, or a version of it as NAME==VERSION"
        raise UsageError(
            f'"{text}" is neither a component nor one with a version', code="usage-invalid-value", fix=fix
        ) from error


def _component(app: App, word: str) -> Component:
    """Return a component by its name or its package's. Raises UsageError for others, and if it needs no compiler."""
    known = app.matrix.components
    found = next((each for each in known.values() if word in (canonicalize_name(each.name), each.package)), None)
    compiled = sorted(each.name for each in known.values() if each.compiled)
    if found is None:
        fix = did_you_mean(word, known) or f"those that need a compiler are {', '.join(compiled)}"
        raise UsageError(f'there is no component "{word}"', code="usage-unknown-component", fix=fix)
    if not found.compiled:
        why = "its index has a wheel of every release, and the lock takes the one that fits"
        parts = [name for name in compiled if name.startswith(f"{found.name}-")]
        fix = f"ask about {', '.join(parts)}, which does" if parts else f"ask about one of {', '.join(compiled)}"
        raise UsageError(f"{found.name} needs no compiler", code="usage-not-compiled", why=why, fix=fix)
    return found


def _need(
    app: App, component: Component, wanted: str | None, cell: Cell, known: catalogue.Catalogue
) -> tuple[WheelRequirement, str | None]:
    """Return what the cell needs, or would need with the component in the given version, and then a sentence about
    it.
    """
    locked = app.find_lock(cell)
    if locked and (lock.stale(locked, cell) or lock.contradictions(locked, cell)):
        locked = None
    recipe = app.matrix.recipes.get(component.name)
    if cell.cuda_version is None and (recipe is None or recipe.architectures):
        why = f"{component.name} is compiled for GPUs"
        raise UsageError(
            f"{cell.id} is for the CPU alone", code="usage-no-gpu-cell", why=why, fix="name a cell with CUDA"
        )
    version = _locked_version(component, locked)
    if wanted and wanted != version:
        note = f"this is what {cell.id} would get with {component.name} {wanted}, as was asked"
        return candidates.need_of(component, wanted, cell, locked, recipe), note
    if version:
        return candidates.need_of(component, version, cell, locked, recipe), None
    requested = _asked(component, cell)
    other = (
        None if requested else next((each for each in app.matrix.cells() if _is_sibling(each, cell, component)), None)
    )
    model = requested or (_asked(component, other) if other else None)
    version = candidates.version_of(component, model.specifier if model else "", recipe, known)
    need = candidates.need_of(component, version, cell, locked, recipe)
    if requested:
        return need, None
    because = f"the version that {other.id} has" if other else "the newest that is known"
    return need, f"{cell.id} has no {component.name}; this is what it would get with {version}, {because}"


def _locked_version(component: Component, locked: Lock | None) -> str | None:
    versions = {each.name: each.version for each in locked.wheels} if locked else {}
    versions |= {each.name: each.version for each in locked.builds} if locked else {}
    found = versions.get(component.package)
    return Version(found).public if found else None  # a label says which file it was


def _asked(component: Component, cell: Cell) -> Requirement | None:
    return next((each for each in cell.requirements if each.component.name == component.name), None)


def _is_sibling(other: Cell, cell: Cell, component: Component) -> bool:
    """Return whether it is the same but for the component and one axis that brings it."""
    differing = [axis for axis, value in cell.axes.items() if other.axes.get(axis) != value]
    return other.image == cell.image and len(differing) <= 1 and _asked(component, other) is not None


def _as_dict(
    component: Component, cell: Cell, need: WheelRequirement, found: Sequence[Candidate], chosen: Candidate | None
) -> dict[str, Any]:
    return {
        "component": component.name,
        "version": need.version,
        "cell": cell.id,
        "python": need.python,
        "platform": need.platform,
        "torch": need.torch,
        "cuda": need.cuda,
        "candidates": [_row(each) for each in found],
        "choice": _row(chosen) if chosen else None,
    }


def _row(each: Candidate) -> dict[str, Any]:
    return {
        "place": each.place.value,
        "file": each.filename,
        "where": each.where,
        "fits": each.fits,
        "reason": each.reason,
        "sha256": each.sha256,
        "size": each.size,
    }


def _duration(recipe: Recipe, cell: Cell) -> str:
    """Return text such as " of about 25 min on 16 cores"; "" where the recipe states no cost."""
    named = len(cell.gpus) if recipe.architectures else 1
    work = BuildJob(recipe.cost, named, jobs=recipe.jobs is not None, threads=recipe.threads is not None)
    seconds = estimate(work) if recipe.cost else None
    return f" of about {duration(seconds)} on {CORES} cores" if seconds else ""


def _print(
    app: App,
    component: Component,
    cell: Cell,
    need: WheelRequirement,
    found: Sequence[Candidate],
    chosen: Candidate | None,
) -> None:
    has = f"Python {need.python}, torch {need.torch or 'none'}, CUDA {need.cuda or 'none'}"
    click.echo(f"{component.name} {need.version} for {cell.id}: {has}")
    away = unreachable(found)
    if away and chosen and chosen.place is WheelSource.SOURCE:
        click.echo(f"{counted(len(away), 'prebuilt wheel')} may fit, but cannot be reached from this machine:")
        for each in away:
            click.echo(shown(f"  {each.where}"))
        time = _duration(app.matrix.recipes[component.name], cell)
        click.echo(f"without it, the lock has a source build{time}; a directory in PIP_FIND_LINKS can provide it")
    table = Table("file", "fits", "place", "why", wraps=("why",))
    # Files of one place that are refused for one reason share a row; JSON has each.
    for (fits, place, why), group in groupby(found, lambda each: (each.fits, each.place.value, each.reason)):
        first, *others = [each.filename or each.where for each in group]
        more = f" and {len(others)} more" if others else ""
        table.add_row(shown(first + more), "yes" if fits else "no", place, shown(why))
    table.print(app.out)
    if chosen:
        click.echo(shown(f"choice: {chosen.place.value}, {chosen.filename}: {chosen.reason}"))
        click.echo(shown(f"  {chosen.where}"))
    else:
        why = f": {need.obstacle}" if need.obstacle else "; a recipe under wheels/ would compile it"
        click.echo(shown(f"choice: none, so the cell cannot have it{why}"))
