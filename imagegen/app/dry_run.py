"""What a dry run can know: of the lock and the store without asking anybody, and of the registry where it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imagegen.app.publish import Job
from imagegen.core.registry.image import Descriptor
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image.layers import foundation, reuse
from imagegen.image.layers.codec import CODEC, MEDIA_TYPE
from imagegen.image.layers.plan import LAYER_FORMAT, plan
from imagegen.plan.lock.model import Lock
from imagegen.supply.publish import proof
from imagegen.supply.publish.journal import Place
from imagegen.supply.publish.plan import Plan, Seen, Wanted
from imagegen.supply.publish.plan import plan as planned


def outlook(job: Job, repository: str, seen: Seen | None, store: Store, steps: Sequence[str]) -> Plan:
    """What publishing would do. Builds nothing; `steps` are sentences about what is not the registry's to say."""
    wanted = layers(job, store)
    held = {each.digest for each in wanted if each.digest and store.has(each.digest, each.size)}
    return planned(
        job.lock.cell,
        repository,
        job.expected,
        wanted,
        job.tags,
        held=held,
        seen=seen,
        moves=job.test,
        steps=[*steps, _tested(job, store)],
        unknown=tuple(_unknown(job)),
        anew="gzip layers are known only once they are made" if job.compression == "gzip" else None,
    )


def layers(job: Job, store: Store) -> tuple[Wanted, ...]:
    """The image's layers from the bottom up, as far as the lock's record or this store knows them."""
    lock, record = job.lock, job.lock.record
    if job.compression != "zstd":
        return tuple(Wanted(name) for name in _names(lock).values())
    if record and (record.layer_format, record.codec) == (LAYER_FORMAT, CODEC):
        return tuple(Wanted(layer.name, layer.digest, layer.size) for layer in record.layers)
    made = reuse.remembered(lock, store)
    return tuple(
        Wanted(name, made[key].digest, made[key].size) if key in made else Wanted(name)
        for key, name in _names(lock).items()
    )


def look(place: Place, beside: Sequence[Place], job: Job, store: Store) -> Seen:
    """What the registry has of it, and where its tags stand. Raises PublishError, FetchError."""
    place.target.reach()
    wanted = {
        each.digest: Descriptor(MEDIA_TYPE, each.digest, each.size)
        for each in layers(job, store)
        if each.digest is not None and each.size is not None
    }
    there = place.target.present(wanted.values())
    near: frozenset[str] = frozenset()
    for other in beside:
        near |= other.target.present(blob for digest, blob in wanted.items() if digest not in there | near)
    tags = {tag: place.standing(tag) for tag in (job.tags.fixed, *(job.tags.moving if job.test else ()))}
    return Seen(there, near, tags)


def _names(lock: Lock) -> dict[str, str]:
    """Key -> name of the layers, from the bottom up."""
    return foundation.names(lock) | {part.key: part.name for part in plan(lock)}


def _tested(job: Job, store: Store) -> str:
    if not job.test:
        return "no smoke checks (--no-test): the moving tags stay where they are"
    wanted = proof.Wanted.of(job.expected or "", job.lock, job.declared, require_gpu=job.require_gpu)
    if job.expected and proof.recall(store, wanted):
        return "the smoke checks passed for this image before: they need not run again"
    return "the smoke checks run in an engine" + (", on a GPU" if wanted.gpu else "") + "; the tags move if they pass"


def _unknown(job: Job) -> Iterator[str]:
    lock = job.lock
    made = {wheel.name for wheel in lock.wheels}
    compiled = [build.name for build in lock.builds if build.name not in made]
    if compiled and not lock.record:
        yield f"the layers of {', '.join(compiled)}: {counted(len(compiled), 'wheel')} must be compiled first"
