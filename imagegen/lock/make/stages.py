"""Make the lock of a cell, as a list of stages over a draft.

    lock_base          the base, and Debian packages above it
    lock_interpreter   the interpreter, and the machine that wheels must fit
    read_project_lock  the project's own lock file, for a cell that names one
    choose_releases    the releases of components that a recipe may compile
    gather_inputs      indexes, commits, and the packages of a uv.lock
    resolve_releases   the releases of all packages
    choose_files       their wheels, some built of sdists and commits
    fill_lock          the lock, without compiled components
    draft_builds       the source builds of compiled components
    choose_wheels      prebuilt wheels instead of builds, where one fits
    complete_lock      file conflicts, GPUs and driver

Nothing is compiled here. A stage reads the fields that earlier stages have set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from imagegen.compat import rule_constraints
from imagegen.compat.rule import Rule
from imagegen.core import temporary
from imagegen.core.context import Context
from imagegen.core.errors import ImagegenError
from imagegen.core.git import PackedTree
from imagegen.core.net import package_index
from imagegen.core.wheel_target import WheelTarget
from imagegen.image import base
from imagegen.lock.components import Compiled, choose_release
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.foundation import BUILD_PLATFORM, LockedPackages
from imagegen.lock.freshness import contradictions, gpus_of, stale
from imagegen.lock.interpreter import resolve_interpreter
from imagegen.lock.make import copies, patches
from imagegen.lock.make.options import LockOptions
from imagegen.lock.make.own import OwnPackageBuilder, wheels_by_address, with_own_wheels
from imagegen.lock.make.packages import UV_VERSION, PackageResolver
from imagegen.lock.make.previous import Previous
from imagegen.lock.make.source_builds import BuildDrafter
from imagegen.lock.model import (
    Foundation,
    Lock,
    LockedBase,
    LockedBuild,
    LockedInterpreter,
    LockedWheel,
    all_debs,
    file_conflicts_among,
)
from imagegen.lock.resolution_inputs import Attempts, ResolutionInputs, default_site, gather
from imagegen.lock.stack import ProjectStack, with_needed_recipes
from imagegen.lock.uv_project import ProjectContents, UvProject
from imagegen.lock.uv_resolve import Pinned
from imagegen.spec.cell_facts import facts_of_cell
from imagegen.spec.model import Cell, Requirement
from imagegen.wheels.selector import WheelSelector


@dataclass(frozen=True)
class LockRequest:
    """The cell to lock, and what decides its lock.

    `selector` selects the wheel of a component that needs a compiler. `packed` are the sources of the project's own
    packages, by package. `stack` is the project's own lock file, for a cell that names one.
    """

    cell: Cell
    options: LockOptions
    rules: tuple[Rule, ...]
    selector: WheelSelector
    context: Context
    packed: Mapping[str, PackedTree] = field(default_factory=dict)
    stack: ProjectStack | None = None


@dataclass
class LockDraft:
    """A lock in the making. Errors of parts that cannot be fetched are collected in `attempts`."""

    request: LockRequest
    previous: Previous
    cell: Cell
    context: Context  # with the addresses of the cell's indexes
    work_dir: Path
    attempts: Attempts = field(default_factory=Attempts)
    base: LockedBase | None = None  # None if it cannot be had, until `gather_inputs` raises why
    added: LockedPackages | None = None
    interpreter: LockedInterpreter = field(init=False)
    target: WheelTarget = field(init=False)
    contents: ProjectContents | None = None  # of another lock file, which names all packages
    compiled: dict[str, Compiled] = field(init=False)  # by package
    resolver: PackageResolver = field(init=False)
    pins: tuple[Pinned, ...] = field(init=False)
    wheels: tuple[LockedWheel, ...] = field(init=False)
    lock: Lock = field(init=False)
    drafter: BuildDrafter = field(init=False)
    builds: Mapping[str, LockedBuild | ImagegenError] = field(init=False)  # by package


def lock_cell(request: LockRequest, previous: Lock | None) -> Lock:
    """Lock a cell. Versions and cutoff of the `previous` lock stay, unless the options say otherwise.

    If only sources of the project's own packages changed, and not their requirements, nothing is resolved. The new lock
    has the record of `previous` only if nothing else differs.

    Raises LockError when there is no solution, FetchError when an index fails, BuildError for a component that cannot
    be compiled, LockErrors when several parts cannot be fetched, and as `base.resolve` and `sdist.build`.
    """
    retained = Previous.of(previous, request.options)
    settings = package_index.with_indexes(request.context.settings, request.cell.indexes)
    draft_context = replace(request.context, settings=settings)
    with temporary.temporary_directory() as work_dir:
        draft = LockDraft(request, retained, request.cell, draft_context, work_dir)
        if previous and request.options == LockOptions() and (edited := _with_edited_sources(draft, previous)):
            return edited
        for stage in STAGES:
            stage(draft)
    return previous if previous and replace(previous, record=None) == draft.lock else draft.lock


def _with_edited_sources(draft: LockDraft, previous: Lock) -> Lock | None:
    """Return the previous lock with the current sources of the project's own packages.

    None if there are none, or another input changed.
    """
    cell, context, stack = draft.cell, draft.context, draft.request.stack
    if not draft.request.packed or stale(previous, cell) or contradictions(previous, cell):
        return None
    if stack and stack.changed_packages(previous, cell):
        return None
    if patches.read(cell, context.store) != {wheel.name: wheel.patches for wheel in previous.wheels if wheel.patches}:
        return None
    target = WheelTarget.of(cell.platform, cell.base.glibc, previous.interpreter.version)
    inputs = ResolutionInputs(default_site(context.settings), {})
    resolver = PackageResolver(cell, target, previous.foundation, {}, inputs, draft.previous, context)
    with_copies = replace(previous, copies=copies.read(cell, context.store))
    edited = with_own_wheels(with_copies, OwnPackageBuilder(resolver).wheels(draft.request.packed))
    return replace(edited, record=None) if edited and edited != previous else edited


def lock_base(draft: LockDraft) -> None:
    """Lock base and added packages: as the previous lock has them while their inputs are the same, else today's."""
    cell, context = draft.cell, draft.context
    with draft.attempts.attempt():
        retained = draft.previous.base(cell)
        draft.base = retained or base.resolve(cell.base, cell.platform, context.settings, context.progress)
        if cell.packages:
            draft.added = _added_packages(draft, draft.base)


def _added_packages(draft: LockDraft, locked_base: LockedBase) -> LockedPackages:
    cell, context = draft.cell, draft.context
    if retained := draft.previous.added_packages(cell, locked_base):
        return retained
    tree = base.rootfs(locked_base, context)
    return base.resolve_packages(
        cell.packages, tree, locked_base.name, cell.platform, context.settings, context.progress
    )


def lock_interpreter(draft: LockDraft) -> None:
    """Lock the interpreter, and derive the target that wheels must fit."""
    cell = draft.cell
    debs = all_debs(draft.base, draft.added) if draft.base else ()
    draft.interpreter = resolve_interpreter(cell.interpreter, cell.platform, debs)
    draft.target = WheelTarget.of(cell.platform, cell.base.glibc, draft.interpreter.version)


def read_project_lock(draft: LockDraft) -> None:
    """Read the packages of the project's own lock file; the cell gets the recipes that they need."""
    if stack := draft.request.stack:
        draft.contents = stack.contents(draft.cell, draft.target, draft.attempts, draft.context)
        draft.cell = with_needed_recipes(draft.cell, draft.contents, draft.target)


def choose_releases(draft: LockDraft) -> None:
    """Choose the release of each component that has a recipe."""
    draft.compiled = {}
    for requirement in draft.cell.requirements:
        if requirement.component.package in draft.cell.recipes and not requirement.address:
            with draft.attempts.attempt():
                draft.compiled[requirement.component.package] = _release(draft, requirement)


def _release(draft: LockDraft, requirement: Requirement) -> Compiled:
    package = requirement.component.package
    bounds = filter(None, [requirement.specifier, draft.request.options.bounds.get(package)])
    bounded = replace(requirement, specifier=",".join(bounds))
    catalogued, retained = draft.request.selector.versions(package), draft.previous.versions.get(package)
    component = choose_release(bounded, draft.cell.recipes[package], catalogued, retained)
    return replace(component, requirement=requirement)


def gather_inputs(draft: LockDraft) -> None:
    """Fetch the inputs of the resolution: indexes and commits, or the project's uv.lock.

    Raises the errors that were collected so far; for a uv.lock, `choose_files` raises those about its commits.
    """
    cell, context = draft.cell, draft.context
    if cell.from_uv_lock:
        draft.contents = UvProject(cell, draft.target, draft.compiled, draft.attempts, context).contents()
    if draft.contents is None:
        inputs = gather(cell, draft.target, draft.compiled, draft.attempts, draft.work_dir, context)
    else:
        if draft.request.stack or draft.base is None:
            draft.attempts.require()
        inputs = ResolutionInputs(default_site(context.settings), draft.contents.archives)
    assert draft.base  # noqa: S101 - else an error was raised
    foundation = Foundation(draft.base, draft.interpreter, draft.added if draft.added and draft.added.debs else None)
    draft.resolver = PackageResolver(cell, draft.target, foundation, draft.compiled, inputs, draft.previous, context)


def resolve_releases(draft: LockDraft) -> None:
    """Resolve the releases of all packages, with the wheels that the cell brings itself."""
    own_wheels = OwnPackageBuilder(draft.resolver).wheels(draft.request.packed)
    given = {**own_wheels, **wheels_by_address(draft.cell, draft.target, draft.context)}
    if given:
        draft.resolver = draft.resolver.with_given(given, draft.work_dir)
    if draft.contents:
        draft.pins = draft.contents.found
    else:
        bounds = [f"{name}{specifier}" for name, specifier in sorted(draft.request.options.bounds.items())]
        draft.pins = draft.resolver.resolve(
            (*rule_constraints(draft.request.rules, facts_of_cell(draft.cell)), *bounds)
        )


def choose_files(draft: LockDraft) -> None:
    """Choose the wheel of each package that is not compiled; sdists and commits become wheels in the sandbox."""
    draft.wheels = draft.resolver.wheels(draft.pins, draft.contents)
    draft.attempts.require()


def fill_lock(draft: LockDraft) -> None:
    """Write everything but the compiled components into a lock. Patches come first, since builds read the wheels."""
    cell, context, foundation = draft.cell, draft.context, draft.resolver.foundation
    uv = draft.previous.uv(UV_VERSION) or draft.resolver.uv()
    built = {wheel.name for wheel in draft.wheels if wheel.sdist}
    unused = {f"sdist {component.package}" for component in cell.sdists if component.package not in built}
    draft.lock = Lock(
        cell=cell.id,
        image=cell.image,
        axes=dict(cell.axes),
        inputs={name: value for name, value in cell.inputs.items() if name not in unused},
        uv=uv,
        as_of=draft.previous.cutoff,
        base=foundation.base,
        interpreter=draft.interpreter,
        wheels=patches.apply(cell, draft.wheels, context),
        env=cell.env,
        config=cell.config,
        labels=cell.labels,
        ports=cell.ports,
        ldconfig=cell.ldconfig,
        copies=copies.read(cell, context.store),
        overrides=cell.overrides,
        added=draft.added,
        bytecode_base=_bytecode_base(draft, foundation.base),
    )


def _bytecode_base(draft: LockDraft, locked_base: LockedBase) -> LockedBase | None:
    """Return the smallest base of BUILD_PLATFORM with the image's interpreter.

    None for an image of that platform, and if the interpreter is not the distribution's, or the archive has another
    version of it for that platform.
    """
    cell, context = draft.cell, draft.context
    if locked_base.kind != "debian" or cell.interpreter.files or cell.platform == BUILD_PLATFORM:
        return None
    if retained := draft.previous.bytecode_base(locked_base):
        return retained
    package = f"python{cell.python}"
    name = f"{cell.base.name}-{BUILD_PLATFORM.replace('/', '-')}"
    smallest = replace(cell.base, name=name, packages={package: "It compiles byte-code."})
    candidate = base.resolve(smallest, BUILD_PLATFORM, context.settings, context.progress)
    versions = {deb.version for locked in (candidate, locked_base) for deb in locked.debs if deb.name == package}
    return candidate if len(versions) == 1 else None


def draft_builds(draft: LockDraft) -> None:
    """Draft the source build of each compiled component, or record why it cannot be built."""
    dependents = {pin.name: pin.via for pin in draft.pins}
    draft.drafter = BuildDrafter(draft.resolver, draft.request.rules, draft.lock, dependents)
    draft.builds = {name: draft.drafter.draft(component) for name, component in sorted(draft.compiled.items())}


def choose_wheels(draft: LockDraft) -> None:
    """Choose for each compiled component a prebuilt wheel that fits, else its build; patch the chosen wheels."""
    retained = draft.previous.compiled_packages(draft.lock)
    packages = [
        draft.drafter.choose(draft.compiled[name], build, retained.get(name), draft.request.selector)
        for name, build in draft.builds.items()
    ]
    draft.lock = patches.complete(draft.cell, draft.drafter.with_packages(packages), draft.context)


def complete_lock(draft: LockDraft) -> None:
    """Add the file conflicts of the packages, and the GPUs and the driver that the rules require."""
    cell, lock = draft.cell, draft.lock
    lock = replace(lock, file_conflicts=file_conflicts_among(cell.file_conflicts, lock.packages))
    draft.lock = replace(lock, gpu=gpus_of(cell, draft.request.rules, facts_of_lock(lock, cell)))


STAGES: tuple[Callable[[LockDraft], None], ...] = (
    lock_base,
    lock_interpreter,
    read_project_lock,
    choose_releases,
    gather_inputs,
    resolve_releases,
    choose_files,
    fill_lock,
    draft_builds,
    choose_wheels,
    complete_lock,
)
