"""imagegen init: an image of the project in the current directory."""

from __future__ import annotations

import click

from imagegen.app.build import BuildOptions
from imagegen.app.import_project import Selection, find_file, import_project
from imagegen.app.make_locks import lock_image
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.build_command import build_into_engine
from imagegen.cli.import_command import show
from imagegen.core.errors import OptionConflictError
from imagegen.lock.make.options import LockOptions


@click.command("init")
@click.option("--name", metavar="IMAGE", help="The image's name (default: the name of the directory).")
@click.option("--cuda", metavar="VALUE", default="", help="cpu, cu128 or the like (default: the file's).")
@click.option("--gpu", metavar="NAME", default="", help="H100, sm_90 or the like (default: the file's).")
@click.option("--build", is_flag=True, help="Also lock the image, build it, and run its smoke checks.")
@json_option()
@pass_app
def command(app: App, *, name: str | None, cuda: str, gpu: str, build: bool, as_json: bool) -> None:
    """Write matrices/ with an image of the project in this directory, or in the directory of --project.

    It is `imagegen import` of the first of these files: uv.lock, pylock.toml, requirements.txt, environment.yml,
    environment.yaml, pyproject.toml, Dockerfile. Comments in the entry explain its lines. A project that is a package
    itself is in the image.
    """
    if build and as_json:
        raise OptionConflictError("--json prints the entry, and --build builds it", fix="leave out one of the two")
    source, other_files = find_file(app.project.directory)
    if other_files:
        app.progress.say(f"{source.name} is read, but not {', '.join(other_files)}")
    imported = import_project(app.session, source, name, Selection(cuda=cuda, gpu=gpu))
    show(app, imported, as_json=as_json)
    if build:
        _build(
            App(app.project.env, app.project.directory), imported.cell.id
        )  # read the matrix again, with the new entry


def _build(app: App, cell_id: str) -> None:
    cell = app.session.matrix.select_one(cell_id, single=True)
    locked = lock_image(app.session, cell, LockOptions(), record=False)
    click.echo(build_into_engine(app, cell, locked.lock, BuildOptions()).digest)
