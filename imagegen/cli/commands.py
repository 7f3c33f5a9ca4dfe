"""The list of commands, each imported when it runs, so that `--help` is fast."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import click

from imagegen import __version__
from imagegen.errors import UsageError
from imagegen.text import did_you_mean

# Command -> what `--help` says.
COMMANDS = {
    "list": "Images and cells: what each is for, whether it is locked and built.",
    "show": "What is in an image, and why each pin is what it is.",
    "why": "Whether a combination of versions, GPU, CUDA and Python can work; why not, and what does.",
    "matrix": "The grid: cells that work, cells that do not and why, cells of which it is not known.",
    "lock": "Resolve a cell and write its lock.",
    "harvest": "Read what package metadata states from the index into matrices/metadata.",
    "render": "The Dockerfile of a cell; with -o, everything that a plain build needs.",
    "build": "Build a locked cell into Docker, prove it by its smoke checks, and tag it.",
    "test": "Run the smoke checks of an image that is built.",
    "audit": "What would fail on the GPU, found in the files of a cell, an image, an environment or wheels.",
    "doctor": "Would an image run here, and what is wrong with a container.",
    "store": "Check, clean and measure the store.",
    "engine": "A private Docker engine from Debian packages.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:  # a shell completes
                return None
            fix = did_you_mean(cmd_name, COMMANDS) or f"known are {', '.join(COMMANDS)}"
            raise UsageError(f'there is no command "{cmd_name}"', fix=fix)
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


def run() -> object:
    """Run the command line. Returns an exit code or nothing; what click has against the arguments is a UsageError."""
    if "_IMAGEGEN_COMPLETE" in os.environ:  # a shell asks for completions
        cli.main(prog_name="imagegen")
    try:
        # Not cli.main: it takes every broken pipe, also one to a program of ours, for a reader who has gone.
        with cli.make_context("imagegen", sys.argv[1:]) as context:
            return cli.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return UsageError.exit_code
    except click.ClickException as error:
        place = getattr(error, "ctx", None)
        what = error.format_message().rstrip(".")
        path = place.command_path if place else "imagegen"
        raise UsageError(what[:1].lower() + what[1:], fix=f"`{path} --help` says what it takes") from error
