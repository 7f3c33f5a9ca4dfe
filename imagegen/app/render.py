"""Write the files of a plain `docker buildx build` of a lock."""

from __future__ import annotations

from pathlib import Path

from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.session import Session
from imagegen.core.errors import EngineError
from imagegen.engine import Engine
from imagegen.image import dockerfile as recipe
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell


def write_build(session: Session, cell: Cell, directory: Path, lock: Lock) -> recipe.Rendered:
    require_unchanged_copies(session.lock_files, cell, lock)
    rendered = recipe.render(lock, local_tags(lock)[0])
    recipe.write(rendered, lock, cell.recipes, directory, session.project.context_for(cell))
    return rendered


def buildx_line(session: Session, arguments: str) -> str:
    try:
        with Engine.connect(session.project.settings) as engine:
            return engine.buildx_line(arguments)
    except EngineError:  # the build may be for another machine
        return f"docker buildx {arguments}"
