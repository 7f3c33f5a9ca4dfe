"""Build an image: from a lock to a tag that passed its smoke tests, or to an OCI layout."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagegen import lock as locks
from imagegen.app.finished import find_finished
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.errors import EngineError, PackagesGoneError
from imagegen.core.store import images
from imagegen.lock import local_tags
from imagegen.lock.facts import facts_of_lock
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


def scratch_lock(session: Session, cell: Cell, locked: Lock, error: PackagesGoneError, *, scratch_base: bool) -> Lock:
    """Return the lock with today's Debian packages, and write it next to the store, not into the project.

    Raises `error`, which names the packages that are gone, unless the user allows a scratch base.
    """
    if not scratch_base:
        raise error
    from imagegen.image import base
    from imagegen.lock.builds import keyed

    settings, progress = session.project.settings, session.project.progress
    moved = replace(locked, base=base.resolve(cell.base, cell.platform, settings, progress), record=None)
    fresh = replace(moved, builds=tuple(keyed(build, moved) for build in moved.builds))  # its compilers may be others
    session.judge.require_compatible(cell, facts_of_lock(fresh, cell))
    path = settings.store.parent / "scratch" / f"{cell.id}.toml"
    locks.write(fresh, path)
    progress.say(f"NOTE: {error}")
    progress.say(f"NOTE: the base was locked again for only this build ({path}).")
    progress.say(f"NOTE: the image is not the recorded one; `imagegen lock {cell.id} --upgrade-base` moves the lock.")
    return fresh


def build_image(session: Session, cell: Cell, lock: Lock, engine: Engine, options: BuildOptions) -> BuiltImage:
    """Build the lock's image in the engine, smoke-test it, and set its mutable tag when the checks have passed.

    Raises SmokeFailed if a check fails; the image then keeps its immutable tag. Raises AuditError before there is an
    image, ReproducibilityError, and the errors of the steps.
    """
    try:
        return _build_and_test(session, cell, lock, engine, options)
    except PackagesGoneError as error:
        lock = scratch_lock(session, cell, lock, error, scratch_base=options.scratch_base)
        return _build_and_test(session, cell, lock, engine, options)


def build_layout(
    session: Session, cells: Sequence[tuple[Cell, Lock]], directory: Path, options: BuildOptions
) -> tuple[BuiltImage, ...]:
    """Build a lock's image, or the images of several platforms with an index, as an OCI image layout at `directory`.

    The layout has the name of the first image. Needs no engine unless the options name a builder of wheels.
    """
    images.require_new(directory)
    built = []
    for cell, lock in cells:
        try:
            built.append(_build_into_store(session, cell, lock, options))
        except PackagesGoneError as error:
            scratch = scratch_lock(session, cell, lock, error, scratch_base=options.scratch_base)
            built.append(_build_into_store(session, cell, scratch, options))
    index = None
    if len(built) > 1:
        platforms = [lock.platform for _, lock in cells]
        manifests = [manifest for manifest, _ in built]
        index = session.project.store.write(write_image_index(dict(zip(platforms, manifests, strict=True))))
    (first, tag), *_ = built
    images.export(session.project.store, index or first.digest, directory, tag)
    return tuple(BuiltImage(manifest.digest, index=index) for manifest, _ in built)


def _build_and_test(session: Session, cell: Cell, lock: Lock, engine: Engine, options: BuildOptions) -> BuiltImage:
    built = find_finished(session.lock_files, cell, lock, engine, audit=options.audit)
    if built is None:
        from imagegen.app import assemble  # late, here and below: an unchanged build needs no builders

        lock = assemble.ensure_wheels(session, cell, lock, engine=engine, builder=options.builder)
        built = assemble.find_built(session.lock_files, cell, lock, engine, audit=options.audit)
    digest, tags = built.digest if built else _load_image(session, cell, lock, engine, options), local_tags(lock)
    report, age = _smoke_test(session.project, cell, lock, engine, digest, options) if options.test else (None, None)
    engine.tag(digest, tags[0])
    return BuiltImage(digest, tags, report, tested=age)


def _load_image(session: Session, cell: Cell, lock: Lock, engine: Engine, options: BuildOptions) -> str:
    """Assemble the image while the engine loads its layers; return its digest. The engine has its immutable tag."""
    from imagegen.app import assemble

    with engine.loading(session.project.store) as loading:
        image = assemble.assemble_image(session.lock_files, cell, lock, audit=options.audit, loading=loading)
        loading.finish(image.digest, local_tags(lock)[1], session.project.progress)
    return image.digest


def _build_into_store(session: Session, cell: Cell, lock: Lock, options: BuildOptions) -> tuple[Descriptor, str]:
    """Return the manifest of the lock's image in the store, and its mutable tag."""
    if finished := find_finished(session.lock_files, cell, lock, None, audit=options.audit):
        digest = finished.digest
    else:
        from imagegen.app import assemble

        if options.builder is None:
            lock = assemble.require_wheels(session.project, cell, lock)
        else:
            lock = assemble.ensure_wheels(session, cell, lock, builder=options.builder)
        digest = assemble.assemble_image(session.lock_files, cell, lock, audit=options.audit).digest
    return Descriptor(MANIFEST_TYPE, digest, len(session.project.store.read(digest))), local_tags(lock)[0]


def _smoke_test(
    project: ProjectContext, cell: Cell, lock: Lock, engine: Engine, digest: str, options: BuildOptions
) -> tuple[SmokeReport, int | None]:
    """Return the report of the smoke checks, and its age in seconds where they need not run again (else None).

    The report is kept, for the next build and for publishing. Raises SmokeFailed.
    """
    from imagegen.run.smoke import passed as smoke_reports  # late: an unchanged build without checks needs neither
    from imagegen.run.smoke import report as smoke  # late: an unchanged build without checks needs neither
    from imagegen.run.smoke import runner as smoke_checks  # late: an unchanged build without checks needs neither

    required = smoke_reports.SmokeRequirement.of(digest, lock, cell.declarations, require_gpu=options.require_gpu)
    conditions = smoke.SmokeConditions.of(engine.info(), smoke.nvidia_devices())
    if not options.retest and (run := smoke_reports.find_run(project.store, required, conditions, lock)):
        saved, then = run
        return smoke.SmokeReport.from_dict(saved.report), max(0, int(time.time()) - then)
    report = smoke_checks.run(
        engine, digest, lock, cell.declarations, require_gpu=options.require_gpu, progress=project.progress
    )
    report.require_passed(fix=f"the image is kept as {local_tags(lock)[1]}")
    passed = smoke_reports.passed_report(report, required, lock)
    smoke_reports.save_passed_report(project.store, passed)
    smoke_reports.save_run(project.store, passed, conditions, int(time.time()))
    return report, None


def run_checks(
    project: ProjectContext, cell: Cell, lock: Lock, names: Collection[str], *, require_gpu: bool
) -> tuple[str, SmokeReport]:
    """Run the checks in `names`, or all default checks. Returns the image's digest and the report."""
    from imagegen.engine import Engine
    from imagegen.run.smoke import runner as smoke_checks

    tag = local_tags(lock)[1]
    with Engine.connect(project.settings, project.progress) as engine:
        image = engine.image_digest(tag)
        if image is None:
            raise EngineError(f"{tag} is not in Docker", code="engine-no-image", fix=f"`imagegen build {cell.id}`")
        return image, smoke_checks.run(
            engine, tag, lock, cell.declarations, require_gpu=require_gpu, progress=project.progress, only=names
        )
