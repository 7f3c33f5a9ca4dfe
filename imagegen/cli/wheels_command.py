"""imagegen wheels: find, build, list, push, pull and remove wheels that no index has."""

from __future__ import annotations

import click

from imagegen.cli.groups import CommandGroup
from imagegen.cli.wheels_build import build_wheels
from imagegen.cli.wheels_find import find_wheels
from imagegen.cli.wheels_gc import remove_wheels
from imagegen.cli.wheels_list import list_wheels
from imagegen.cli.wheels_share import pull_wheels, push_wheels


@click.group("wheels", cls=CommandGroup)
def command() -> None:
    """Find, build, list, push, pull and remove wheels that no index has."""


for subcommand in (find_wheels, list_wheels, build_wheels, push_wheels, pull_wheels, remove_wheels):
    command.add_command(subcommand)
