"""Plan a publish without doing it: from the lock and the store, and from the registry where it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imagegen.app.publisher import Job, Publisher
from imagegen.core.errors import FetchError, PublishError
from imagegen.core.net import Client
from imagegen.core.registry.image import Descriptor
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image.layers.codec import CODEC, MEDIA_TYPE
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.image.layers.sources import plan_layers, previously_built_layers
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.supply.publish import proof
from imagegen.supply.publish.journal import RemoteRepository
from imagegen.supply.publish.plan import Plan, RegistryState, RequiredLayer
from imagegen.supply.publish.plan import plan as planned


def plan_publish(publisher: Publisher, cell: Cell, lock: Lock) -> Plan:
    """Return what publishing would do. Builds nothing; a registry that does not answer is noted."""
    session = publisher.session
    job, name, store = publisher.job(cell, lock), publisher.reference(cell.image), session.store
    steps = publisher.attachment_steps(lock)
    seen = None
    try:
        with Client(session.settings).impatient() as client:
            seen = query_registry(*publisher.repositories(client, cell.image), job, store)
    except (PublishError, FetchError) as error:
        session.progress.say(f"note: {name.name} could not be read: {error.why or error.what}")
    wanted = layers(job, store)
    held = {each.digest for each in wanted if each.digest and store.has(each.digest, each.size)}
    return planned(
        lock.cell,
        name.name,
        job.expected,
        wanted,
        job.tags,
        held=held,
        seen=seen,
        moves=job.test,
        steps=[*steps, _tested(job, cell, store)],
        unknown=tuple(_unknown(job)),
        anew="gzip layers are known only once they are made" if job.compression == "gzip" else None,
    )


def layers(job: Job, store: Store) -> tuple[RequiredLayer, ...]:
    """Return the image's layers from the bottom up, with digests and sizes where the lock's record or this store has
    them.
    """
    lock, record = job.lock, job.lock.record
    if job.compression != "zstd":
        return tuple(RequiredLayer(part.name) for part in plan_layers(lock))
    if record and (record.layer_format, record.codec) == (LAYER_FORMAT, CODEC):
        return tuple(RequiredLayer(layer.name, layer.digest, layer.size) for layer in record.layers)
    built = previously_built_layers(lock, store)
    return tuple(
        RequiredLayer(part.name, built[part.key].digest, built[part.key].size)
        if part.key in built
        else RequiredLayer(part.name)
        for part in plan_layers(lock)
    )


def query_registry(
    repository: RemoteRepository, siblings: Sequence[RemoteRepository], job: Job, store: Store
) -> RegistryState:
    """Return which layers the registry has, and what its tags name. Raises PublishError, FetchError."""
    repository.target.reach()
    wanted = {
        each.digest: Descriptor(MEDIA_TYPE, each.digest, each.size)
        for each in layers(job, store)
        if each.digest is not None and each.size is not None
    }
    there = repository.target.present(wanted.values())
    near: frozenset[str] = frozenset()
    for other in siblings:
        near |= other.target.present(blob for digest, blob in wanted.items() if digest not in there | near)
    tags = {tag: repository.resolve_tag(tag) for tag in (job.tags.fixed, *(job.tags.moving if job.test else ()))}
    return RegistryState(there, near, tags)


def _tested(job: Job, cell: Cell, store: Store) -> str:
    if not job.test:
        return "no smoke checks (--no-test): the moving tags stay where they are"
    wanted = proof.SmokeRequirement.of(job.expected or "", job.lock, cell.declarations, require_gpu=job.require_gpu)
    if job.expected and proof.recall(store, wanted):
        return "the smoke checks passed for this image before: they need not run again"
    return "the smoke checks run in an engine" + (", on a GPU" if wanted.gpu else "") + "; the tags move if they pass"


def _unknown(job: Job) -> Iterator[str]:
    lock = job.lock
    made = {wheel.name for wheel in lock.wheels}
    compiled = [build.name for build in lock.builds if build.name not in made]
    if compiled and not lock.record:
        yield f"the layers of {', '.join(compiled)}: {counted(len(compiled), 'wheel')} must be compiled first"
