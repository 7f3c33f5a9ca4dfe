"""The run of a command. Results go to stdout (`out`, `json`), messages to stderr (`progress`)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.data import shipped
from imagegen.core.errors import ImagegenError, UsageError
from imagegen.core.net import file_path, is_file
from imagegen.core.progress import Output, PlainOutput, Terminal

# Variables with which users request terminal output on a pipe. Source: rich's Console.
_FORMATTING = ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


class App:
    """One run of the command line, with its session and its outputs."""

    def __init__(self, env: Mapping[str, str], directory: Path) -> None:
        self.console = _output(env, stderr=True)
        self.out = _output(env)
        self.progress = Terminal(self.console)
        self.project = ProjectContext(env, directory, self.progress)
        self.session = Session(self.project)

    def watched_paths(self) -> list[Path] | None:
        """Return the paths that decide answers by their presence; None if there is no store."""
        try:
            settings = self.project.settings
        except UsageError:
            return None
        kinds = ("image", "smoke", "wheel")
        paths = [settings.store / "blobs" / "sha256", *(settings.store / "records" / kind for kind in kinds)]
        folders = (self.project.directory, shipped("locks").parent)
        paths += [folder / name for folder in folders for name in ("matrices", "wheels", "locks")]
        for location in settings.find_links:
            if is_file(location) or "://" not in location:
                directory = file_path(location) if is_file(location) else Path(location)
                paths.append(directory)
                with suppress(OSError):
                    paths += [path for path in directory.iterdir() if path.is_symlink()]  # a target may vanish
        return paths

    def json(self, value: Any) -> None:
        click.echo(json.dumps(value, indent=2, sort_keys=True))


def _output(env: Mapping[str, str], *, stderr: bool = False) -> Output:
    """Return an output without markup. rich decides on colours (NO_COLOR); only terminals wrap lines."""
    stream = sys.stderr if stderr else sys.stdout
    if not (stream and stream.isatty()) and not any(env.get(name) for name in _FORMATTING):
        return PlainOutput(stderr=stderr)
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in env:
        console.width = PlainOutput.width
    return console


pass_app = click.make_pass_decorator(App)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(text: str = "Print JSON.") -> Callable[[_Command], _Command]:
    """Return the option `--json`, the argument `as_json`; `text` is its help."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def complete_cells(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's signature
    """Return the images and cells whose names begin with `incomplete`; none after an error, which a shell cannot show.

    Cells are listed only after the full name of an image, because there are many.
    """
    try:
        matrix = App(os.environ, Path(ctx.find_root().params.get("project") or ".")).session.matrix
    except ImagegenError:
        return []
    images = [CompletionItem(name, help=matrix.select(name)[0].description) for name in matrix.defaults]
    cells = [CompletionItem(cell.id, help=cell.purpose) for cell in matrix.all_cells]
    matches = [image for image in images if image.value.startswith(incomplete)]
    if matches and not any(incomplete.startswith(image.value) for image in images):
        return matches
    return matches + [cell for cell in cells if cell.value.startswith(incomplete)]
