"""imagegen wheels: what no index serves."""

from __future__ import annotations

import click

from imagegen.cli.lazy import Lazy

# Command -> what `--help` says.
COMMANDS = {
    "find": "Where a wheel of a component could come from for a cell, with the reason why each fits or does not.",
    "list": "The wheels that are kept here, and what they are for.",
    "build": "Compile the wheels that a cell's lock needs and the wheelhouse lacks.",
    "push": "Push wheels to the team's wheelhouse in a registry.",
    "pull": "Pull wheels from the team's wheelhouse in a registry.",
    "gc": "Remove wheels that no lock needs and that were not used for 30 days, or the named ones.",
}


@click.group("wheels", cls=Lazy, known=COMMANDS, module="imagegen.cli.wheels_{}")
def command() -> None:
    """Find, build, list, push, pull and remove wheels that no index serves."""
