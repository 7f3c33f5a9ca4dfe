"""imagegen verify: check that an image matches its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.comparison import NO_SIGNER, known_names, verify_image
from imagegen.cli.app import App, json_option, pass_app
from imagegen.compare import rebuild, references
from imagegen.compare.verdict import ImageVerdict, StepResult, StepStatus
from imagegen.compare.verify import VerificationOptions, VerifiedImage
from imagegen.core import registry
from imagegen.core.errors import LockError, UsageError
from imagegen.core.net import Client
from imagegen.core.registry.layout import LayoutRepository
from imagegen.core.text import shown
from imagegen.image.inventory.archive import piped
from imagegen.lock.file import dumps_attached
from imagegen.publish.tags import contradiction
from imagegen.trust import project as projects
from imagegen.trust.project import Key, Project

if TYPE_CHECKING:
    from imagegen.compare.image_bytes import ReadImage
    from imagegen.image.inventory.layers import Stream
    from imagegen.lock.model import Lock
    from imagegen.spec.model import Cell

_REBUILD = "rebuild"  # name of the step


@click.command("verify")
@click.argument("reference", metavar="REF")
@click.option(
    "--key",
    "keys",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Trusted public key, instead of the keys in publish.yaml.",
)
@click.option("--cell", metavar="ID", help="The required cell of the image, instead of the cell of its name.")
@click.option(
    "--require-signature", is_flag=True, help="Fail if no key and no identity is named to verify a signature with."
)
@click.option("--no-layers", is_flag=True, help="Skip the bytes of layers, so that no large blob is read.")
@click.option(
    "--rebuild",
    "again",
    is_flag=True,
    help="Then build the lock in an empty store, and compare; a trusted signer or this project must have the lock.",
)
@click.option(
    "--rebuild-unsigned",
    "unsigned",
    is_flag=True,
    help="As --rebuild, also for a lock of an unknown author, if the project trusts no signer. The lock chooses the "
    "hosts of requests and the code that runs in the sandbox: programs of its base, install scripts of "
    "Debian packages, build backends of sdists.",
)
@json_option()
@pass_app
def command(
    app: App,
    *,
    reference: str,
    keys: tuple[Path, ...],
    cell: str | None,
    require_signature: bool,
    no_layers: bool,
    again: bool,
    unsigned: bool,
    as_json: bool,
) -> int:
    """Verify an image of a registry, or of an OCI layout (oci:DIR), against its lock and attestations.

    Each artifact has a line; exit code 0 when none fails, 1 when one does, 2 when only the rebuild is not permitted.
    Only that registry is queried, and for a rebuild the hosts that the verified lock names. For an image index, the
    image of each platform is verified.
    """
    references.check_image(reference, partial(known_names, app.session.matrices))
    project = Project(keys=tuple(Key(str(key), key) for key in keys)) if keys else projects.load(app.project.directory)
    with Client(app.project.settings) as client:
        source, requested = references.locate(reference, app.project.store, client, app.project.settings)
        demands = VerificationOptions(
            cell,
            None if isinstance(source, LayoutRepository) else partial(_contradiction, app, reference),
            require_signature,
        )
        verified = verify_image(
            reference,
            source,
            requested,
            client,
            app.progress,
            project,
            layers=not no_layers,
            demands=demands,
            no_signer="none of the keys of --key" if keys else NO_SIGNER,
        )
        verdict = verified.verdict
        if not as_json:
            _print_steps(verdict)
        if again or unsigned:
            refused = partial(
                _refusal, app, verdict, signers=bool(project.keys or project.identities), unsigned=unsigned
            )
            verdict = _with_rebuild(app, verified, source, client, refused)
            if not as_json:
                _print_steps(verdict, _REBUILD)
    if as_json:
        app.json(_as_dict(verdict) | {"reference": reference, "good": verdict.good, "verdict": verdict.sentence})
    else:
        click.echo(shown(verdict.sentence))
    return 0 if verdict.good else 1 if verdict.wrong else 2


def _print_steps(verdict: ImageVerdict, name: str | None = None) -> None:
    """Print the steps of a verdict, or only steps of one name, and the steps of each image of an index."""
    for step in verdict.steps:
        if name in (None, step.name):
            click.echo(shown(f"{step.outcome.value:<11} {step.name}: {step.evidence}"))
    for platform, image in verdict.platforms.items():
        click.echo(shown(f"{platform}:"))
        _print_steps(image, name)


def _with_rebuild(
    app: App,
    verified: VerifiedImage,
    source: references.ImageLocation,
    client: Client,
    refused: Callable[[VerifiedImage], str | None],
) -> ImageVerdict:
    """Return the verdict with a step about the rebuild of each image; `refused` returns why it is not permitted."""
    verdict, images = verified.verdict, verified.platforms.items()
    if images:
        return replace(
            verdict,
            platforms={platform: _with_rebuild(app, image, source, client, refused) for platform, image in images},
        )
    why = refused(verified)
    if why is None and verified.image and verified.lock:
        step = _rebuild(app, verified.image, verified.lock, source, client)
    else:
        step = StepResult(_REBUILD, StepStatus.NOT_DONE, why or "there is no lock")
    return replace(verdict, steps=(*verdict.steps, step))


def _refusal(app: App, verdict: ImageVerdict, verified: VerifiedImage, *, signers: bool, unsigned: bool) -> str | None:
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
        locked = app.session.lock_files.find(app.session.matrix.select_one(cell))
        if locked and dumps_attached(locked) == dumps_attached(verified.lock):
            return None
    why = f"no trusted signer is named, and the lock is not this project's lock of {cell}"
    fix = "name its signer with --key or in publish.yaml, or run the code that the lock names with --rebuild-unsigned"
    return None if unsigned else f"{why}; {fix}"


def _contradiction(app: App, reference: str, locks: Sequence[Lock]) -> str | None:
    """Return why publishing would not give the locks' images this reference; None if it would."""
    name, lock = registry.parse(reference), locks[0]
    if name.repository.rpartition("/")[2] != lock.image:
        fix = f"--cell {lock.cell} allows it"
        return f"publishing puts it into a repository named {lock.image}, not {name.repository} ({fix})"
    if name.tag is None or name.digest or lock.image not in app.session.matrix.defaults:
        return None
    (default,) = app.session.matrix.select(lock.image)
    return contradiction(
        name.tag, locks, [cell for cell in app.session.matrix.all_cells if cell.image == lock.image], default
    )


def _rebuild(
    app: App, published: ReadImage, lock: Lock, source: references.ImageLocation, client: Client
) -> StepResult:
    cell: Cell | None
    try:
        cell = app.session.matrix.select_one(lock.cell)
        settings = app.project.settings_for(cell)
        if [environment.name for environment in cell.environments] != [
            environment.name for environment in lock.environments if environment.name
        ]:
            cell = None  # the environments of the matrix have changed, so its recipes may not fit the lock
    except UsageError:  # a cell of another project has the indexes of the environment
        cell, settings = None, app.project.settings
    gpus = tuple(app.session.matrix.gpus.values())
    if cell:
        with suppress(LockError):  # if the project's files have changed, a mirror may have the lock's
            require_unchanged_copies(app.session.lock_files, cell, lock)

    @contextmanager
    def open_published(digest: str, size: int) -> Iterator[Stream]:
        with piped(partial(source.stream, digest, size), client.close) as stream:
            yield stream

    with ExitStack() as stack:
        rebuilt_image = stack.enter_context(
            rebuild.rebuild_image(lock, app.project.store, settings, app.progress, cell, gpus)
        )
        whole, image, store = rebuilt_image
        comparison = rebuild.compare(published, whole, image, open_published, lambda digest, _: store.open(digest))
    same = comparison.level in (rebuild.Level.MANIFEST, rebuild.Level.CONTENTS)
    return StepResult(
        _REBUILD, StepStatus.PASS if same else StepStatus.FAIL, f"{comparison.sentence} ({comparison.digest})"
    )


def _as_dict(verdict: ImageVerdict) -> dict[str, Any]:
    steps = [asdict(step) | {"outcome": step.outcome.value} for step in verdict.steps]
    platforms = {platform: _as_dict(image) for platform, image in verdict.platforms.items()}
    return {"digest": verdict.digest, "steps": steps} | ({"platforms": platforms} if platforms else {})
