"""Build an image: from a lock to a tag that passed its smoke tests, or to an OCI layout."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.finished import FinishedBuild, find_finished, keep_finished
from imagegen.app.session import Session
from imagegen.core.errors import PackagesGoneError
from imagegen.core.store import images
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.oci.documents import MANIFEST_TYPE, Descriptor, write_image_index
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.engine import Engine
    from imagegen.run.smoke.report import SmokeReport


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build; `scratch_base` locks Debian packages again if the locked ones are gone."""

    test: bool = True
    audit: bool = True
    require_gpu: bool = False
    scratch_base: bool = False
    builder: str | None = None  # a buildx builder, for source builds
    retest: bool = False  # also where the same checks of the image passed in the same engine


@dataclass(frozen=True)
class BuiltImage:
    """The manifest's digest, the tags, and the smoke report, also of checks that ran before.

    `index` is the digest of the index that a layout has, if it has images of several platforms. `tested` is the age of
    an earlier report in seconds, None for checks that ran now.
    """

    digest: str
    tags: tuple[str, ...] = ()
    report: SmokeReport | None = None
    index: str | None = None
    tested: int | None = None


def build_image(session: Session, cell: Cell, lock: Lock, engine: Engine, options: BuildOptions) -> BuiltImage:
    """Build the lock's image in the engine, smoke-test it, and set its mutable tag when the checks have passed.

    Raises SmokeFailed if a check fails; the image then keeps its immutable tag. Raises AuditError before there is an
    image, ReproducibilityError, and the errors of the steps.
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
    """Build a lock's image, or the images of several platforms with an index, as an OCI image layout at `directory`.

    The layout has the name of the first image. Needs no engine unless wheels are compiled.
    """
    images.require_new(directory)
    built = [_assemble_for_layout(session, *cell, options, compile_wheels=compile_wheels) for cell in cells]
    index = None
    if len(built) > 1:
        platforms = [lock.platform for _, lock in cells]
        manifests = [manifest for manifest, _ in built]
        index = session.store.write(write_image_index(dict(zip(platforms, manifests, strict=True))))
    (first, tag), *_ = built
    images.export(session.store, index or first.digest, directory, tag)
    return tuple(BuiltImage(manifest.digest, index=index) for manifest, _ in built)


def _build(session: Session, cell: Cell, lock: Lock, engine: Engine, options: BuildOptions) -> BuiltImage:
    finished = _unchanged(session, cell, lock, options)
    if finished and engine.image_digest(finished.tags[1]) == finished.digest:
        digest, tags = finished.digest, finished.tags
        for note in finished.notes:
            session.progress.say(note)
    else:
        from imagegen.app import assemble  # late, here and below: an unchanged build needs no builders
        from imagegen.image import layers

        lock = assemble.ensure_wheels(session, cell, lock, engine=engine, builder=options.builder)
        tags = local_tags(lock)
        built = layers.built_digest(lock, session.store)
        if built and engine.image_digest(tags[1]) == built:
            digest = built
            notes = assemble.audit_lock(session, cell, lock, audit=options.audit)  # it may have been built without
            if options.audit:
                keep_finished(session, cell, lock, FinishedBuild(digest, tags, notes))
        else:
            with engine.loading(session.store) as loading:
                image = assemble.assemble_image(session, cell, lock, audit=options.audit, loading=loading)
                digest = image.digest
                loading.finish(digest, tags[1], session.progress)
    report, age = _smoke_test(session, cell, lock, engine, digest, options) if options.test else (None, None)
    engine.tag(digest, tags[0])
    return BuiltImage(digest, tags, report, tested=age)


def _assemble_for_layout(
    session: Session, cell: Cell, lock: Lock, options: BuildOptions, *, compile_wheels: bool
) -> tuple[Descriptor, str]:
    """Return the manifest of the lock's image in the store, or of a scratch lock's where the options ask for one; and
    its mutable tag.
    """
    finished = _unchanged(session, cell, lock, options)
    if finished and (manifest := images.find_whole(session.store, finished.digest)):
        for note in finished.notes:
            session.progress.say(note)
        if images.images(session.store).get(lock.cell) != manifest.digest:
            images.keep(session.store, lock.cell, manifest.digest, manifest.size)
        return manifest, finished.tags[0]
    from imagegen.app import assemble

    try:
        if compile_wheels:
            whole = assemble.ensure_wheels(session, cell, lock, builder=options.builder)
        else:
            whole = assemble.require_wheels(session, cell, lock)
        image = assemble.assemble_image(session, cell, whole, audit=options.audit)
        return Descriptor(MANIFEST_TYPE, image.digest, len(image.manifest)), local_tags(whole)[0]
    except PackagesGoneError as error:
        if not options.scratch_base:
            raise
        scratch, again = session.scratch_lock(cell, lock, error), replace(options, scratch_base=False)
        return _assemble_for_layout(session, cell, scratch, again, compile_wheels=compile_wheels)


def _unchanged(session: Session, cell: Cell, lock: Lock, options: BuildOptions) -> FinishedBuild | None:
    """Return the finished build of the lock. Raises LockError where copied files or patches changed."""
    require_unchanged_copies(session, cell, lock)
    return find_finished(session, cell, lock) if options.audit else None


def _smoke_test(
    session: Session, cell: Cell, lock: Lock, engine: Engine, digest: str, options: BuildOptions
) -> tuple[SmokeReport, int | None]:
    """Return the report of the smoke checks, and its age in seconds where they need not run again (else None).

    The report is kept, for the next build and for publishing. Raises SmokeFailed.
    """
    from imagegen.run.smoke import passed as smoke_reports  # late: an unchanged build without checks needs neither
    from imagegen.run.smoke import report as smoke  # late: an unchanged build without checks needs neither
    from imagegen.run.smoke import runner as smoke_checks  # late: an unchanged build without checks needs neither

    required = smoke_reports.SmokeRequirement.of(digest, lock, cell.declarations, require_gpu=options.require_gpu)
    conditions = smoke.SmokeConditions.of(engine.info(), smoke.nvidia_devices())
    if not options.retest and (run := smoke_reports.find_run(session.store, required, conditions, lock)):
        saved, then = run
        return smoke.SmokeReport.from_dict(saved.report), max(0, int(time.time()) - then)
    report = smoke_checks.run(
        engine, digest, lock, cell.declarations, require_gpu=options.require_gpu, progress=session.progress
    )
    report.require_passed(fix=f"the image is kept as {local_tags(lock)[1]}")
    passed = smoke_reports.passed_report(report, required, lock)
    smoke_reports.save_passed_report(session.store, passed)
    smoke_reports.save_run(session.store, passed, conditions, int(time.time()))
    return report, None
