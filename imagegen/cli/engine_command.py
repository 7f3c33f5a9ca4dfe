"""imagegen engine: the private Docker engine."""

from __future__ import annotations

import click

from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.commands import CommandGroup
from imagegen.core.errors import EngineError
from imagegen.run import embedded_engine
from imagegen.run.engine import Engine


@click.group("engine", cls=CommandGroup)
def command() -> None:
    """A private Docker engine from Debian packages, for machines that have none."""


@command.command()
@click.option("--if-needed", is_flag=True, help="Do nothing where a usable engine runs already.")
@json_option("Print JSON; docker_host is null where another engine is usable.")
@pass_app
def up(app: App, *, if_needed: bool, as_json: bool) -> None:
    """Start the private engine, unless it runs already, and print its DOCKER_HOST."""
    host = _up(app, if_needed=if_needed)
    if as_json:
        app.json({"docker_host": host})
    elif host:
        click.echo(host)


def _up(app: App, *, if_needed: bool) -> str | None:
    if if_needed:
        try:
            Engine.connect(app.settings, app.progress).close()
        except EngineError as error:
            app.progress.say(f"no engine of yours will do ({error.why}), so imagegen brings up one of its own")
        else:
            return None
    return embedded_engine.up(app.settings, app.progress).docker_host


@command.command()
@pass_app
def down(app: App) -> None:
    """Stop the private engine, remove its images and restore what it changed."""
    embedded_engine.down(app.settings, app.progress)
