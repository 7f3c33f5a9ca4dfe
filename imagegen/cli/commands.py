"""The list of commands, and how one is run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from imagegen import __version__
from imagegen.cli.lazy import Lazy
from imagegen.core.errors import UsageError

# Command -> what `--help` says.
COMMANDS = {
    "list": "List images and cells with their purpose and state.",
    "show": "Show the packages of an image and the reason for each pin.",
    "diff": "Compare two cells, locks or images: packages, layers, bytes to pull.",
    "why": "Explain whether a combination of versions, GPU, CUDA and Python can work, and what does.",
    "matrix": "Show every cell with its state and the reason for it.",
    "lock": "Resolve a cell and write its lock.",
    "harvest": "Update matrices/metadata from the package index.",
    "render": "Print the Dockerfile of a cell; with -o, write all files of a plain build.",
    "build": "Build a locked cell into Docker, smoke-test it, and tag it.",
    "test": "Run the smoke checks of a built image.",
    "publish": "Push an image with its attestations, smoke-test it, and move its tags.",
    "nightly": "Update locks to the newest accepted versions; build, test and publish them.",
    "export": "Write an image as files for hosts without a container engine.",
    "audit": "Find what would fail on the GPU in the files of a cell, an image, an environment or wheels.",
    "sbom": "Print the SBOM of a locked image, for vulnerability scanners.",
    "verify": "Verify an image against its lock: bytes, signature, attestations; with --rebuild, rebuild it.",
    "wheels": "Find, build, list, push, pull and remove wheels that no index serves.",
    "report": "Write the matrix and its locked images as static web pages.",
    "mirror": "Copy all files that locks name to a directory or a registry.",
    "doctor": "Check this host or a container.",
    "store": "Check, clean and measure the store.",
    "engine": "Start and stop a private Docker engine from Debian packages.",
}


@click.group(
    cls=Lazy,
    known=COMMANDS,
    module="imagegen.cli.{}_command",
    context_settings={"help_option_names": ["-h", "--help"]},
)
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

    app = ctx.obj = App(os.environ, project)
    # After the result. `show` explains a lock; `lock` comes before all other commands on it.
    ctx.call_on_close(lambda: app.print_warnings(explain=ctx.invoked_subcommand in ("lock", "show")))


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
        fix = _before_command(error, path) or f"`{path} --help` says what it takes"
        raise UsageError(what[:1].lower() + what[1:], fix=fix) from error


def _before_command(error: click.ClickException, path: str) -> str | None:
    """Return how to write an option of imagegen itself that was given after the command `path`; None for other
    errors.
    """
    name = getattr(error, "option_name", None)
    own = next((each for each in cli.params if name in each.opts), None)
    if own is None or not isinstance(error, click.NoSuchOption):
        return None
    value = "" if getattr(own, "is_flag", False) else " DIR"
    return f"imagegen {name}{value}{path.removeprefix('imagegen')} ...: it comes before the command"
