"""imagegen nightly: update locks, then build, smoke-test and publish the images, cell by cell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from imagegen.app.comparison import comparison_facts
from imagegen.app.nightly import changes, sentences
from imagegen.app.nightly.propose import Proposal
from imagegen.app.nightly.run import CellOutcome
from imagegen.app.nightly.update import locked_groups, update_locks
from imagegen.app.publisher import Publisher, PublishOptions
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.options import all_option, builder_option, glob_of, platform_option
from imagegen.cli.output import print_report
from imagegen.cli.publish_command import key_option
from imagegen.cli.table import Styled, Table
from imagegen.core.errors import OptionConflictError
from imagegen.core.text import shown
from imagegen.lock.make.options import parse_cutoff
from imagegen.run.smoke.report import SmokeFailed

_COLOUR = {"failed": "red", "unchanged": "yellow"}


@click.command("nightly")
@click.argument("pattern", metavar="[GLOB]", required=False, shell_complete=complete_cells)
@all_option
@click.option("--to", metavar="REPO", help="Publish to repositories below this one (default: publish.yaml's).")
@click.option("--as-of", metavar="TIME", help="Ignore files uploaded later (RFC 3339; default: now).")
@click.option("--propose-only", is_flag=True, help="Write locks and locks/CHANGES.md; build and publish nothing.")
@click.option("--require-gpu", is_flag=True, help="Fail when a check is skipped for lack of a GPU.")
@click.option("--no-test", is_flag=True, help="Skip the smoke checks: mutable tags do not move.")
@key_option
@platform_option
@builder_option
@json_option("Print JSON: for each cell the updates, accepted and rejected, with reasons.")
@pass_app
def command(
    app: App,
    *,
    pattern: str | None,
    include_shipped: bool,
    to: str | None,
    as_of: str | None,
    propose_only: bool,
    require_gpu: bool,
    no_test: bool,
    key: Path | None,
    platform: str | None,
    builder: str | None,
    as_json: bool,
) -> None:
    """Update cells to the newest versions that matrix, rules and metadata accept; build, test and publish changed ones.

    Without GLOB, take the project's cells that have a lock: their image or their lock is in the project. A cell that
    fails keeps its lock and its tags; the others continue, and the exit code is 1. A cell without changes whose image
    is published is not built. An image with several environments is joined from the locks of its cells, after matching
    cells are updated.

    With --platform, the images of several platforms are updated together and get one image index; if one of them
    fails, none is published.
    """
    if propose_only and (to or require_gpu or no_test or key):
        raise OptionConflictError(
            "--propose-only does not publish, so options of publishing do not apply", fix="leave them out"
        )
    if no_test and require_gpu:
        raise OptionConflictError("--require-gpu and --no-test exclude each other", fix="leave out one of the two")
    time = parse_cutoff(as_of)
    groups = locked_groups(app.session, glob_of(pattern, include_shipped=include_shipped), platform)
    options = PublishOptions(test=not no_test, require_gpu=require_gpu, channel="nightly", builder=builder, key=key)
    publisher = None if propose_only else Publisher(app.session, to, options)
    outcomes = update_locks(app.session, groups, time, publisher)
    if as_json:
        app.json([_as_dict(app, outcome) for outcome in outcomes])
    else:
        _print(app, outcomes)
    failed = [outcome.cell for outcome in outcomes if outcome.result == "failed"]
    if failed:
        app.progress.say(f"{len(failed)} of {len(outcomes)} failed: {', '.join(failed)}")
    sys.exit(1 if failed else 0)


def _print(app: App, outcomes: tuple[CellOutcome, ...]) -> None:
    """Print the accepted and rejected updates as in locks/CHANGES.md, then a row for each cell."""
    for outcome in outcomes:
        if outcome.proposal and (outcome.proposal.changed or outcome.proposal.rejected):
            section = changes.section(outcome.proposal, _moved(app, outcome.proposal))
            click.echo(section.text if writes_to_terminal() else str(section))
    table = Table("cell", "result", "time", "")
    for outcome in outcomes:
        result = Styled(outcome.result, _COLOUR.get(outcome.result, "green"))
        table.add_row(outcome.cell, result, f"{outcome.seconds:.1f} s", shown(_remark(outcome)))
    table.print(app.out)
    for outcome in outcomes:
        if isinstance(outcome.error, SmokeFailed):
            print_report(app.console, outcome.error.report)
        if outcome.error:
            app.progress.say(f"{outcome.cell}: {outcome.error}")


def writes_to_terminal() -> bool:
    return sys.stdout.isatty()


def _remark(outcome: CellOutcome) -> str:
    if outcome.error:
        hint = f"; the lock that failed is {outcome.candidate}" if outcome.candidate else ""
        return outcome.error.what + hint
    return outcome.digest or ""


def _moved(app: App, proposal: Proposal) -> list[str]:
    return sentences.sentences(proposal, comparison_facts(app.session.matrices))


def _as_dict(app: App, outcome: CellOutcome) -> dict[str, Any]:
    proposal, error = outcome.proposal, outcome.error
    return {
        "cell": outcome.cell,
        "result": outcome.result,
        "seconds": round(outcome.seconds, 1),
        "digest": outcome.digest,
        "candidate": str(outcome.candidate) if outcome.candidate else None,
        "error": {"what": error.what, "why": error.why, "fix": error.fix} if error else None,
        "proposal": changes.as_dict(proposal, _moved(app, proposal)) if proposal else None,
    }
