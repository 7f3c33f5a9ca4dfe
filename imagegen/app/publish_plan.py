"""Plan a publish from the locks, the store, and the registry if it answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from imagegen.app.publisher import Publisher, PublishJob, expected_tagged
from imagegen.core.errors import FetchError, PublishError
from imagegen.core.net import Client
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image.layers import LayerSource, resolve_layers
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.image.layers.sources import plan_layers, resolve_recorded
from imagegen.lock.model import Lock
from imagegen.publish.plan import PublishPlan, RegistryState
from imagegen.publish.repository import RemoteRepository
from imagegen.run.smoke.passed import SmokeRequirement, find_saved
from imagegen.spec.model import Cell


def plan_publish(publisher: Publisher, cells: Sequence[tuple[Cell, Lock]]) -> tuple[PublishPlan, ...]:
    """Return the plan of publishing the images under the same tags, image by image.

    Builds nothing; a registry that does not answer is noted.
    """
    jobs = publisher.jobs(cells)
    plans = tuple(_plan(publisher, job) for job in jobs)
    if len(jobs) == 1:
        return plans
    platforms = tuple(sorted(job.lock.platform for job in jobs))
    index = expected_tagged(jobs, publisher.session.project.store)
    return tuple(replace(image_plan, platforms=platforms, index=index) for image_plan in plans)


def _plan(publisher: Publisher, job: PublishJob) -> PublishPlan:
    session, lock = publisher.session, job.lock
    name, store = publisher.reference(job.cell.image), session.project.store
    steps = publisher.attachment_steps(lock)
    seen, sources = None, _layer_sources(job, store)
    try:
        with Client(session.project.settings).impatient() as client:
            seen = query_registry(*publisher.repositories(client, job.cell.image), job, sources)
    except (PublishError, FetchError) as error:
        session.project.progress.say(f"note: {name.name} could not be read: {error.why or error.what}")
    compression = job.options.compression
    rebuild_reason = None if compression == "zstd" else f"{compression} layers are not known before they are built"
    return PublishPlan(
        lock.cell,
        name.name,
        job.expected,
        sources,
        job.tags,
        seen,
        moves=job.options.test,
        steps=(*steps, _tested(job, store)),
        uncompiled=tuple(_uncompiled(job)),
        rebuild_reason=rebuild_reason,
    )


def _layer_sources(job: PublishJob, store: Store) -> tuple[LayerSource, ...]:
    """Return the sources of the image's layers from the bottom up, with digests and sizes where the lock's record or
    this store has them.
    """
    lock, record = job.lock, job.lock.record
    if job.options.compression != "zstd":
        return tuple(map(LayerSource, plan_layers(lock)))
    if record and (record.layer_format, record.codec) == (LAYER_FORMAT, CODEC):
        return resolve_recorded(lock, store)
    return resolve_layers(lock, store).sources


def query_registry(
    repository: RemoteRepository, siblings: Sequence[RemoteRepository], job: PublishJob, sources: Iterable[LayerSource]
) -> RegistryState:
    """Return which layers the registry has, and what its tags name. Raises PublishError, FetchError."""
    repository.writer.reach()
    required = {source.layer.digest: source.layer for source in sources if source.layer}
    present = repository.writer.present(required.values())
    near: frozenset[str] = frozenset()
    for other in siblings:
        near |= other.writer.present(blob for digest, blob in required.items() if digest not in present | near)
    tags = {
        tag: repository.resolve_tag(tag)
        for tag in (job.tags.immutable, *(job.tags.mutable if job.options.test else ()))
    }
    return RegistryState(present, near, tags)


def _tested(job: PublishJob, store: Store) -> str:
    if not job.options.test:
        return "no smoke checks (--no-test): the mutable tags do not move"
    required = SmokeRequirement.of(
        job.expected or "", job.lock, job.cell.declarations, require_gpu=job.options.require_gpu
    )
    if job.expected and find_saved(store, required):
        return "the smoke checks passed for this image before: they need not run again"
    return "the smoke checks run in an engine" + (", on a GPU" if required.gpu else "") + "; the tags move if they pass"


def _uncompiled(job: PublishJob) -> Iterator[str]:
    locks = [environment.lock for environment in job.lock.environments]
    built = {wheel.build for lock in locks for wheel in lock.wheels if wheel.build}
    compiled = sorted({build.name for lock in locks for build in lock.builds if build.key not in built})
    if compiled and not job.lock.record:
        yield f"the layers of {', '.join(compiled)}: {counted(len(compiled), 'wheel')} must be compiled first"
