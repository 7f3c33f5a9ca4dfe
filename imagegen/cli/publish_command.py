"""imagegen publish: push images, attach documents, run the smoke checks, move tags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from imagegen.app.publish import PublishedImage, publish_images
from imagegen.app.publish_plan import plan_publish
from imagegen.app.publisher import KEY_VARIABLE, Publisher, PublishOptions
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.options import builder_option, platform_option
from imagegen.cli.output import failed_checks_printed
from imagegen.core.errors import OptionConflictError
from imagegen.core.types import Compression
from imagegen.publish.plan import lines
from imagegen.publish.tags import CHANNELS, COMPRESSIONS, Channel

key_option = click.option(
    "--key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"Sign with this private key, whose password is in COSIGN_PASSWORD; else {KEY_VARIABLE} can name one.",
)


@click.command("publish")
@click.argument("cell", shell_complete=complete_cells)
@click.option("--to", metavar="REPO", help="Publish to repositories below this one: ghcr.io/acme/rl.")
@click.option(
    "--dry-run", is_flag=True, help="Print what would be pushed, tagged and moved; needs no registry, no engine."
)
@click.option("--no-test", is_flag=True, help="Skip the smoke checks: only the immutable tag is set.")
@click.option("--require-gpu", is_flag=True, help="Fail when a check is skipped for lack of a GPU.")
@click.option("--no-audit", is_flag=True, help="Skip the audit before the image is built.")
@click.option(
    "--channel", type=click.Choice(CHANNELS), default="latest", show_default=True, help="The mutable tags to move."
)
@key_option
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="zstd",
    show_default=True,
    help="gzip is for registries and runtimes without zstd; its tags end in -gzip.",
)
@platform_option
@builder_option
@json_option("Print JSON: for each cell its digest, tags and what was moved.")
@pass_app
def command(
    app: App,
    *,
    cell: str,
    platform: str | None,
    to: str | None,
    dry_run: bool,
    no_test: bool,
    require_gpu: bool,
    no_audit: bool,
    channel: str,
    key: Path | None,
    compression: str,
    builder: str | None,
    as_json: bool,
) -> None:
    """Push CELL's image to a registry, attach its attestations, and tag it. CELL may be a glob.

    Mutable tags move when the smoke checks have passed; the immutable tag never moves. The last line on stdout is the
    digest.

    With --platform, the images of several platforms get one image index, which the tags name and whose digest is the
    last line. The mutable tags move when the checks of each image have passed.
    """
    if no_test and require_gpu:
        raise OptionConflictError("--require-gpu and --no-test exclude each other", fix="leave out one of the two")
    options = PublishOptions(
        test=not no_test,
        require_gpu=require_gpu,
        audit=not no_audit,
        channel=cast("Channel", channel),
        compression=cast("Compression", compression),
        builder=builder,
        key=key,
    )
    publisher = Publisher(app.session, to, options)
    groups = app.session.matrices.select_groups(cell, platform)
    chosen = [[(chosen_cell, app.session.lock_files.fresh(chosen_cell)) for chosen_cell in group] for group in groups]
    results: list[dict[str, Any]] = []
    for group in chosen:
        if dry_run:
            plans = plan_publish(publisher, group)
            results += [plan.as_dict() for plan in plans]
            if not as_json:
                for line in (line for plan in plans for line in lines(plan)):
                    app.out.print(line, soft_wrap=True)
        else:
            with failed_checks_printed(app.console):
                published = publish_images(publisher, group)
            _print_published(app, published)
            results += [image.as_dict() for image in published]
            if not as_json:
                click.echo(published[0].index or published[0].digest)
    if as_json:
        app.json(results)


def _print_published(app: App, published: Sequence[PublishedImage]) -> None:
    first = published[0]
    name, tagged = first.repository, first.index or first.digest
    for image in published:
        app.progress.say(f"{image.cell} is {name}" + (f"@{image.digest}" if first.index else f":{image.immutable_tag}"))
    if first.index:
        app.progress.say(f"{name}:{first.immutable_tag} -> {tagged}, the index of {len(published)} images")
    for tag, before in first.moved_tags.items():
        app.progress.say(f"{name}:{tag} -> {tagged}" + (f" (was {before})" if before else ""))
    if not first.smoke_report:
        app.progress.say("note: no smoke checks (--no-test), so no other tag has moved")
    elif not first.moved_tags:
        app.progress.say("its tags have not changed")
