"""The session of a command of tools/: imagegen's own, with its settings, store and messages."""

from __future__ import annotations

import os
from pathlib import Path

import click

from imagegen.cli.app import App

project_option = click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=".",
    help="The directory that holds your matrices/ and locks/ (default: here).",
)


def start_session(context: click.Context, project: Path) -> App:
    """Return the session of a project, which is also the object of the context. Its warnings follow the result."""
    context.obj = app = App(os.environ, project)
    context.call_on_close(lambda: app.session.judge.print_warnings(explain=False))
    return app
