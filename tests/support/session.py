"""A session for use cases, without a command line and without a project."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from imagegen.app.session import Session
from imagegen.core.compiled import ResultCache
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Progress, Quiet
from imagegen.core.store import Store


def session_of(store: Store, settings: Settings, progress: Progress | None = None) -> Session:
    """Return a session with this store; the matrix has no GPUs, and indexes are those of the settings."""
    found = SimpleNamespace(
        env=settings.env,
        store=store,
        settings=settings,
        progress=progress or Quiet(),
        settings_for=lambda _: settings,
        context_for=lambda _: Context(store, settings, progress or Quiet()),
        matrix=SimpleNamespace(gpus={}),
        compiled=ResultCache(settings.store.parent / "compiled"),
        digest_of_inputs=lambda *_: None,
    )
    return cast("Session", found)
