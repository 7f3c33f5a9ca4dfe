"""imagegen wheels find: show the source of a wheel that may have to be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import click
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen import lock
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.table import Table
from imagegen.compare.difference import CORES, estimate
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.text import counted, did_you_mean, shown
from imagegen.lock.make import candidates
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell, Component, Requirement
from imagegen.spec.recipe import Recipe
from imagegen.wheels import catalogue
from imagegen.wheels.find import Candidate, WheelRequirement, find, unreachable
from imagegen.wheels.offers import WheelSource
from imagegen.wheels.throttle import BuildJob, duration


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
    wanted, cell = _component(app, name), app.session.matrix.select_one(pattern, single=True)
    catalogue_data = app.session.matrices.wheel_catalogue
    need, note = _need(app, wanted, version, cell, catalogue_data)
    if note:
        app.progress.say(note)
    settings = app.project.settings_for(cell)
    with Client(settings) as client:
        alias = next(
            (requirement.index for requirement in cell.requirements if requirement.component.name == wanted.name), None
        )
        alias = alias or wanted.index.get(cell.cuda, "pypi")
        index = candidates.index_listing(alias, wanted.package, settings, client)
        sources = candidates.candidate_places(catalogue_data, index, settings, app.project.store, client, app.progress)
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
    components = app.session.matrix.components
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
    locked = app.session.lock_files.find(cell)
    if locked and (lock.stale(locked, cell) or lock.contradictions(locked, cell)):
        locked = None
    recipe = app.session.matrix.recipes.get(component.name)
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
        else next((sibling for sibling in app.session.matrix.cells() if _is_sibling(sibling, cell, component)), None)
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
        time = _duration(app.session.matrix.recipes[component.name], cell)
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
