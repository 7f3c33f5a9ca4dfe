"""Assemble an image: compile wheels, make layers, audit, and compare with the lock's record."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from imagegen.app.audit import audit_lock
from imagegen.app.audit_ahead import audited_ahead
from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.finished import FinishedBuild, keep_finished
from imagegen.app.lock_files import LockFiles
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.errors import LockError
from imagegen.core.net import MissingFiles
from imagegen.core.store import images
from imagegen.core.text import counted
from imagegen.image import layers
from imagegen.image.layers import Image, LayerStack, RemoteLayers
from imagegen.lock import local_tags
from imagegen.lock.environments import with_locks
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.engine import Engine
    from imagegen.engine.load import Loading


def ensure_wheels(
    session: Session, cell: Cell, lock: Lock, *, engine: Engine | None = None, builder: str | None = None
) -> Lock:
    """Return the lock with its compiled wheels. Raises as `ensure.ensure_wheels`."""
    environments = lock.by_cell(cell)
    if not any(locked.builds for _, locked in environments):
        return lock
    from imagegen.wheels.builds import ensure

    gpus = tuple(session.matrix.gpus.values())
    locks = [
        ensure.ensure_wheels(part_lock, part, gpus, session.project.context_for(part), engine=engine, builder=builder)
        for part, part_lock in environments
    ]
    return with_locks(lock, locks)


def require_wheels(project: ProjectContext, cell: Cell, lock: Lock) -> Lock:
    """Return the lock with its compiled wheels, which come only from the wheelhouses.

    Raises as `ensure.require_wheels`.
    """
    environments = lock.by_cell(cell)
    if not any(locked.builds for _, locked in environments):
        return lock
    from imagegen.wheels.builds import ensure

    return with_locks(
        lock, [ensure.require_wheels(part_lock, project.context_for(part)) for part, part_lock in environments]
    )


def assemble_cell(session: Session, cell: Cell, *, audit: bool) -> tuple[Lock, Image]:
    """Assemble the image of the cell's lock in the store, without an engine; return also the lock with its wheels."""
    lock = session.lock_files.fresh(cell)
    require_unchanged_copies(session.lock_files, cell, lock)
    lock = ensure_wheels(session, cell, lock)
    return lock, assemble_image(session.lock_files, cell, lock, audit=audit)


def find_built(lock_files: LockFiles, cell: Cell, lock: Lock, engine: Engine, *, audit: bool) -> FinishedBuild | None:
    """Return the image that the store has made of a lock with its compiled wheels, if the engine has it.

    It is audited, since it may have been built without an audit. Raises AuditError.
    """
    digest = layers.built_digest(lock, lock_files.project.store)
    if digest is None or engine.image_digest(local_tags(lock)[1]) != digest:
        return None
    finished = FinishedBuild(digest, audit_lock(lock_files.project, cell, lock, audit=audit))
    if audit:
        keep_finished(lock_files, cell, lock, finished)
    return finished


def assemble_image(
    lock_files: LockFiles,
    cell: Cell,
    lock: Lock,
    *,
    audit: bool,
    remote: RemoteLayers | None = None,
    loading: Loading | None = None,
) -> Image:
    """Assemble the image of a lock that has its compiled wheels: resolve, build, audit, write, compare with the record.

    Layers of `remote` are neither built nor fetched. `loading` gets the layers from the bottom up while others are
    built. Raises AuditError before there is an image, ReproducibilityError for another image than the recorded one.
    """
    store, progress = lock_files.project.store, lock_files.project.progress
    resolved = layers.resolve_layers(lock, store, remote)
    remote_layers = remote.layers if remote else {}
    if unscanned := sum(source.plan.key in remote_layers for source in resolved.absent):
        progress.say(f"note: {counted(unscanned, 'remote layer')} must be built here: wheel scans are missing")
    stack = LayerStack(resolved)
    try:
        with audited_ahead(lock_files.project, cell, lock) if audit else nullcontext():
            height = _offer(loading, lock, stack, 0)
            for layer in layers.ensure_layers(resolved, lock_files.project.context_for(cell)):
                stack.add(layer)
                height = _offer(loading, lock, stack, height)
    except MissingFiles as error:
        if cell.stack:
            from imagegen.lock.stack import locate_missing  # late: an ordinary build reads no such file

            locate_missing(error, lock_files.project.directory / cell.stack.path)
        raise
    except LockError as error:
        error.where = cell.ldconfig_places.get(str(error.where), error.where)
        raise
    audited = audit_lock(lock_files.project, cell, lock, audit=audit)
    image = layers.write_image(lock, stack, store)
    difference = layers.compare_with_record(lock, image)
    if difference:
        progress.say(f"note: {difference}")
    images.keep(store, lock.cell, image.digest, len(image.manifest))
    if audit:
        notes = (*audited, *([f"note: {difference}"] if difference else []))
        keep_finished(lock_files, cell, lock, FinishedBuild(image.digest, notes))
    return image


def _offer(loading: Loading | None, lock: Lock, stack: LayerStack, height: int) -> int:
    """Offer the bottom of the stack to an engine where it has grown beyond `height` layers; return its height."""
    bottom = stack.bottom()
    if loading and len(bottom) > height:
        loading.offer(layers.image(lock, bottom))
    return len(bottom)
