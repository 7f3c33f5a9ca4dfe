"""Making a lock: base, resolution, the choice of files, and wheels from sdists."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from packaging.utils import canonicalize_name

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import LockError
from imagegen.core.progress import Progress
from imagegen.image import base
from imagegen.plan.lock import indexes
from imagegen.plan.lock.foundation import lock_interpreter
from imagegen.plan.lock.freshness import BASE
from imagegen.plan.lock.indexes import WheelTarget
from imagegen.plan.lock.model import (
    Foundation,
    Lock,
    LockedBase,
    LockedBuild,
    LockedGpus,
    LockedPackages,
    LockedWheel,
    all_debs,
    file_conflicts_among,
)
from imagegen.plan.lock.recipes import Compiled, released
from imagegen.plan.lock.resolution_inputs import Attempts, ResolutionInputs, default_site, gather
from imagegen.plan.lock.uv_project import ProjectContents, UvProject
from imagegen.plan.matrix.model import Cell, Requirement, Rule
from imagegen.plan.rules import Facts, facts_of_lock, minimum_version, rule_constraints
from imagegen.wheels.resolve.candidates import WheelSelector
from imagegen.wheels.resolve.resolver import UV_VERSION, Drafter, Resolver, rfc3339


@dataclass(frozen=True)
class LockOptions:
    """Options of a resolution.

    upgrade: take the newest versions; packages: upgrade these; upgrade_base: lock today's Debian packages.
    as_of: the cutoff time (RFC 3339); None keeps the previous lock's, or is now where something is upgraded.
    bounds: further version specifiers, by package.
    trust_previous_wheels: do not rebuild a wheel that the previous lock has of the same sdist on the same base; the
    build of the lock compares it.
    """

    upgrade: bool = False
    packages: tuple[str, ...] = ()
    upgrade_base: bool = False
    as_of: str | None = None
    bounds: Mapping[str, str] = field(default_factory=dict)
    trust_previous_wheels: bool = False


def lock_cell(
    cell: Cell,
    previous: Lock | None,
    options: LockOptions,
    rules: Iterable[Rule],
    chooser: WheelSelector,
    context: Context,
) -> Lock:
    """Resolve a cell. Versions and cutoff time of `previous` stay, unless the options say otherwise.

    `chooser` selects the wheel of a component that needs a compiler. Nothing is compiled here. The new lock has the
    record of `previous` only if nothing else differs.

    Raises LockError when there is no solution, FetchError when an index fails, BuildError for what cannot be compiled,
    and what `base.resolve` and building sdists raise; LockErrors when several parts that the cell needs cannot be
    fetched.
    """
    rules = tuple(rules)
    upgrade_base = options.upgrade or options.upgrade_base
    pinned = None if options.upgrade or options.packages else previous
    time = pinned.as_of if pinned and options.as_of is None else parse_as_of(options.as_of)
    context = replace(context, settings=indexes.with_indexes(context.settings, cell.indexes))
    kept = {} if options.upgrade or previous is None else _kept(previous, options.packages)
    attempts = Attempts()
    locked_base = attempts.attempt(
        lambda: _base(cell, previous, context.settings, context.progress, upgrade=upgrade_base)
    )
    added = attempts.attempt(lambda: _added(cell, None if upgrade_base else previous, locked_base, context))
    debs = all_debs(locked_base, added) if locked_base else ()
    interpreter = lock_interpreter(cell.interpreter, cell.platform, debs)
    target = WheelTarget.of(cell.platform, cell.base, interpreter.version)
    release = partial(_released, cell=cell, chooser=chooser, kept=kept, bounds=options.bounds)
    released = [attempts.attempt(partial(release, each)) for each in cell.requirements]
    compiled = {each.package: each for each in released if each}
    with tempfile.TemporaryDirectory(prefix="imagegen-lock-") as work_dir:
        contents: ProjectContents | None = None
        if cell.from_uv_lock:
            contents = UvProject(cell, target, compiled, attempts, context).contents()
            if locked_base is None:
                attempts.require()
            parts = ResolutionInputs(default_site(context.settings), contents.archives)
        else:
            parts = gather(cell, target, compiled, attempts, Path(work_dir), context)
        assert locked_base  # noqa: S101 - else `gather` has raised why not
        made_before = _made_before(previous, locked_base) if previous and options.trust_previous_wheels else {}
        sizes = _sizes(previous)
        below = Foundation(locked_base, interpreter, added if added and added.debs else None)
        maker = Resolver(
            cell,
            target,
            below,
            compiled,
            parts,
            time,
            context,
            sizes,
            made_before,
        )
        bounded = (f"{name}{specifier}" for name, specifier in sorted(options.bounds.items()))
        if contents:
            found, wheels = contents.found, maker.wheels(contents.found, contents)
            attempts.require()
        else:
            found = maker.resolved((*rule_constraints(rules, cell), *bounded), kept)
            wheels = maker.wheels(found)
        drafter = Drafter(
            cell,
            target,
            rules,
            compiled,
            chooser,
            maker.build_requires,
            context,
        )
        uv = previous.uv if previous and previous.uv.version == UV_VERSION else maker.uv()
        made = Lock(
            cell=cell.id,
            image=cell.image,
            axes=dict(cell.axes),
            inputs={name: value for name, value in cell.inputs.items() if name not in _unused(cell, wheels)},
            uv=uv,
            as_of=time,
            base=locked_base,
            interpreter=interpreter,
            wheels=wheels,
            env=cell.env,
            added=added,
        )
        settled = _settled(previous, made, kept) if previous else {}
        made = drafter.completed(made, {each.name: each.via for each in found}, settled)
    made = replace(made, file_conflicts=file_conflicts_among(cell.file_conflicts, made.packages))
    made = replace(made, gpu=gpus_of(cell, rules, facts_of_lock(made, cell.base.glibc)))
    return previous if previous is not None and replace(previous, record=None) == made else made


def _released(
    requirement: Requirement, cell: Cell, chooser: WheelSelector, kept: Mapping[str, str], bounds: Mapping[str, str]
) -> Compiled | None:
    package = requirement.component.package
    if recipe := cell.recipes.get(package):
        narrowed = ",".join(filter(None, [requirement.specifier, bounds.get(package)]))
        asked = replace(requirement, specifier=narrowed)
        return replace(released(asked, recipe, chooser.versions(package), kept.get(package)), requirement=requirement)
    return None


def gpus_of(cell: Cell, rules: Iterable[Rule], facts: Facts) -> LockedGpus | None:
    """Return what the cell's image needs of a host's GPUs; None for the CPU."""
    if cell.cuda_version is None:
        return None
    return LockedGpus(tuple(gpu.capability for gpu in cell.gpus), minimum_version(rules, facts, "driver", cell.gpus))


def parse_as_of(asked: str | None) -> str:
    """Return the cutoff time as locks write it; None is now. Raises LockError for a malformed or a future time."""
    if asked is None:
        return rfc3339(datetime.now(UTC))
    try:
        time = datetime.fromisoformat(asked)
    except ValueError as error:
        raise LockError(
            f"{asked!r} is not a time",
            code="lock-cutoff-invalid",
            why=str(error),
            fix="write a date or a time as in 2026-11-20T00:00:00Z",
        ) from error
    # A date or a time without zone is UTC, so that a lock does not depend on where it is made.
    time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    if time > datetime.now(UTC):
        why = "releases until then may still appear, so the next resolution could differ"
        raise LockError(f"{asked} lies in the future", code="lock-cutoff-in-future", why=why, fix="use a past time")
    return rfc3339(time)


def _unused(cell: Cell, wheels: Iterable[LockedWheel]) -> set[str]:
    """Inputs that are sdists which the resolution did not take."""
    taken = {wheel.name for wheel in wheels if wheel.sdist}
    return {f"sdist {each.package}" for each in cell.sdists if each.package not in taken}


def _base(cell: Cell, previous: Lock | None, settings: Settings, progress: Progress, *, upgrade: bool) -> LockedBase:
    if previous and not upgrade and previous.inputs.get("base") == cell.inputs.get("base"):
        return replace(previous.base, **{name: getattr(cell.base, name) for name in BASE})  # manual edits are dropped
    return base.resolve(cell.base, settings, progress)


def _added(
    cell: Cell,
    previous: Lock | None,
    locked_base: LockedBase | None,
    context: Context,
) -> LockedPackages | None:
    """The packages above the base: the previous lock's while the base is the same and the cell requests the same."""
    if not cell.packages or locked_base is None:
        return None
    before = previous.added if previous and base.key(previous.base) == base.key(locked_base) else None
    if before and dict(before.requested) == dict(cell.packages):
        return before
    tree = base.rootfs(locked_base, context)
    return base.resolve_packages(cell.packages, tree, locked_base.name, context.settings, context.progress)


def _kept(previous: Lock, upgraded: Sequence[str]) -> dict[str, str]:
    names = {canonicalize_name(name) for name in upgraded}
    unknown = names - {each.name for each in previous.packages}
    if unknown:
        raise LockError(
            f"the lock has no {', '.join(sorted(unknown))}",
            code="lock-unknown-package",
            fix="upgrade a package that it has",
        )
    return {each.name: each.version for each in previous.packages if each.name not in names}


def _settled(previous: Lock, made: Lock, kept: Mapping[str, str]) -> dict[str, LockedWheel | LockedBuild]:
    """Return the compiled packages that may stay, by package: a chosen wheel stays as long as it is for the same torch.

    So a place that cannot be reached today turns no wheel into a build.
    """
    old, new = ({wheel.name: wheel.file.sha256 for wheel in lock.wheels}.get("torch") for lock in (previous, made))
    same = old == new and previous.inputs.get("gpus") == made.inputs.get("gpus")
    return {
        each.name: each
        for each in previous.packages
        if each.name in kept and (isinstance(each, LockedBuild) or (same and each.choice))
    }


def _sizes(previous: Lock | None) -> dict[str, int]:
    wheels = previous.wheels if previous else ()
    sdists = [wheel.sdist for wheel in wheels if wheel.sdist]
    parts = [wheel for each in sdists for wheel in each.build_requires]
    parts += [wheel for build in (previous.builds if previous else ()) for wheel in build.build_requires]
    files = [*(each.file for each in (*wheels, *parts)), *(each.file for each in sdists)]
    return {file.sha256: file.size for file in files if file.size is not None}


def _made_before(previous: Lock, locked_base: LockedBase) -> dict[tuple[str, str], LockedWheel]:
    """Wheels made from sdists, by name and version, as far as this base would make them."""
    if base.key(previous.base) != base.key(locked_base):
        return {}
    return {(wheel.name, wheel.version): wheel for wheel in previous.wheels if wheel.sdist}
