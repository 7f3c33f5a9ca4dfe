"""Run the smoke checks of a built image."""

from __future__ import annotations

from collections.abc import Collection

from imagegen.app.project import ProjectContext
from imagegen.core.errors import EngineError
from imagegen.engine import Engine
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.run import smoke
from imagegen.spec.model import Cell


def run_checks(
    project: ProjectContext, cell: Cell, lock: Lock, names: Collection[str], *, require_gpu: bool
) -> tuple[str, smoke.SmokeReport]:
    """Run the checks in `names`, or all default checks. Returns the image's digest and the report."""
    tag = local_tags(lock)[1]
    with Engine.connect(project.settings, project.progress) as engine:
        image = engine.image_digest(tag)
        if image is None:
            raise EngineError(f"{tag} is not in Docker", code="engine-no-image", fix=f"`imagegen build {cell.id}`")
        return image, smoke.run(
            engine, tag, lock, cell.declarations, require_gpu=require_gpu, progress=project.progress, only=names
        )
