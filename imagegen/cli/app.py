"""The command line's session: results go to stdout through `out` or `json`, messages to stderr through `progress`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from imagegen.app.session import Session
from imagegen.core.progress import Terminal

_UNCUT = 10_000  # columns: more than any row of a table has


class App(Session):
    """One run of the command line."""

    def __init__(self, env: Mapping[str, str], project: Path) -> None:
        self.console = _console(env, stderr=True)
        self.out = _console(env)
        super().__init__(env, project, Terminal(self.console))

    def json(self, value: Any) -> None:
        click.echo(json.dumps(value, indent=2, sort_keys=True))


def _console(env: Mapping[str, str], *, stderr: bool = False) -> Console:
    """Text is shown as it is written; colours as rich decides (NO_COLOR); lines are cut for terminals only."""
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in env:
        console.width = _UNCUT
    return console


pass_app = click.make_pass_decorator(App)
