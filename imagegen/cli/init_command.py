"""imagegen init: an image of the project in the current directory."""

from __future__ import annotations

import click

from imagegen.app.import_project import Selection, find_file, import_project
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.import_command import show


@click.command("init")
@click.option("--name", metavar="IMAGE", help="The image's name (default: that of the directory).")
@json_option()
@pass_app
def command(app: App, *, name: str | None, as_json: bool) -> None:
    """Write matrices/ with an image of the project in this directory, or in that of --project.

    It is `imagegen import` of the first of these files: uv.lock, pylock.toml, requirements.txt, environment.yml,
    environment.yaml, pyproject.toml. Comments in the entry explain its lines.
    """
    source, others = find_file(app.project)
    if others:
        app.progress.say(f"{source.name} is read, and not {', '.join(others)}")
    show(app, import_project(app, source, name, Selection()), as_json=as_json)
