"""The entry point: the list of commands, and what becomes of errors."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from pathlib import Path

import click

from imagegen import __version__
from imagegen.errors import ImagegenError

# Command -> what `--help` says. Modules are imported when their command runs, so that `--help` is fast.
COMMANDS = {
    "list": "Images and cells: what each is for, whether it is locked and built.",
    "show": "What is in an image, and why each pin is what it is.",
    "lock": "Resolve a cell and write its lock.",
    "render": "The Dockerfile of a cell; with -o, everything that a plain build needs.",
    "build": "Build a locked cell into Docker, prove it by its smoke checks, and tag it.",
    "test": "Run the smoke checks of an image that is built.",
    "store": "Check, clean and measure the store.",
    "engine": "A private Docker engine from Debian packages.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"imagegen.cli.{cmd_name}_command")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="imagegen")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")
@click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=".",
    help="The directory that holds your matrices/ and locks/ (default: here).",
)
@click.pass_context
def cli(ctx: click.Context, *, project: Path) -> None:
    """Reproducible container images for LLM reinforcement-learning training."""
    from imagegen.cli.app import App

    ctx.obj = App(os.environ, project)


def main() -> None:
    """Run, and turn errors into sentences and exit codes: 64 for usage, one code per class of error otherwise."""
    debug = "--debug" in sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack characters that a matrix uses
    # As an exit, so that containers, mounts and temporary files go: a cancelled CI job sends no interrupt.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(64)
    except ImagegenError as error:
        if debug:
            raise
        title = click.style(error.title, fg="red", bold=True)
        click.echo(f"{title}: {error}", err=True, color=False if os.environ.get("NO_COLOR") else None)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader has gone (`imagegen list | head`); Python would complain once more while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if debug:
            raise
        click.echo(
            f"internal error: {type(error).__name__}: {error}\n  fix: run again with --debug and report it", err=True
        )
        sys.exit(70)
    sys.exit(code if isinstance(code, int) else 0)
