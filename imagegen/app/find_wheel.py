"""Find the source of a wheel that a cell may have to compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen import lock
from imagegen.app.session import Session
from imagegen.audit.readers import loose_wheels
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.text import did_you_mean
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell, Component, Requirement
from imagegen.wheels import catalogue, search
from imagegen.wheels.find import Candidate, WheelRequirement, find


@dataclass(frozen=True)
class WheelSearch:
    """The candidates for a component's wheel in a cell, in search order."""

    component: Component
    cell: Cell
    need: WheelRequirement
    candidates: Sequence[Candidate]

    @property
    def choice(self) -> Candidate | None:
        return next((candidate for candidate in self.candidates if candidate.fits), None)


def find_wheel(session: Session, component: str, pattern: str) -> WheelSearch:
    """Find the wheel of the component, NAME or NAME==VERSION, that a cell gets. Nothing is compiled."""
    project, wheels = session.project, session.matrices.wheel_catalogue
    name, version = parse_component(component)
    requested, cell = _component(session, name), session.matrix.select_one(pattern, single=True)
    need, note = _need(session, requested, version, cell, wheels)
    if note:
        project.progress.say(note)
    settings = project.settings_for(cell)
    requirement = _requirement(requested, cell)
    alias = (requirement and requirement.index) or requested.index.get(cell.cuda, "pypi")
    with Client(settings) as client:
        index = search.index_listing(alias, requested.package, settings, client)
        sources = search.candidate_places(wheels, index, settings, project.store, client, project.progress)
        audit = partial(loose_wheels.audit_wheel, gpus=cell.gpus, torch=need.torch)
        return WheelSearch(requested, cell, need, find(need, sources, audit))


def parse_component(text: str) -> tuple[str, str | None]:
    """Parse NAME or NAME==VERSION, with a normalized name. Raises UsageError for other requirements."""
    name, pinned, version = text.partition("==")
    try:
        return canonicalize_name(name.strip(), validate=True), str(Version(version)) if pinned else None
    except ValueError as error:
        message = f'"{text}" is neither a component nor one with a version'
        fix = "name a component, or a version of it as NAME==VERSION"
        raise UsageError(message, code="usage-invalid-value", fix=fix) from error


def _component(session: Session, word: str) -> Component:
    """Return a component by its name or its package's. Raises UsageError if there is none, or if it is not compiled."""
    components = session.matrix.components
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
    session: Session, component: Component, wanted: str | None, cell: Cell, catalogue_data: catalogue.Catalogue
) -> tuple[WheelRequirement, str | None]:
    """Return the cell's requirement. If it is not the lock's, return a sentence about the version as well."""
    locked = session.lock_files.find(cell)
    if locked and (lock.stale(locked, cell) or lock.contradictions(locked, cell)):
        locked = None
    recipe = session.matrix.recipes.get(component.name)
    if cell.cuda_version is None and (recipe is None or recipe.architectures):
        why = f"{component.name} is compiled for GPUs"
        raise UsageError(
            f"{cell.id} is only for the CPU", code="usage-no-gpu-cell", why=why, fix="name a cell with CUDA"
        )
    version = _locked_version(component, locked)
    if wanted and wanted != version:
        note = f"{cell.id} would get this with {component.name} {wanted}"
        return search.need_of(component, wanted, cell, locked, recipe), note
    if version:
        return search.need_of(component, version, cell, locked, recipe), None
    requested = _requirement(component, cell)
    other = (
        None
        if requested
        else next((sibling for sibling in session.matrix.cells() if _is_sibling(sibling, cell, component)), None)
    )
    model = requested or (_requirement(component, other) if other else None)
    version = search.version_of(component, model.specifier if model else "", recipe, catalogue_data)
    need = search.need_of(component, version, cell, locked, recipe)
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
