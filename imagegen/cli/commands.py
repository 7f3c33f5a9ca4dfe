"""The list of commands, and how a command is run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from imagegen import __version__
from imagegen.cli import stored_answers
from imagegen.cli.groups import LAST_COMMAND, LazyGroup
from imagegen.core.errors import MemoryLimitError, UsageError

# Command -> line in `--help`.
COMMANDS = {
    "list": "List images and cells with their purpose and state.",
    "show": "Show the packages of an image and the reason for each pin.",
    "diff": "Compare two cells, locks or images: packages, layers, bytes to pull.",
    "why": "Explain whether a combination of versions, GPU, CUDA and Python can work, and what does.",
    "matrix": "Show every cell with its state and the reason for it.",
    "init": "Write an image of the project in this directory, from its uv.lock, requirements or the like.",
    "import": "Write an image of the packages of a uv.lock, requirements.txt or the like.",
    "lock": "Resolve a cell and write its lock.",
    "render": "Print the Dockerfile of a cell; with -o, write all files of a plain build.",
    "build": "Build a locked cell into Docker, smoke-test it, and tag it.",
    "launch": "Print a specification that runs an image: Docker, Compose, Kubernetes, SkyPilot, Slurm.",
    "test": "Run the smoke checks of a built image.",
    "publish": "Push an image with its attestations, smoke-test it, and move its tags.",
    "nightly": "Update locks to the newest accepted versions; build, test and publish them.",
    "export": "Write an image as a squashfs file, for enroot and pyxis.",
    "audit": "Find faults of GPU code in the files of a cell, an image, an environment or wheels.",
    "sbom": "Print the SBOM of a locked image, for vulnerability scanners.",
    "verify": "Verify an image against its lock: bytes, signature, attestations; with --rebuild, rebuild it.",
    "wheels": "Find, build, list, push, pull and remove wheels that no index serves.",
    "report": "Write the matrix and its locked images as static web pages.",
    "mirror": "Copy all files that locks name to a directory or a registry.",
    "doctor": "Check this host or a container.",
    "store": "Check, clean and measure the store.",
}


@click.group(
    cls=LazyGroup,
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
    stored_answers.watch(app.watched_paths())
    # After the result. Only `lock` and `show` explain the warnings.
    ctx.call_on_close(lambda: app.session.judge.print_warnings(explain=ctx.invoked_subcommand in ("lock", "show")))


def run(command: click.Command = cli, name: str = "imagegen") -> object:
    """Run a command line. Returns an exit code or nothing. Raises UsageError for arguments that click rejects."""
    if "_IMAGEGEN_COMPLETE" in os.environ:  # a shell asks for completions
        command.main(prog_name=name)
    meta: dict[str, Any] = {}
    try:
        # Not cli.main, which ends silently after any broken pipe, also after one to a child process.
        with command.make_context(name, sys.argv[1:]) as context:
            meta = context.meta
            return command.invoke(context)
    except MemoryError as error:
        function, trace = "", error.__traceback__
        while trace:
            module = trace.tb_frame.f_globals["__name__"]
            function = f"{module}.{trace.tb_frame.f_code.co_qualname}" if module.startswith("imagegen.") else function
            trace = trace.tb_next
        raise MemoryLimitError(
            f"`{meta.get(LAST_COMMAND, name)}` needs more memory than there is",
            why=f"{function} could not allocate it",
            fix="allow more memory, or check the size of the input",
        ) from error
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return UsageError.exit_code
    except click.ClickException as error:
        failed = getattr(error, "ctx", None)
        message = error.format_message().rstrip(".")
        # an error about an option without its value has no context
        path = failed.command_path if failed else meta.get(LAST_COMMAND, name)
        fix = _before_command(error, path) or f"see `{path} --help`"
        raise UsageError(message[:1].lower() + message[1:], fix=fix) from error


def _before_command(error: click.ClickException, path: str) -> str | None:
    """Return the fix for a global option that was given after the command `path`; None for other errors."""
    name = getattr(error, "option_name", None)
    option = next((param for param in cli.params if name in param.opts), None)
    if option is None or not isinstance(error, click.NoSuchOption):
        return None
    value = "" if getattr(option, "is_flag", False) else " DIR"
    return f"imagegen {name}{value}{path.removeprefix('imagegen')} ..., since it is a global option"
