"""Build an image: from a lock to a tag that passed its smoke tests, or to an OCI layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagegen.app.audit import audit_before_image
from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.session import Session
from imagegen.core.errors import LockError, PackagesGoneError
from imagegen.core.net import MissingFiles
from imagegen.core.oci import MANIFEST_TYPE, Descriptor, write_image_index
from imagegen.core.store import images
from imagegen.core.text import counted
from imagegen.image import layers
from imagegen.image.layers import Image, LayerStack, Origin, RemoteLayers
from imagegen.plan.lock import local_tags
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.run import smoke
from imagegen.run.engine import Engine
from imagegen.run.engine.load import Loading
from imagegen.supply.publish.attachments import SmokeRequirement, passed_report, save_passed_report
from imagegen.wheels import builds


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build; `scratch_base` locks Debian packages again where the locked ones are gone."""

    test: bool = True
    audit: bool = True
    require_gpu: bool = False
    scratch_base: bool = False
    builder: str | None = None  # a buildx builder, for source builds


@dataclass(frozen=True)
class BuiltImage:
    """The manifest's digest, the tags, and the smoke report where checks ran.

    `index` is the digest of the index that a layout has, if it has images of several platforms.
    """

    digest: str
    tags: tuple[str, ...] = ()
    report: smoke.SmokeReport | None = None
    index: str | None = None


def build_image(session: Session, cell: Cell, lock: Lock, engine: Engine, options: BuildOptions) -> BuiltImage:
    """Build the lock's image in the engine, smoke-test it, and set its mutable tag when the checks have passed.

    Raises SmokeFailed when a check fails: the image stays under its immutable tag. Raises AuditError before there is
    an image, ReproducibilityError, and what the steps raise.
    """
    try:
        return _build(session, cell, lock, engine, options)
    except PackagesGoneError as error:
        if not options.scratch_base:
            raise
        return _build(session, cell, session.scratch_lock(cell, lock, error), engine, options)


def build_layout(
    session: Session,
    cells: Sequence[tuple[Cell, Lock]],
    directory: Path,
    options: BuildOptions,
    *,
    compile_wheels: bool,
) -> tuple[BuiltImage, ...]:
    """Build a lock's image as an OCI image layout at `directory`, or those of several platforms with an image index.

    The layout has the name of the first image. Needs no engine unless wheels are compiled.
    """
    images.require_new(directory)
    store = session.store
    locks, built = zip(
        *(_assemble_for_layout(session, *each, options, compile_wheels=compile_wheels) for each in cells), strict=True
    )
    index = None
    if len(built) > 1:
        manifests = [Descriptor(MANIFEST_TYPE, image.digest, len(image.manifest)) for image in built]
        platforms = [lock.platform for lock in locks]
        index = store.write(write_image_index(dict(zip(platforms, manifests, strict=True))))
    images.export(store, index or built[0].digest, directory, local_tags(locks[0])[0])
    return tuple(BuiltImage(image.digest, index=index) for image in built)


def _build(session: Session, cell: Cell, lock: Lock, engine: Engine, options: BuildOptions) -> BuiltImage:
    lock = ensure_wheels(session, cell, lock, engine=engine, builder=options.builder)
    mutable, immutable = local_tags(lock)
    digest = layers.built_digest(lock, session.store)
    if digest and engine.image_digest(immutable) == digest:
        _audit(session, cell, lock, audit=options.audit)  # the image may have been built without
    else:
        with engine.loading(session.store) as loading:
            digest = assemble_image(session, cell, lock, audit=options.audit, loading=loading).digest
            loading.finish(digest, immutable, session.progress)
    report = _smoke_test(session, cell, lock, engine, digest, options) if options.test else None
    engine.tag(digest, mutable)
    return BuiltImage(digest, (mutable, immutable), report)


def _assemble_for_layout(
    session: Session, cell: Cell, lock: Lock, options: BuildOptions, *, compile_wheels: bool
) -> tuple[Lock, Image]:
    """Return the lock's image, and the lock that it was made of: a scratch lock where the options ask for one."""
    try:
        if compile_wheels:
            whole = ensure_wheels(session, cell, lock, builder=options.builder)
        else:
            require_unchanged_copies(session, cell, lock)
            whole = builds.require_wheels(lock, session.context_for(cell))
        return whole, assemble_image(session, cell, whole, audit=options.audit)
    except PackagesGoneError as error:
        if not options.scratch_base:
            raise
        scratch, again = session.scratch_lock(cell, lock, error), replace(options, scratch_base=False)
        return _assemble_for_layout(session, cell, scratch, again, compile_wheels=compile_wheels)


def ensure_wheels(
    session: Session, cell: Cell, lock: Lock, *, engine: Engine | None = None, builder: str | None = None
) -> Lock:
    """Return the lock with its compiled wheels, and the copied files in the store.

    Raises LockError where these changed, and as `builds.ensure_wheels`.
    """
    require_unchanged_copies(session, cell, lock)
    gpus = tuple(session.matrix.gpus.values())
    return builds.ensure_wheels(lock, cell, gpus, session.context_for(cell), engine=engine, builder=builder)


def assemble_image(
    session: Session,
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
    store, progress = session.store, session.progress
    sources = layers.resolve_layers(lock, store, remote)
    known = remote.layers if remote else {}
    if unscanned := sum(each.origin is Origin.BUILD and each.plan.key in known for each in sources):
        progress.say(f"note: {counted(unscanned, 'remote layer')} must be built here: wheel scans are missing")
    stack = LayerStack(sources)
    height = _offer(loading, lock, stack, 0)
    try:
        for layer in layers.ensure_layers(lock, sources, session.context_for(cell), remote):
            stack.add(layer)
            height = _offer(loading, lock, stack, height)
    except MissingFiles as error:
        if cell.stack:
            from imagegen.plan.projects.stack import locate_missing  # late: an ordinary build reads no such file

            locate_missing(error, session.project / cell.stack.path)
        raise
    except LockError as error:
        error.where = cell.ldconfig_places.get(str(error.where), error.where)
        raise
    _audit(session, cell, lock, audit=audit)
    image = layers.write_image(lock, stack, store)
    if note := layers.compare_with_record(lock, image):
        progress.say(f"note: {note}")
    images.keep(store, lock.cell, image.digest, len(image.manifest))
    return image


def _offer(loading: Loading | None, lock: Lock, stack: LayerStack, height: int) -> int:
    """Offer the bottom of the stack to an engine where it has grown beyond `height` layers; return its height."""
    bottom = stack.bottom()
    if loading and len(bottom) > height:
        loading.offer(layers.image(lock, bottom))
    return len(bottom)


def _audit(session: Session, cell: Cell, lock: Lock, *, audit: bool) -> None:
    if audit:
        audit_before_image(session, cell, lock)
    else:
        session.progress.say(f"NOTE: {cell.id} is not audited (--no-audit).")
        session.progress.say(f"NOTE: `imagegen audit {cell.id}` reports what would not work.")


def _smoke_test(
    session: Session, cell: Cell, lock: Lock, engine: Engine, digest: str, options: BuildOptions
) -> smoke.SmokeReport:
    """Run the smoke checks and keep the report, so that publishing need not run them again. Raises SmokeFailed."""
    report = smoke.run(
        engine, digest, lock, cell.declarations, require_gpu=options.require_gpu, progress=session.progress
    )
    report.require_passed(fix=f"the image is kept as {local_tags(lock)[1]}")
    required = SmokeRequirement.of(digest, lock, cell.declarations, require_gpu=options.require_gpu)
    save_passed_report(session.store, passed_report(report, required, lock))
    return report
