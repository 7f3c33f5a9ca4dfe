"""Compare and verify images of the project: cells, locks and signers as operands, facts about builds and packages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

from imagegen.app.session import Session
from imagegen.core.data import parse_json
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.registry import Repository
from imagegen.plan.lock.model import Lock, LockedBuild
from imagegen.plan.matrix import metadata
from imagegen.plan.matrix.model import Cell
from imagegen.run import numerics
from imagegen.run.numerics import Fingerprint
from imagegen.supply.compare import contents
from imagegen.supply.compare.contents import ImageVerdict, ReadImage, ReadIndex, StepResult, StepStatus
from imagegen.supply.compare.difference import ComparisonFacts
from imagegen.supply.compare.operands import ImageLocation, SideSources
from imagegen.supply.compare.verify import (
    Attachments,
    VerificationOptions,
    Verified,
    verify_attachments,
    verify_index,
)
from imagegen.supply.trust import project as projects
from imagegen.supply.trust.attach import gather
from imagegen.supply.trust.documents import LOCK, NUMERICS, Kind
from imagegen.supply.trust.keys import Trust
from imagegen.supply.trust.project import Project
from imagegen.wheels import wheelhouse
from imagegen.wheels.builds import environment
from imagegen.wheels.throttle import BuildJob


def comparison_facts(session: Session) -> ComparisonFacts:
    """Return what the project's matrices and this store say about packages and builds."""

    def requires(name: str, version: str) -> Sequence[str] | None:
        package = metadata.load(session.matrix_directories, name)
        release = package.releases.get(version.partition("+")[0]) if package else None
        return release.requires if release else None

    def job(build: LockedBuild) -> BuildJob | None:
        cells = session.matrix.cells()
        recipe = next((cell.recipes[build.name] for cell in cells if build.name in cell.recipes), None)
        return environment.work(build, recipe, session.store) if recipe else None

    return ComparisonFacts(requires, job, lambda build: wheelhouse.known(session.store, build.key) is not None)


# Shared by the commands that compare: the project's cells, locks, costs and trusted signers.

NO_SIGNER = "no signer that the project names"


def side_sources(session: Session, client: Client) -> SideSources:
    """Return the places in which references are resolved."""

    def cell(word: str) -> str | None:
        found = _selected(session, word)
        if len(found) > 1:
            raise UsageError(
                f"{word} are several cells",
                code="usage-several-cells",
                fix=f"name one of them: {', '.join(each.id for each in found)}",
            )
        return found[0].id if found else None

    def locked(name: str) -> tuple[Lock | None, Path]:
        found = session.matrix.select_one(name)
        return session.find_lock(found), session.lock_path(found)

    def documents(source: ImageLocation, digest: str, kind: Kind) -> list[bytes]:
        """Return the attached documents of one kind; those that a trusted signer attests come first."""
        documents = read_attachments(source, digest, project).result.documents
        found = [document for document in documents if document.document.kind is kind]
        return [each.document.content for each in sorted(found, key=lambda each: each.signer is None)]

    def attached(source: ImageLocation, digest: str) -> bytes | None:
        return next(iter(documents(source, digest, LOCK)), None)

    def fingerprints(source: ImageLocation, digest: str) -> tuple[Fingerprint, ...]:
        found: dict[str, Fingerprint] = {}
        for content in documents(source, digest, NUMERICS):
            with suppress(ValueError):  # `verify` reports it
                for each in numerics.attached(parse_json(content), digest):
                    found.setdefault(each.device, each)
        return tuple(found.values())

    project = projects.load(session.project)
    everywhere = (session.project, session.settings, session.store, client)
    return SideSources(*everywhere, cell, locked, partial(known_names, session), attached, fingerprints)


def known_names(session: Session) -> list[str]:
    """Return the names of images and cells."""
    return [*session.matrix.defaults, *(cell.id for cell in session.matrix.all_cells)]


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
) -> Verified:
    """Verify the image under a tag or digest that `client` reads in `source`: its bytes, then its attachments.

    Of an index, verify the image of each platform, then that the index is one of these. Without `layers` their bytes
    are not checked. `no_signer` is the subject of a verdict without a trusted signature. Raises UnavailableError, and
    NotFoundError where there is no image.
    """
    demands = demands or VerificationOptions()

    def verify(found: ReadImage | None, steps: list[StepResult], demands: VerificationOptions) -> Verified:
        if found is None:
            return Verified(ImageVerdict(reference, None, tuple(steps)), None, None)
        if layers:
            steps += contents.layer_steps(found, source, client, progress)
        else:
            steps.append(StepResult("layers", StepStatus.UNCHECKED, "they were left out"))
        attached = read_attachments(source, found.digest, project, no_signer)
        lock, signer, more = verify_attachments(found, attached, demands)
        return Verified(ImageVerdict(reference, found.digest, (*steps, *more)), found, lock, signer)

    found, steps = contents.found_at(source, requested, reference)
    if not isinstance(found, ReadIndex):
        return verify(found, steps, demands)
    images: dict[str, Verified] = {}
    for platform, manifest in found.images.items():
        image = contents.image_at(source, manifest, reference, platform)
        images[platform] = verify(*image, VerificationOptions(signature=demands.signature))
    attached = read_attachments(source, found.digest, project, no_signer)
    steps += verify_index({platform: each.lock for platform, each in images.items()}, attached, demands)
    verdicts = {platform: each.verdict for platform, each in images.items()}
    return Verified(ImageVerdict(reference, found.digest, tuple(steps), verdicts), None, None, platforms=images)


def read_attachments(source: ImageLocation, digest: str, project: Project, no_signer: str = NO_SIGNER) -> Attachments:
    """Read and verify the attachments of the image with a digest."""
    trust = Trust(project)
    repository = cast("Repository", source)  # a layout answers as one
    there = gather(repository, digest, trust)
    return Attachments(repository.referrers(digest), repository.artifact, there, trust.has_signers, no_signer)


def _selected(session: Session, word: str) -> Sequence[Cell]:
    if set(word) & set(":/@") or not word:
        return ()
    try:
        found = session.matrix.select(word)
    except UsageError:
        return ()
    return found
