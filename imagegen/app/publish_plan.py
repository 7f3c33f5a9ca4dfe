"""Plan a publish from the locks, the store, and the registry if it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from imagegen.app.publish import expected_tagged
from imagegen.app.publisher import Publisher, PublishJob
from imagegen.core.errors import FetchError, PublishError
from imagegen.core.net import Client
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.image.layers.sources import plan_layers, previously_built_layers
from imagegen.lock.model import Lock
from imagegen.oci.documents import ZSTD_TYPE, Descriptor
from imagegen.publish.plan import LocatedLayer, PublishPlan, RegistryState, plan
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
    seen = None
    try:
        with Client(session.project.settings).impatient() as client:
            seen = query_registry(*publisher.repositories(client, job.cell.image), job, store)
    except (PublishError, FetchError) as error:
        session.project.progress.say(f"note: {name.name} could not be read: {error.why or error.what}")
    required = known_layers(job, store)
    in_store = {layer.digest for layer in required if layer.digest and store.has(layer.digest, layer.size)}
    compression = job.options.compression
    rebuild_reason = None if compression == "zstd" else f"{compression} layers are not known before they are built"
    return plan(
        lock.cell,
        name.name,
        job.expected,
        required,
        job.tags,
        in_store=in_store,
        seen=seen,
        moves=job.options.test,
        steps=[*steps, _tested(job, store)],
        unknown=tuple(_unknown(job)),
        rebuild_reason=rebuild_reason,
    )


def known_layers(job: PublishJob, store: Store) -> tuple[LocatedLayer, ...]:
    """Return the image's layers from the bottom up, with digests and sizes where the lock's record or this store has
    them.
    """
    lock, record = job.lock, job.lock.record
    if job.options.compression != "zstd":
        return tuple(LocatedLayer(part.name) for part in plan_layers(lock))
    if record and (record.layer_format, record.codec) == (LAYER_FORMAT, CODEC):
        return tuple(LocatedLayer(layer.name, layer.digest, layer.size) for layer in record.layers)
    built = previously_built_layers(lock, store)
    return tuple(
        LocatedLayer(part.name, built[part.key].digest, built[part.key].size)
        if part.key in built
        else LocatedLayer(part.name)
        for part in plan_layers(lock)
    )


def query_registry(
    repository: RemoteRepository, siblings: Sequence[RemoteRepository], job: PublishJob, store: Store
) -> RegistryState:
    """Return which layers the registry has, and what its tags name. Raises PublishError, FetchError."""
    repository.writer.reach()
    required = {
        layer.digest: Descriptor(ZSTD_TYPE, layer.digest, layer.size)
        for layer in known_layers(job, store)
        if layer.digest is not None and layer.size is not None
    }
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


def _unknown(job: PublishJob) -> Iterator[str]:
    locks = [environment.lock for environment in job.lock.environments]
    built = {wheel.build for lock in locks for wheel in lock.wheels if wheel.build}
    compiled = sorted({build.name for lock in locks for build in lock.builds if build.key not in built})
    if compiled and not job.lock.record:
        yield f"the layers of {', '.join(compiled)}: {counted(len(compiled), 'wheel')} must be compiled first"
