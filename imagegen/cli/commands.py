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
    "list": "Images and cells: what each is for, whether it is locked and built.",
    "show": "What is in an image, and why each pin is what it is.",
    "diff": "What one cell, lock or image has otherwise than another: packages, layers, bytes to pull.",
    "why": "Whether a combination of versions, GPU, CUDA and Python can work; why not, and what does.",
    "matrix": "The grid: cells that work, cells that do not and why, cells of which it is not known.",
    "lock": "Resolve a cell and write its lock.",
    "harvest": "Read what package metadata states from the index into matrices/metadata.",
    "render": "The Dockerfile of a cell; with -o, everything that a plain build needs.",
    "build": "Build a locked cell into Docker, prove it by its smoke checks, and tag it.",
    "test": "Run the smoke checks of an image that is built.",
    "publish": "Push images to a registry with all that is said of them, prove them, and move their tags.",
    "nightly": "Move what can move; build, prove and publish it; say why the rest stays.",
    "export": "Write an image's files for hosts without a container engine, with a program that runs them there.",
    "audit": "What would fail on the GPU, found in the files of a cell, an image, an environment or wheels.",
    "sbom": "The bill of materials of a locked image, for vulnerability scanners.",
    "verify": "Is an image what its lock says: bytes, lock, signature, SBOM, reports; with --rebuild, made again.",
    "wheels": "Wheels that no index serves: find or build one; list, push, pull and forget those that are kept.",
    "report": "The matrix and its locked images as static web pages.",
    "mirror": "Copy all that locks name to a directory or registry of your own, for builds from there alone.",
    "doctor": "Would an image run here, and what is wrong with a container.",
    "store": "Check, clean and measure the store.",
    "engine": "A private Docker engine from Debian packages.",
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
