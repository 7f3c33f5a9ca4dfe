"""imagegen wheels: what no index serves."""

from __future__ import annotations

import click

from imagegen.cli.lazy import Lazy

# Command -> what `--help` says.
COMMANDS = {
    "find": "Where a wheel of a component could come from for a cell, with the reason why each fits or does not.",
    "list": "The wheels that are kept here, and what they are for.",
    "build": "Compile what a cell's lock wants compiled, as far as it is not there.",
    "push": "Give wheels to the team's wheelhouse in a registry.",
    "pull": "Take wheels from the team's wheelhouse in a registry.",
    "gc": "Let go of wheels that no lock needs and nobody used for 30 days, or of those that are named.",
}


@click.group("wheels", cls=Lazy, known=COMMANDS, module="imagegen.cli.wheels_{}")
def command() -> None:
    """Find, build, list, push, pull and remove wheels that no index serves."""
