"""Render Dockerfiles, and write the files of a plain `docker buildx build` of a lock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from imagegen.app.build import scratch_lock
from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.lock_files import LockFiles
from imagegen.app.session import Session
from imagegen.core.config import Settings
from imagegen.core.errors import EngineError, PackagesGoneError
from imagegen.engine import Engine
from imagegen.image import dockerfile, folder
from imagegen.lock import local_tags
from imagegen.lock.model import Lock, LockedBuild
from imagegen.spec.model import Cell


class BuildFolder(NamedTuple):
    """The folder of a cell's plain build, and the command that builds it."""

    cell: str
    directory: Path
    command: str
    builds: tuple[LockedBuild, ...]


def render_cells(session: Session, pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the id and the Dockerfile of each selected cell."""
    for cell in session.matrix.select(pattern, single=True):
        lock = session.lock_files.fresh(cell)
        yield cell.id, dockerfile.render(lock, local_tags(lock)[0]).dockerfile


def write_folders(session: Session, pattern: str, output: Path, *, scratch_base: bool) -> Iterator[BuildFolder]:
    """Write and yield the folder of each selected cell below `output`, and docker-bake.json there."""
    targets: dict[str, dockerfile.Rendered] = {}
    for cell in session.matrix.select(pattern, single=True):
        lock, directory = session.lock_files.fresh(cell), output / cell.id
        try:
            targets[cell.id] = _write(session.lock_files, cell, lock, directory)
        except PackagesGoneError as error:
            scratch = scratch_lock(session, cell, lock, error, scratch_base=scratch_base)
            targets[cell.id] = _write(session.lock_files, cell, scratch, directory)
        folder.write_bake(output, targets)  # for each cell, because the next one may fail
        command = _command(session.project.settings, targets[cell.id].arguments)
        yield BuildFolder(cell.id, directory, command, lock.builds)


def _write(lock_files: LockFiles, cell: Cell, lock: Lock, directory: Path) -> dockerfile.Rendered:
    require_unchanged_copies(lock_files, cell, lock)
    rendered = dockerfile.render(lock, local_tags(lock)[0])
    folder.write(rendered, lock, cell.recipes, directory, lock_files.project.context_for(cell))
    return rendered


def _command(settings: Settings, arguments: str) -> str:
    try:
        with Engine.connect(settings) as engine:
            return engine.buildx_line(arguments)
    except EngineError:  # the build may be for another machine
        return f"docker buildx {arguments}"
