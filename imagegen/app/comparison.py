"""Compare and verify images of the project, with cells, locks and signers as operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

from imagegen.app.matrices import Matrices
from imagegen.app.session import Session
from imagegen.compare import image_bytes, numerics, references
from imagegen.compare.difference import ComparisonFacts, Difference, difference
from imagegen.compare.image_bytes import ReadImage, ReadIndex
from imagegen.compare.operands import DiffOperand
from imagegen.compare.references import ImageLocation, OperandSources
from imagegen.compare.verdict import ImageVerdict, StepResult, StepStatus
from imagegen.compare.verify import Attachments, VerificationOptions, VerifiedImage, verify_attachments, verify_index
from imagegen.compat import metadata
from imagegen.core.data import parse_json
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.image import layers
from imagegen.lock.model import Lock, LockedBuild
from imagegen.oci.documents import Platform
from imagegen.oci.registry import Repository
from imagegen.run import numerics as measured_numerics
from imagegen.run.numerics import Fingerprint, recall
from imagegen.spec.model import Cell
from imagegen.trust import project as projects
from imagegen.trust.attach import gather
from imagegen.trust.documents import LOCK, NUMERICS, Kind
from imagegen.trust.project import Project
from imagegen.trust.signers import Trust
from imagegen.wheels import wheelhouse
from imagegen.wheels.builds.store import work
from imagegen.wheels.throttle import BuildJob

NO_SIGNER = "no signer that the project names"


def compare_operands(
    session: Session, operands: tuple[str, str], platforms: tuple[Platform | None, Platform | None]
) -> tuple[Difference, numerics.Numerics | None]:
    """Return the difference of two cells, locks or images, and the difference of their numerical results, if any."""
    with Client(session.project.settings) as client:
        sources = operand_sources(session, client)
        before, after = (
            references.read(operand, sources, platform) for operand, platform in zip(operands, platforms, strict=True)
        )
        tables = difference(before, after, comparison_facts(session.matrices))
    store = session.project.store
    return tables, numerics.compare(_fingerprints(store, tables.before), _fingerprints(store, tables.after))


def operand_sources(session: Session, client: Client) -> OperandSources:
    """Return the places in which references are resolved."""

    def cell(word: str) -> str | None:
        cells = _selected(session.matrices, word)
        if len(cells) > 1:
            raise UsageError(
                f"{word} are several cells",
                code="usage-several-cells",
                fix=f"name one of them: {', '.join(candidate.id for candidate in cells)}",
            )
        return cells[0].id if cells else None

    def locked(name: str) -> tuple[Lock | None, Path]:
        selected = session.matrix.select_one(name)
        return session.lock_files.find(selected), session.lock_files.path(selected)

    def documents(source: ImageLocation, digest: str, kind: Kind) -> list[bytes]:
        """Return the attached documents of one kind; those that a trusted signer attests come first."""
        documents = read_attachments(source, digest, project).result.documents
        matching = [document for document in documents if document.document.kind is kind]
        return [
            attachment.document.content
            for attachment in sorted(matching, key=lambda attachment: attachment.signer is None)
        ]

    def attached(source: ImageLocation, digest: str) -> bytes | None:
        return next(iter(documents(source, digest, LOCK)), None)

    def fingerprints(source: ImageLocation, digest: str) -> tuple[Fingerprint, ...]:
        by_device: dict[str, Fingerprint] = {}
        for content in documents(source, digest, NUMERICS):
            with suppress(ValueError):  # `verify` reports it
                for device_fingerprint in measured_numerics.read_attached(parse_json(content), digest):
                    by_device.setdefault(device_fingerprint.device, device_fingerprint)
        return tuple(by_device.values())

    project = projects.load(session.project.directory)
    everywhere = (session.project.directory, session.project.settings, session.project.store, client)
    return OperandSources(*everywhere, cell, locked, partial(known_names, session.matrices), attached, fingerprints)


def known_names(matrices: Matrices) -> Iterator[str]:
    """Yield the names of images and cells; the matrix is read for the first one."""
    yield from matrices.matrix.defaults
    yield from (cell.id for cell in matrices.matrix.all_cells)


def verify_image(
    reference: str,
    source: ImageLocation,
    requested: str,
    client: Client,
    progress: Progress,
    project: Project,
    *,
    layers: bool = True,
    demands: VerificationOptions | None = None,
    no_signer: str = NO_SIGNER,
) -> VerifiedImage:
    """Verify the image under a tag or digest that `client` reads in `source`: its bytes, then its attachments.

    If it is an index, verify the image of each platform, then the index. Without `layers` the bytes of layers are not
    checked. `no_signer` is the subject of a verdict without a trusted signature. Raises UnavailableError, and
    NotFoundError if there is no image.
    """
    demands = demands or VerificationOptions()

    def verify(resolved: ReadImage | None, steps: list[StepResult], demands: VerificationOptions) -> VerifiedImage:
        if resolved is None:
            return VerifiedImage(ImageVerdict(reference, None, tuple(steps)), None, None)
        if layers:
            steps += image_bytes.layer_steps(resolved, source, client, progress)
        else:
            steps.append(StepResult("layers", StepStatus.UNCHECKED, "they were left out"))
        attached = read_attachments(source, resolved.digest, project, no_signer)
        lock, signer, attachment_steps = verify_attachments(resolved, attached, demands)
        return VerifiedImage(
            ImageVerdict(reference, resolved.digest, (*steps, *attachment_steps)), resolved, lock, signer
        )

    resolved, steps = image_bytes.read_image_or_index(source, requested, reference)
    if not isinstance(resolved, ReadIndex):
        return verify(resolved, steps, demands)
    images: dict[str, VerifiedImage] = {}
    for platform, manifest in resolved.images.items():
        image = image_bytes.read_indexed_image(source, manifest, reference, platform)
        images[platform] = verify(*image, VerificationOptions(signature=demands.signature))
    attached = read_attachments(source, resolved.digest, project, no_signer)
    steps += verify_index({platform: verified.lock for platform, verified in images.items()}, attached, demands)
    verdicts = {platform: result.verdict for platform, result in images.items()}
    return VerifiedImage(ImageVerdict(reference, resolved.digest, tuple(steps), verdicts), None, None, platforms=images)


def read_attachments(source: ImageLocation, digest: str, project: Project, no_signer: str = NO_SIGNER) -> Attachments:
    """Read and verify the attachments of the image with a digest."""
    trust = Trust(project)
    repository = cast("Repository", source)  # a layout answers as one
    gathered = gather(repository, digest, trust)
    return Attachments(repository.referrers(digest), repository.artifact, gathered, trust.has_signers, no_signer)


def _selected(matrices: Matrices, word: str) -> Sequence[Cell]:
    if set(word) & set(":/@") or not word:
        return ()
    try:
        cells = matrices.matrix.select(word)
    except UsageError:
        return ()
    return cells


def _fingerprints(store: Store, side: DiffOperand) -> tuple[Fingerprint, ...]:
    """Return the image's results of `imagegen test --numerics`, first from the store, then from its attachments."""
    digest = side.digest or (layers.built_digest(side.lock, store) if side.lock else None)
    stored = recall(store, digest) if digest else ()
    devices = {measured.device for measured in stored}
    return (*stored, *(fingerprint for fingerprint in side.fingerprints if fingerprint.device not in devices))


def comparison_facts(matrices: Matrices) -> ComparisonFacts:
    """Return the facts of the project's matrices and of this store about packages and builds."""

    def requires(name: str, version: str) -> Sequence[str] | None:
        package = metadata.load(matrices.project.matrix_directories, name)
        release = package.releases.get(version.partition("+")[0]) if package else None
        return release.requires if release else None

    def job(build: LockedBuild) -> BuildJob | None:
        cells = matrices.matrix.cells()
        recipe = next((cell.recipes[build.name] for cell in cells if build.name in cell.recipes), None)
        return work(build, recipe, matrices.project.store) if recipe else None

    return ComparisonFacts(requires, job, lambda build: wheelhouse.known(matrices.project.store, build.key) is not None)
