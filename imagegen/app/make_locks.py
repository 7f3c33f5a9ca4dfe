"""Lock an image: resolve its cell, record the layers if requested, write the lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from imagegen import lock
from imagegen.app.assemble import ensure_wheels
from imagegen.app.audit import audit_before_image
from imagegen.app.check_locks import LockedImage, require_unchanged_sources
from imagegen.app.comparison import comparison_facts
from imagegen.app.lock_files import LockFiles
from imagegen.app.matrices import Matrices
from imagegen.app.session import Session
from imagegen.compare import wording
from imagegen.compare.difference import Change, difference
from imagegen.compare.operands import of_lock
from imagegen.core.errors import AuditError, IncompatibleError, LockError
from imagegen.core.progress import Progress
from imagegen.core.text import counted, did_you_mean
from imagegen.image import base, layers
from imagegen.lock.environments import combine, locked_environments, shared_wheels
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.make.options import LockOptions, parse_cutoff
from imagegen.lock.make.stages import LockRequest, lock_cell
from imagegen.lock.model import Foundation, Lock
from imagegen.lock.stack import read_stack
from imagegen.spec.model import Cell
from imagegen.wheels.selector import LocalWheelSelector

_UNRESOLVED = ("lock-unresolvable", "lock-sdist-metadata")


def lock_image(session: Session, cell: Cell, options: LockOptions, *, record: bool) -> LockedImage:
    """Lock the cell and write locks/<cell>.toml; with `record`, build the layers and write their digests too.

    An image with several environments is joined from the locks of its cells. A lock that is current is recorded
    unchanged. Raises as `resolve_cell` and `join_locks`; with `record` also as `layers.assemble`.
    """
    lock_files = session.lock_files
    locks = [_environment_lock(session, environment.cell, options) for environment in cell.environments]
    previous = lock_files.find(cell)
    start = previous or _parent_lock(session, cell)
    if locks:
        locked = join_locks(lock_files, cell, locks)
    elif record and previous and _is_current(lock_files, previous, cell, options):
        locked = previous
    else:
        locked = resolve_cell(session, cell, start, options)
    if record:
        locked = _record_layers(session, cell, locked)
    elif locked.record is None and previous:
        locked = layers.keep_record(locked, previous)
    elif layers.record_contradictions(locked):  # the previous lock was edited
        locked = replace(locked, record=None)
    path = session.project.directory / "locks" / f"{cell.id}.toml"
    changed = not path.exists() or previous is None or _differs(lock_files, cell, locked, previous)
    if changed:
        lock.write(locked, path)
    result = LockedImage(
        cell, path, locked, changed, tuple(_changes(session, start, locked)) if changed and start else ()
    )
    _report(result, previous, session.project.progress)
    return result


def _changes(session: Session, before: Lock, after: Lock) -> Iterator[Change]:
    """Yield the changes of packages, overrides, base and interpreter."""
    tables = difference(of_lock("before", "", before), of_lock("after", "", after), comparison_facts(session.matrices))
    yield from (*tables.components, *tables.packages, *tables.debs, *tables.runtime)
    yield from (replace(override, name=f"the override of {override.name}") for override in tables.overrides)


def _environment_lock(session: Session, cell: Cell, options: LockOptions) -> Lock:
    """Return the lock of an environment's cell. It is locked if it has no sound lock, or if options are for it."""
    locked = session.lock_files.find(cell)
    if locked and _is_current(session.lock_files, locked, cell, options):
        return locked
    return lock_image(session, cell, options, record=False).lock


def _is_current(lock_files: LockFiles, locked: Lock, cell: Cell, options: LockOptions) -> bool:
    """Return whether a lock is sound, and no option changes it."""
    if options != LockOptions():
        return False
    try:
        lock_files.require_fresh(locked, cell)
        require_unchanged_sources(lock_files, locked, cell)
    except (LockError, IncompatibleError):
        return False
    return True


def join_locks(lock_files: LockFiles, cell: Cell, locks: Sequence[Lock]) -> Lock:
    """Return the lock of an image with several environments, without a record, from the locks of their cells.

    `locks` are in the order of `cell.environments`. Raises LockError if they differ in base,
    interpreter or added Debian packages.
    """
    _require_equal_foundations(lock_files, cell, locks)
    return combine(cell.id, cell.image, locked_environments(cell.environments, locks), None)


def _require_equal_foundations(lock_files: LockFiles, cell: Cell, locks: Sequence[Lock]) -> None:
    """Raise LockError if the lock of an environment has another base or interpreter, or other Debian packages.

    The dates of archives, which reach no layer, may differ: a nightly update leaves a base that has the same packages.
    """
    default, *further = cell.environments
    below = [foundation_keys(environment_lock.foundation) for environment_lock in locks]
    for environment, keys in zip(further, below[1:], strict=True):
        if differing := [name for name, value in keys.items() if below[0][name] != value]:
            ids = f"{default.cell.id} and {environment.cell.id}"
            raise LockError(
                f'the locks of environments "{default.name}" and "{environment.name}" pin other files below them',
                code="lock-environments-differ",
                where=environment.where,
                why=f"{lock_files.path(environment.cell)} has {' and '.join(differing)}",
                fix=f"lock {ids} at one time: `imagegen lock {cell.id} --upgrade-base`",
            )


def foundation_keys(foundation: Foundation) -> dict[str, object]:
    """Return the values that decide the bytes below the packages, each by the words for a difference."""
    key = base.key(foundation.base)
    return {
        "another base": key,
        "another interpreter": foundation.interpreter,
        "other Debian packages above it": base.packages_key(foundation.added, key) if foundation.added else None,
    }


def resolve_cell(session: Session, cell: Cell, previous: Lock | None, options: LockOptions) -> Lock:
    """Resolve the cell. If `previous` is the lock of an image that this one extends, the cutoff is the present.

    Raises IncompatibleError if a rule rejects the cell or the result, and as `facts_of` of the session and `lock_cell`.
    """
    session.judge.require_acceptable(cell)
    if previous and previous.cell != cell.id:
        session.project.progress.say(f"{cell.id} starts from the lock of {previous.cell}")
        options = replace(options, as_of=parse_cutoff(options.as_of), trust_previous_wheels=True)
    try:
        locked = lock_cell(lock_request(session.matrices, cell, options), previous)
    except LockError as error:
        raise _unknown_project(session.matrices, cell, error) or _with_conflict(session, cell, error) from error
    session.judge.require_compatible(cell, facts_of_lock(locked, cell))
    return locked


def _parent_lock(session: Session, cell: Cell) -> Lock | None:
    """Return the lock of the nearest image that the cell's image extends, for the same axes; None if none is read."""
    while cell.extends:
        cells = session.matrix.cells()
        parent = next((other for other in cells if (other.image, other.axes) == (cell.extends, cell.axes)), None)
        if parent is None:
            break
        with suppress(LockError):
            if locked := session.lock_files.find(parent):
                return locked
        cell = parent
    return None


def _with_conflict(session: Session, cell: Cell, error: LockError) -> LockError:
    """Return an error of the resolver with the conflicts that `why` finds in the cell, and its nearest proposal."""
    if error.code not in _UNRESOLVED:
        return error
    from imagegen.compat.answers import answer  # late: most cells can be resolved

    answered = answer(session.matrices, [cell.id], facts=session.judge.facts_of(cell))
    conflicts = [str(conflict) for conflict in answered.explanation.conflicts if conflict.severity != "warning"]
    if not conflicts:
        return error
    why = "\n".join([*conflicts, *([f"uv: {error.why}"] if error.why else [])])
    fix = "; or ".join(proposal.command for proposal in answered.nearest) or error.fix
    error.why, error.fix = why, fix
    return error


def lock_request(matrices: Matrices, cell: Cell, options: LockOptions) -> LockRequest:
    """Return the input of a lock of the cell. Raises as `lock.pack_own_packages` and `read_stack`."""
    context, directory = matrices.project.context_for(cell), matrices.project.directory
    return LockRequest(
        cell,
        options,
        tuple(matrices.rules),
        LocalWheelSelector(matrices.wheel_catalogue, cell.gpus, context),
        context,
        lock.pack_own_packages(cell, directory, context.store),
        read_stack(cell.stack, directory) if cell.stack else None,
    )


def _unknown_project(matrices: Matrices, cell: Cell, error: LockError) -> LockError | None:
    """Return the error for a component that nothing declares and that its index does not have; None for others."""
    for requirement in cell.requirements:
        name = requirement.component.package
        if not requirement.component.declared and f"{name} was not found in the package registry" in (error.why or ""):
            return LockError(
                f'index {requirement.index} has no project "{name}"',
                code="lock-unknown-project",
                why=f"no `components` entry declares {name}, so that it is a package of the index",
                fix=did_you_mean(name, matrices.matrix.components) or "correct the name, or give it an `index:`",
            )
    return None


def _record_layers(session: Session, cell: Cell, locked: Lock) -> Lock:
    """Build the layers and return the lock with their digests. An audit error is only printed, since a finding is fixed
    by a change of the lock.
    """
    locked = replace(locked, record=None)
    whole = ensure_wheels(session, cell, locked)
    image = layers.assemble(whole, session.project.context_for(cell))
    record = layers.record_of(image)
    try:
        for part, part_lock in replace(whole, record=record).by_cell(cell):
            if note := audit_before_image(session.project, part, part_lock):
                session.project.progress.say(note)
    except AuditError as error:
        session.project.progress.say(f"NOTE: {error}")
        session.project.progress.say(
            f"NOTE: the lock has its record all the same; `imagegen build {cell.id}` rejects this lock."
        )
    return replace(locked, record=record)


def _differs(lock_files: LockFiles, cell: Cell, locked: Lock, previous: Lock) -> bool:
    return lock.dumps(locked) != lock_files.text(cell) if cell.environments else locked != previous


def _report(result: LockedImage, previous: Lock | None, progress: Progress) -> None:
    """Print the changes and contents of a lock, whether it lost its record, and how its wheels are compiled."""
    cell, locked, changed = result.cell, result.lock, result.changed
    if changed and locked.record is None and previous and previous.record:
        progress.say("the lock changed, so its record was removed; `imagegen lock --record` makes a new one")
    for change in result.changes:
        progress.say(f"  {wording.arrow(change)}{f': {change.reason}' if change.reason else ''}")
    progress.say(f"{result.path}: {_contents(cell, locked) if changed else 'unchanged'}")
    if cell.environments and locked.has_several:
        progress.say(shared_wheels(locked).sentence)
    elif changed and locked.builds and locked.record is None:
        progress.say(
            f"`imagegen wheels build --cell {locked.cell}` compiles now what this machine lacks of that; "
            f"`imagegen build {locked.cell}` does it when it needs it"
        )


def _contents(cell: Cell, locked: Lock) -> str:
    """Return the contents of a lock in words."""
    if cell.environments:
        return counted(len(cell.environments), "environment")
    content, debs = locked.base.content, locked.base.debs
    below = f"{len(content.layers)} layers of {locked.base.image}" if content else f"{len(debs)} Debian packages"
    names = ", ".join(f"{build.name} {build.version}" for build in locked.builds)
    compiled = f", {len(locked.builds)} of them to be compiled ({names})" if locked.builds else ""
    return f"{len(locked.packages)} packages{compiled}, {below}"
