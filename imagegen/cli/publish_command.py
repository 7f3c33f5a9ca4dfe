"""imagegen publish: push images, attach documents, run the smoke checks, move tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from imagegen.app.publish import KEY_VARIABLE, PublishedImage, Publisher, PublishOptions, plan_publish, publish_image
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.build_command import builder_option
from imagegen.cli.report_command import print_report
from imagegen.core.errors import OptionConflictError
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.run.smoke import SmokeFailed
from imagegen.supply.publish.plan import lines
from imagegen.supply.publish.tags import CHANNELS, COMPRESSIONS, Channel, Compression

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
@builder_option
@json_option("Print JSON: for each cell its digest, tags and what was moved.")
@pass_app
def command(
    app: App,
    *,
    cell: str,
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
    publisher = Publisher(app, to, options)
    chosen = [(each, app.fresh_lock(each)) for each in app.matrix.select(cell)]
    results: list[dict[str, Any]] = []
    for each, lock in chosen:
        if dry_run:
            plan = plan_publish(publisher, each, lock)
            results.append(plan.as_dict())
            if not as_json:
                for line in lines(plan):
                    app.out.print(line, soft_wrap=True)
        else:
            published = _publish(app, publisher, each, lock)
            results.append(published.as_dict())
            if not as_json:
                click.echo(published.digest)
    if as_json:
        app.json(results)


def _publish(app: App, publisher: Publisher, cell: Cell, lock: Lock) -> PublishedImage:
    try:
        published = publish_image(publisher, cell, lock)
    except SmokeFailed as error:
        print_report(app.console, error.report)
        raise
    name = published.repository
    app.progress.say(f"{cell.id} is {name}:{published.immutable_tag}")
    for tag, before in published.moved_tags.items():
        app.progress.say(f"{name}:{tag} -> {published.digest}" + (f" (was {before})" if before else ""))
    if not published.smoke_report:
        app.progress.say("note: no smoke checks (--no-test), so no other tag has moved")
    elif not published.moved_tags:
        app.progress.say("all its tags were already there")
    return published
