"""imagegen verify: check that an image matches its lock."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from imagegen.app.verification import REBUILD, VerifyOptions, verify
from imagegen.cli.app import App, json_option, pass_app
from imagegen.compare.verdict import ImageVerdict
from imagegen.core.text import shown


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
    options = VerifyOptions(keys, cell, require_signature, not no_layers, again, unsigned)
    step = None  # all of them, then the rebuild
    for verdict in verify(app.session, reference, options):
        if not as_json:
            _print_steps(verdict, step)
        step = REBUILD
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


def _as_dict(verdict: ImageVerdict) -> dict[str, Any]:
    steps = [asdict(step) | {"outcome": step.outcome.value} for step in verdict.steps]
    platforms = {platform: _as_dict(image) for platform, image in verdict.platforms.items()}
    return {"digest": verdict.digest, "steps": steps} | ({"platforms": platforms} if platforms else {})
