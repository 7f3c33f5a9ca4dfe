"""Publish an image, or the images of several platforms as one index: from locks to tags in a registry, step by step.

The order keeps the promises, since a registry has no transaction:

1. Everything that can be refused is refused first: an unusable signer, no answer, no permission to write (an upload is
   begun and cancelled), an immutable tag that names another image.
2. Tags that an interrupted run moved in part are rolled back (`recover`), so each run starts from tags that agree.
3. Wheels without an index are compiled; layers that a trusted attestation describes are found in the registry; the
   others are built, and the image is audited. Layers that other images need too are pushed and attested right after
   they are built (`app.shared_layers`).
4. The blobs, then the manifest under its digest. No tag names it yet: after an interruption here the next run finds the
   blobs, and the registry's garbage collection may take them.
5. The attestations and signatures, before any tag, so that no tag names an image without them. If there are several
   images, then the index under its digest, and its signature; a registry that takes no index has no new tag.
6. The immutable tag. It is resolved again right before; another image under it is refused. (Two machines that publish
   different images of the same inputs at the same moment are not detected, as the inputs are part of the tag's name.)
7. The smoke checks, or a trusted report of them that still applies; then that report is attached.
8. The mutable tags, all or none, under the journal, and only after passed checks.

So each tag names, at every moment, a manifest whose blobs are all there. Each step finds work that was done before and
does nothing then: repeating an interrupted run ends where an undisturbed run ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from imagegen.app.assemble import assemble_image, ensure_wheels
from imagegen.app.audit import audit_report
from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.project import ProjectContext
from imagegen.app.publisher import Publisher, PublishJob, expected_tagged
from imagegen.app.shared_layers import SharedRegistry, share_layers
from imagegen.core.errors import PublishError
from imagegen.core.net import Client
from imagegen.engine import Engine
from imagegen.image import layers
from imagegen.image.inventory.cell_subject import known_scans
from imagegen.image.layers import Image
from imagegen.image.layers.gzip_layers import compress_with_gzip
from imagegen.lock import local_tags
from imagegen.lock.model import Lock, Record
from imagegen.oci.documents import INDEX_TYPE, MANIFEST_TYPE, Descriptor, digest_of, write_image_index
from imagegen.oci.registry.credentials import credentials_for
from imagegen.oci.registry.push import PushTotals
from imagegen.oci.registry.reference import endpoint, engine_name
from imagegen.publish import attachments
from imagegen.publish.attachments import find_attested, smoke_document
from imagegen.publish.remote_layers import AttachmentReader, find_remote_layers
from imagegen.publish.repository import RemoteRepository, TaggedManifest, format_summary, push
from imagegen.publish.tag_moves import move_tags, recover
from imagegen.publish.tags import COMPRESSION_SUFFIXES
from imagegen.run import numerics
from imagegen.run.smoke import report as smoke
from imagegen.run.smoke import runner as smoke_checks
from imagegen.run.smoke.passed import (
    PassedSmokeReport,
    SmokeRequirement,
    find_saved,
    passed_report,
    save_passed_report,
)
from imagegen.spec.model import Cell
from imagegen.trust import provenance
from imagegen.trust.attach import attach
from imagegen.trust.documents import FACT, FACTS, LAYERS, Document
from imagegen.trust.known_licences import read_known_licences
from imagegen.trust.licences import KnownLicences
from imagegen.trust.restrictions import find_restrictions


@dataclass(frozen=True)
class PublishedImage:
    """A published image. `moved_tags` maps each mutable tag that moved to its former digest; `smoke_source` names the
    origin of `smoke_report`, the passed smoke report.

    `record` is the record for the lock: of the image with its layers as imagegen compresses them. `index` is the digest
    of the index that the tags name; None where they name the image.
    """

    cell: str
    repository: str
    digest: str
    record: Record
    immutable_tag: str
    moved_tags: Mapping[str, str | None]
    pushed: PushTotals
    smoke_report: PassedSmokeReport | None
    smoke_source: str
    index: str | None = None

    @property
    def changed(self) -> bool:
        """Return whether blobs were pushed or tags moved, rather than all being there before."""
        return bool(self.pushed.sent.blobs or self.pushed.mounted.blobs or self.moved_tags)

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "cell": self.cell,
            "repository": self.repository,
            "digest": self.digest,
            "index": self.index,
            "fixed": self.immutable_tag,
            "moved": dict(self.moved_tags),
            "blobs": asdict(self.pushed),
            "proof": {"gpu": self.smoke_report.gpu, "from": self.smoke_source} if self.smoke_report else None,
            "report": dict(self.smoke_report.report) if self.smoke_report else None,
        }


@dataclass(frozen=True)
class AssembledImage:
    """An image in the form that is pushed. `canonical` is the image with its layers as imagegen compresses them."""

    job: PublishJob
    lock: Lock  # with its compiled wheels
    image: Image
    canonical: Image
    known: KnownLicences

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(MANIFEST_TYPE, self.image.digest, len(self.image.manifest))


def publish_images(publisher: Publisher, cells: Sequence[tuple[Cell, Lock]]) -> tuple[PublishedImage, ...]:
    """Publish the lock's image in the repository of its name, or the images of several platforms as one index.

    Raises TrustError for an unusable signer before anything is done, PublishError, SmokeFailed, AuditError, and what
    the steps raise.
    """
    publisher.load_signer()
    session, store = publisher.session, publisher.session.project.store
    with Client(session.project.settings) as client:
        repository, siblings = publisher.repositories(client, cells[0][0].image)
        waiting = f"waiting for another run that publishes to {repository.name}"
        with store.lock(f"publish-{repository.name}", (session.project.progress, waiting)):
            return publish_jobs(publisher, publisher.jobs(cells), repository, siblings)


def publish_jobs(
    publisher: Publisher, jobs: Sequence[PublishJob], repository: RemoteRepository, siblings: Sequence[RemoteRepository]
) -> tuple[PublishedImage, ...]:
    """Publish the images in the steps 1 to 8; layers are mounted from `siblings`. Raises as `publish_images`."""
    first, store, progress = jobs[0], publisher.session.project.store, publisher.session.project.progress
    repository.writer.reach()
    repository.writer.require_writable()
    if expected := expected_tagged(jobs, store):
        _require_immutable(first, repository, expected)
    recover(repository, store, progress)
    reader = AttachmentReader(publisher.trust, progress)
    built = [_assemble(publisher, job, (repository, *siblings), reader) for job in jobs]
    descriptors = {assembled.lock.platform: assembled.descriptor for assembled in built}
    index = write_image_index(descriptors) if len(built) > 1 else None
    tagged = TaggedManifest(built[0].image.digest, MANIFEST_TYPE)
    if index:
        tagged = TaggedManifest(store.write(index), INDEX_TYPE)
    _require_immutable(first, repository, tagged.digest)
    totals = [_push_image(publisher, image, repository, reader) for image in built]
    if index:
        _push_index(publisher, index, repository, reader)
    if _require_immutable(first, repository, tagged.digest):
        repository.writer.put(store.read(tagged.digest), tagged.media_type, first.tags.immutable)
    tested = [
        _ensure_tested(publisher, image, repository, reader) if first.options.test else (None, "") for image in built
    ]
    moved = move_tags(repository, store, tagged, first.tags.mutable, progress) if first.options.test else {}
    return tuple(
        PublishedImage(
            cell=assembled.job.cell.id,
            repository=repository.name,
            digest=assembled.image.digest,
            record=layers.record_of(assembled.canonical),
            immutable_tag=first.tags.immutable,
            moved_tags=moved,
            pushed=pushed,
            smoke_report=report,
            smoke_source=source,
            index=tagged.digest if index else None,
        )
        for assembled, pushed, (report, source) in zip(built, totals, tested, strict=True)
    )


def _require_immutable(job: PublishJob, repository: RemoteRepository, digest: str) -> bool:
    """Return whether the immutable tag must be set. Raises PublishError if it names another image."""
    current = repository.resolve_tag(job.tags.immutable)
    if current not in (None, digest):
        raise PublishError(
            f"{repository.name}:{job.tags.immutable} names another image and is immutable",
            code="publish-tag-immutable",
            why=f"it is {current}, and this is {digest}; another codec or compiler gave other bytes",
            fix=f"`imagegen lock {job.lock.cell} --as-of TIME` gives the lock another cutoff, and so another tag",
        )
    return current is None


def _assemble(
    publisher: Publisher, job: PublishJob, repositories: Sequence[RemoteRepository], reader: AttachmentReader
) -> AssembledImage:
    """Assemble an image of the layers that are missing in the first repository; print what its licences restrict."""
    session, options, cell = publisher.session, job.options, job.cell
    store, progress = session.project.store, session.project.progress
    require_unchanged_copies(session.lock_files, cell, job.lock)
    lock = ensure_wheels(session, cell, job.lock, builder=options.builder)
    remote = find_remote_layers(lock, options.compression, repositories, job.tags, reader, store, progress)
    if options.compression == "zstd" and publisher.signer and publisher.trust.has_signers:
        by_image = {repository.reference.name.rpartition("/")[2]: repository for repository in repositories}
        shared = SharedRegistry(repositories[0], by_image, publisher.signer, publisher.trust)
        remote = share_layers(session, cell, lock, remote, shared)
    canonical = assemble_image(session.lock_files, cell, lock, audit=options.audit, remote=remote)
    known_licences = read_known_licences(lock, session.project.context_for(cell))
    for restriction in find_restrictions(lock, known_licences):
        progress.say(f"NOTE: restricted: {restriction}")
    image = canonical
    if options.compression == "gzip":
        image = compress_with_gzip(lock, canonical, store, progress, remote.recompressed)
    return AssembledImage(job, lock, image, canonical, known_licences)


def _push_image(
    publisher: Publisher, built: AssembledImage, repository: RemoteRepository, reader: AttachmentReader
) -> PushTotals:
    """Push an image under its digest, and attach its attestations."""
    session, image, lock = publisher.session, built.image, built.lock
    pushed = push(image, repository, session.project.store, session.project.progress)
    session.project.progress.say(f"{repository.name}@{image.digest}: {format_summary(pushed)}")
    scans = known_scans(lock, session.project.store)
    documents = attachments.documents(
        lock,
        image,
        built.canonical,
        scans,
        licences=built.known,
        audit=audit_report(lock, built.job.cell, session.project.store) if built.job.options.audit else None,
        numerics=numerics.document(session.project.store, image.digest),
        source=publisher.source,
        builder=provenance.find_builder(session.project.env),
    )
    _attach(publisher, repository, built.descriptor, documents, reader, scans)
    return pushed


def _push_index(publisher: Publisher, index: bytes, repository: RemoteRepository, reader: AttachmentReader) -> None:
    """Push an index, whose manifests are in the registry, under its digest, and sign it."""
    try:
        repository.writer.put(index, INDEX_TYPE)
    except PublishError as error:
        error.fix = error.fix or (
            "no tag was set; run the same command again; if the registry takes no image indexes, publish each platform "
            "under tags of its own, without --platform"
        )
        raise
    subject = Descriptor(INDEX_TYPE, digest_of(index), len(index))
    _attach(publisher, repository, subject, [], reader, {})


def _attach(
    publisher: Publisher,
    repository: RemoteRepository,
    subject: Descriptor,
    documents: Sequence[Document],
    reader: AttachmentReader,
    scans: Mapping[str, bytes],
) -> None:
    """Attach and sign the documents that the subject lacks, and the wheel scans that its layers refer to."""
    signer, attached = publisher.signer, reader.read(repository, subject.digest)
    new = attachments.missing(documents, attached.documents, signs=signer is not None)
    if any(document.kind is LAYERS for document in new):  # before the description names the scans
        repository.writer.attach_all(subject, FACTS, scans, FACT, {})
    if new or (signer and not attached.signers):
        annotations = attachments.source_annotations(publisher.source)
        attach(repository.writer, repository.reader, subject, new, signer, annotations, publisher.trust)


def _ensure_tested(
    publisher: Publisher, built: AssembledImage, repository: RemoteRepository, reader: AttachmentReader
) -> tuple[PassedSmokeReport, str]:
    """Return a passed smoke test of the image, and where it comes from; attach its report.

    Raises SmokeFailed where a check fails.
    """
    tested, source = _find_or_run_checks(publisher.session.project, built, repository, reader)
    _attach(publisher, repository, built.descriptor, [smoke_document(tested)], reader, {})
    return tested, source


def _find_or_run_checks(
    project: ProjectContext, built: AssembledImage, repository: RemoteRepository, reader: AttachmentReader
) -> tuple[PassedSmokeReport, str]:
    """Return a saved or attested report of passed checks, else run them."""
    job, digest = built.job, built.image.digest
    required = SmokeRequirement.of(digest, built.lock, job.cell.declarations, require_gpu=job.options.require_gpu)
    if saved := find_saved(project.store, required):
        project.progress.say("the smoke checks passed for this image before, and neither it nor they have changed")
        return saved, "this store"
    if attested := find_attested(reader.read(repository, digest).documents, required):
        project.progress.say(f"the smoke checks passed for this image: {attested[1]} attests it")
        return attested
    report = run_smoke_checks(project, built, repository, required)
    report.require_passed(fix=f"no tag has moved; the image is {repository.name}:{job.tags.immutable}")
    tested = passed_report(report, required, built.lock)
    save_passed_report(project.store, tested)
    return tested, "these checks"


def run_smoke_checks(
    project: ProjectContext, built: AssembledImage, repository: RemoteRepository, required: SmokeRequirement
) -> smoke.SmokeReport:
    """Run the smoke checks in an engine, which pulls the image from the registry if the store lacks a blob."""
    lock, image = built.lock, built.image
    tag = local_tags(lock)[1] + COMPRESSION_SUFFIXES[built.job.options.compression]
    settings = project.settings
    with Engine.connect(settings, project.progress) as engine:
        if all(project.store.has(blob.digest, blob.size) for blob in image.blobs):
            engine.load(project.store, image.digest, tag, project.progress)
        else:
            credentials = credentials_for(endpoint(repository.reference, settings).host, settings.env)
            login = (credentials.user, credentials.secret) if credentials else None
            engine.pull(engine_name(repository.reference, settings), image.digest, tag, login, project.progress)
        return smoke_checks.run(
            engine, image.digest, lock, built.job.cell.declarations, require_gpu=required.gpu, progress=project.progress
        )
