"""A session for use cases, without a command line and without a project."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.config import Settings
from imagegen.core.progress import Progress, Quiet
from imagegen.core.store import Store


def session_of(store: Store, settings: Settings, progress: Progress | None = None) -> Session:
    """Return a session with this store; the matrix has no GPUs, and indexes are those of the settings."""
    project = ProjectContext(settings.env, Path(), progress or Quiet())
    project.settings, project.store = settings, store
    project.settings_for = lambda _: settings  # type: ignore[method-assign]
    session = Session(project)
    session.matrices.matrix = SimpleNamespace(gpus={})  # type: ignore[assignment]
    session.lock_files.digest_of_inputs = lambda *_: None  # type: ignore[method-assign]
    return session
