"""From a lock to tags in a registry, step by step. The order is what keeps the promises; a registry has no transaction.

1. What can be refused is refused first: nobody answers, nothing may be written (an upload is begun and cancelled), the
   tag that never moves is another image.
2. What a killed run left half moved goes back (see `journal`), so that each run starts from tags that agree.
3. Blobs, then the manifest under its digest. Nothing names it yet: who breaks off here leaves blobs that the next run
   finds, and that the registry's own collector may take.
4. The documents and signatures. They come before any tag, so nobody who follows a tag finds an image without them.
5. The tag that never moves. It is looked at again right before, and another image under it is refused. (Two machines
   that write different images in the same moment are beyond a registry: the inputs are in the tag's name, so it takes
   two builds of the same inputs that differ.)
6. The smoke checks, or a report of them that still holds; then that report is attached.
7. The moving tags, all or none, under the journal. Only green checks lead here.

So each tag names, at every moment, a manifest whose blobs are all there. Each step finds what it would do done already
and does nothing then: running the same again ends where an undisturbed run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from imagegen.app.pipeline import SmokeFailed
from imagegen.core.errors import PublishError
from imagegen.core.progress import Progress
from imagegen.core.registry.image import Descriptor
from imagegen.core.registry.push import Moved
from imagegen.core.store import Store
from imagegen.core.store.layout import MANIFEST_TYPE
from imagegen.image import layers
from imagegen.image.layers import Image
from imagegen.plan.lock.model import Lock, Record
from imagegen.plan.matrix.model import Declarations
from imagegen.run import smoke
from imagegen.supply.publish import elsewhere, journal, proof
from imagegen.supply.publish.elsewhere import Elsewhere, Said
from imagegen.supply.publish.journal import Manifest, Place
from imagegen.supply.publish.proof import Proof, Wanted
from imagegen.supply.publish.push import push, told
from imagegen.supply.publish.tags import Compression, Tags
from imagegen.supply.trust.documents import Document


@dataclass(frozen=True)
class Job:
    """What is to be published. `declared` is what the smoke checks expect beside the lock."""

    lock: Lock
    tags: Tags
    declared: Declarations
    compression: Compression = "zstd"
    test: bool = True
    require_gpu: bool = False
    expected: str | None = None  # the image's digest, where it is known before anything is made


@dataclass(frozen=True)
class Made:
    """`image` is what is published; `plain` the same with its layers as imagegen makes them."""

    image: Image
    plain: Image


@dataclass(frozen=True)
class Hands:
    """What the road needs of others."""

    realise: Callable[[], Lock]  # the lock with its compiled wheels
    make: Callable[[Lock, Elsewhere], Made]  # given layers that are there already; raises where no image shall be made
    documents: Callable[[Lock, Made], Sequence[Document]]
    attach: Callable[[Place, Descriptor, Sequence[Document]], None]  # what is there already stays
    said: Said
    prove: Callable[[Lock, Image, Wanted], smoke.Report]


@dataclass(frozen=True)
class Published:
    """`moved` are the tags that moved, and what each stood for; `proven` says where the proof comes from.

    `record` is what the lock may promise from now on: of the image with its layers as imagegen makes them.
    """

    cell: str
    repository: str
    digest: str
    record: Record
    fixed: str
    moved: Mapping[str, str | None]
    pushed: Moved
    proof: Proof | None
    proven: str

    @property
    def news(self) -> bool:
        """Whether blobs came or tags moved, rather than all being as it is already."""
        return bool(self.pushed.sent.blobs or self.pushed.mounted.blobs or self.moved)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cell": self.cell,
            "repository": self.repository,
            "digest": self.digest,
            "fixed": self.fixed,
            "moved": dict(self.moved),
            "blobs": asdict(self.pushed),
            "proof": {"gpu": self.proof.gpu, "from": self.proven} if self.proof else None,
            "report": dict(self.proof.report) if self.proof else None,
        }


def publish(
    job: Job, hands: Hands, place: Place, beside: Sequence[Place], store: Store, progress: Progress
) -> Published:
    """Publish the lock's image at `place`; `beside` are repositories of the same registry that may have layers of it.

    Raises PublishError, SmokeFailed, and what `hands` raise.
    """
    waiting = f"waiting for another run that publishes to {place.name}"
    with store.lock(f"publish-{place.name}", lambda: progress.say(waiting)):
        _require_ready(job, place)
        journal.settle(place, store, progress.say)
        lock = hands.realise()
        found = elsewhere.find(lock, job.compression, (place, *beside), job.tags, hands.said, store, progress)
        made = hands.make(lock, found)
        image = made.image
        _require_free(job, place, image.digest)
        pushed = push(image, place, store, progress)
        progress.say(f"{place.name}@{image.digest}: {told(pushed)}")
        subject = Descriptor(MANIFEST_TYPE, image.digest, len(image.manifest))
        hands.attach(place, subject, hands.documents(lock, made))
        _set_fixed(job, place, image)
        record = layers.record_of(made.plain)
        done = partial(Published, job.lock.cell, place.name, image.digest, record, job.tags.fixed)
        if not job.test:
            return done({}, pushed, None, "")
        proven, source = _prove(job, lock, hands, place, image, store, progress)
        hands.attach(place, subject, [proof.document(proven)])
        moved = journal.move(place, store, Manifest(image.digest, MANIFEST_TYPE), job.tags.moving, progress.say)
        return done(moved, pushed, proven, source)


def _require_ready(job: Job, place: Place) -> None:
    place.target.reach()
    place.target.require_writable()
    if job.expected:
        _require_free(job, place, job.expected)


def _require_free(job: Job, place: Place, digest: str) -> bool:
    """Whether the fixed tag must be set; PublishError where it is another image."""
    found = place.standing(job.tags.fixed)
    if found not in (None, digest):
        raise PublishError(
            f"{place.name}:{job.tags.fixed} is another image already, and never moves",
            code="publish-tag-immutable",
            why=f"it is {found}, and this is {digest}: the same inputs gave other bytes, by another codec or compiler",
            fix=f"`imagegen lock {job.lock.cell}` gives it a date and a tag of its own",
        )
    return found is None


def _set_fixed(job: Job, place: Place, image: Image) -> None:
    if _require_free(job, place, image.digest):
        place.target.put(image.manifest, MANIFEST_TYPE, job.tags.fixed)


def _prove(
    job: Job, lock: Lock, hands: Hands, place: Place, image: Image, store: Store, progress: Progress
) -> tuple[Proof, str]:
    """A proof of the image, and where it comes from. SmokeFailed where a check says no."""
    wanted = Wanted.of(image.digest, lock, job.declared, require_gpu=job.require_gpu)
    if known := proof.recall(store, wanted):
        progress.say("the smoke checks passed for this image before, and neither it nor they have changed")
        return known, "this store"
    if found := proof.attested(hands.said(place, image.digest), wanted):
        progress.say(f"the smoke checks passed for this image: {found[1]} attests it")
        return found
    report = hands.prove(lock, image, wanted)
    if not report.passed:
        names = ", ".join(result.check for result in report.results if result.failed) or "no check ran"
        fix = f"no tag has moved; the image is {place.name}:{job.tags.fixed}"
        raise SmokeFailed(f"smoke checks failed: {names}", report, fix=fix)
    proven = proof.of(report, wanted, lock)
    proof.remember(store, proven)
    return proven, "these checks"
