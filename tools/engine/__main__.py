"""Start or stop the private Docker engine."""

from __future__ import annotations

import os
import shlex

import click

from imagegen.cli import main
from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import PlainOutput, Terminal
from imagegen.engine import Engine
from tools.engine import private


@click.group("engine")
@click.pass_context
def command(context: click.Context) -> None:
    """A private Docker engine from Debian packages, for machines without a usable engine."""
    context.obj = Settings.from_environment(os.environ), Terminal(PlainOutput(stderr=True))


@command.command()
@click.option("--if-needed", is_flag=True, help="Do nothing if a usable engine runs already.")
@click.pass_context
def up(context: click.Context, *, if_needed: bool) -> None:
    """Start the engine unless it runs, and print shell commands that select it: `eval "$(python -m tools.engine up)"`.

    They set `engine_started` if the engine did not run before.
    """
    settings, progress = context.obj
    if if_needed:
        try:
            Engine.connect(settings, progress).close()
        except EngineError as error:
            progress.say(f"no usable engine ({error.why}): starting a private one")
        else:
            return
    is_running = private.running(settings) is not None
    engine = private.up(settings, progress)
    for name, value in engine.environment({"PATH": "$PATH"}).items():
        quoted = shlex.quote(value.removesuffix(":$PATH")) + ('":$PATH"' if name == "PATH" else "")
        click.echo(f"export {name}={quoted}")
    if not is_running:
        click.echo("engine_started=yes")


@command.command()
@click.pass_context
def down(context: click.Context) -> None:
    """Stop the engine, remove its images, and undo its changes of the machine."""
    private.down(*context.obj)


if __name__ == "__main__":
    main(command, "python -m tools.engine")
