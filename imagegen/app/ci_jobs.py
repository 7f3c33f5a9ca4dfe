"""The jobs that CI runs for locked cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imagegen.app.session import Session
from imagegen.spec.model import Cell


def ci_jobs(session: Session, pattern: str | None) -> dict[str, list[dict[str, Any]]]:
    """Return the job matrices `cells` (of all cells) and `gpu` (of cells whose checks need a GPU).

    Images without GPUs that differ only in the platform share a job with `platforms`, since their checks run under
    emulation. Runners with GPUs have the labels self-hosted, gpu, and the family of the cell's newest GPU. Without a
    pattern, the cells are the project's.
    """
    if pattern:
        chosen: Sequence[Cell] = session.matrix.select(pattern, single=True)
    else:
        chosen = session.lock_files.require_project_cells("imagegen matrix --github")
    locked = [cell for cell in chosen if not cell.environments and session.lock_files.path(cell).exists()]
    jobs = {}
    for cell in locked:
        group = [cell]
        if not cell.gpus:
            group = [other for other in session.matrix.on_platforms(cell, "all") if other in locked]
        jobs[group[0].id] = {
            "cell": group[0].id,
            "image": group[0].image,
            "gpu": bool(cell.gpus),
            "labels": ["self-hosted", "gpu", cell.gpus[-1].family] if cell.gpus else ["ubuntu-24.04"],
            "locks": "\n".join(f"locks/{part.id}.toml" for part in group),
            "platforms": ",".join(part.platform for part in group) if len(group) > 1 else "",
        }
    return {"cells": [*jobs.values()], "gpu": [job for job in jobs.values() if job["gpu"]]}
