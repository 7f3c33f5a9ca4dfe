"""Verify an image, and rebuild it from its lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.comparison import NO_SIGNER, known_names, verify_image
from imagegen.app.session import Session
from imagegen.compare import rebuild, references
from imagegen.compare.verdict import ImageVerdict, StepResult, StepStatus
from imagegen.compare.verify import VerificationOptions, VerifiedImage
from imagegen.core.errors import LockError, UsageError
from imagegen.core.net import Client
from imagegen.lock.file import dumps_attached
from imagegen.oci import registry
from imagegen.oci.registry.layout_repository import LayoutRepository
from imagegen.publish.tags import contradiction
from imagegen.trust import project as projects
from imagegen.trust.project import Key, Project

if TYPE_CHECKING:
    from imagegen.compare.image_bytes import ReadImage
    from imagegen.lock.model import Lock
    from imagegen.spec.model import Cell


REBUILD = "rebuild"  # name of the step


@dataclass(frozen=True)
class VerifyOptions:
    """Options of a verification. `cell` is the required one; `keys` are trusted instead of the keys in publish.yaml.

    `unsigned` also rebuilds a lock of an unknown author, if the project trusts no signer.
    """

    keys: tuple[Path, ...] = ()
    cell: str | None = None
    require_signature: bool = False
    layers: bool = True
    rebuild: bool = False
    unsigned: bool = False


def verify(session: Session, reference: str, options: VerifyOptions) -> Iterator[ImageVerdict]:
    """Yield the verdict on an image of a registry or a layout; then the verdict with the steps of rebuilding it.

    Raises UsageError, FetchError, and as `verify_image` and `rebuild_image`.
    """
    references.check_image(reference, known_names(session.matrices))
    settings, store = session.project.settings, session.project.store
    project = projects.load(session.project.directory)
    if options.keys:
        project = Project(keys=tuple(Key(str(key), key) for key in options.keys))
    with Client(settings) as client:
        source, requested = references.locate(reference, store, client, settings)
        is_layout = isinstance(source, LayoutRepository)
        contradicts = None if is_layout else partial(_contradiction, session, reference)
        verified = verify_image(
            reference,
            source,
            requested,
            client,
            session.project.progress,
            project,
            layers=options.layers,
            demands=VerificationOptions(options.cell, contradicts, options.require_signature),
            no_signer="none of the keys of --key" if options.keys else NO_SIGNER,
        )
        yield verified.verdict
        if options.rebuild or options.unsigned:
            has_signers = bool(project.keys or project.identities)
            refusals = {
                image.verdict.digest: _refusal(
                    session, verified.verdict, image, signers=has_signers, unsigned=options.unsigned
                )
                for image in [*verified.platforms.values()] or [verified]
            }
            yield _with_rebuild(session, verified, source, client, refusals)


def _with_rebuild(
    session: Session,
    verified: VerifiedImage,
    source: references.ImageLocation,
    client: Client,
    refusals: Mapping[str | None, str | None],
) -> ImageVerdict:
    """Return the verdict with a step about the rebuild of each image; `refusals` has why one is not permitted."""
    verdict, images = verified.verdict, verified.platforms.items()
    if images:
        return replace(
            verdict,
            platforms={platform: _with_rebuild(session, image, source, client, refusals) for platform, image in images},
        )
    why = refusals[verdict.digest]
    if why is None and verified.image and verified.lock:
        step = _rebuild(session, verified.image, verified.lock, source, client)
    else:
        step = StepResult(REBUILD, StepStatus.NOT_DONE, why or "there is no lock")
    return replace(verdict, steps=(*verdict.steps, step))


def _refusal(
    session: Session, verdict: ImageVerdict, verified: VerifiedImage, *, signers: bool, unsigned: bool
) -> str | None:
    """Return why the lock of an image may not be built, and how to permit it; None if it may be built.

    `verdict` covers all verified images, also of the index. With trusted signers (`signers`), one of them must attest
    the lock. Otherwise it must be the project's, or the user accepts the code of any author (`unsigned`).
    """
    if verdict.wrong or verified.lock is None:
        return f"only the lock of an image without a failed step is built ({verdict.wrong_names} failed)"
    if signers:
        return None if verified.signer else "no trusted signer attests the lock"
    cell = verified.lock.cell
    with suppress(UsageError, LockError):  # it is not a cell of this project, or its lock cannot be read
        locked = session.lock_files.find(session.matrix.select_one(cell))
        if locked and dumps_attached(locked) == dumps_attached(verified.lock):
            return None
    why = f"no trusted signer is named, and the lock is not this project's lock of {cell}"
    fix = "name its signer with --key or in publish.yaml, or run the code that the lock names with --rebuild-unsigned"
    return None if unsigned else f"{why}; {fix}"


def _contradiction(session: Session, reference: str, locks: Sequence[Lock]) -> str | None:
    """Return why publishing would not give the locks' images this reference; None if it would."""
    name, lock = registry.parse(reference), locks[0]
    if name.repository.rpartition("/")[2] != lock.image:
        fix = f"--cell {lock.cell} allows it"
        return f"publishing puts it into a repository named {lock.image}, not {name.repository} ({fix})"
    if name.tag is None or name.digest or lock.image not in session.matrix.defaults:
        return None
    (default,) = session.matrix.select(lock.image)
    return contradiction(
        name.tag, locks, [cell for cell in session.matrix.all_cells if cell.image == lock.image], default
    )


def _rebuild(
    session: Session, published: ReadImage, lock: Lock, source: references.ImageLocation, client: Client
) -> StepResult:
    cell: Cell | None
    try:
        cell = session.matrix.select_one(lock.cell)
        settings = session.project.settings_for(cell)
        if [environment.name for environment in cell.environments] != [
            environment.name for environment in lock.environments if environment.name
        ]:
            cell = None  # the environments of the matrix have changed, so its recipes may not fit the lock
    except UsageError:  # a cell of another project has the indexes of the environment
        cell, settings = None, session.project.settings
    gpus = tuple(session.matrix.gpus.values())
    if cell:
        with suppress(LockError):  # if the project's files have changed, a mirror may have the lock's
            require_unchanged_copies(session.lock_files, cell, lock)

    project = session.project
    with rebuild.rebuild_image(lock, project.store, settings, project.progress, cell, gpus) as (whole, image, store):
        comparison = rebuild.compare(published, source, client, whole, image, store)
    same = comparison.level in (rebuild.Level.MANIFEST, rebuild.Level.CONTENTS)
    return StepResult(
        REBUILD, StepStatus.PASS if same else StepStatus.FAIL, f"{comparison.sentence} ({comparison.digest})"
    )
