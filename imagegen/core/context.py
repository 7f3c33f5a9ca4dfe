"""The store, the settings and the progress output of one invocation, which nearly every step takes."""

from __future__ import annotations

from imagegen.core.config import Settings
from imagegen.core.deferred import dataclass
from imagegen.core.progress import Progress
from imagegen.core.store import Store


@dataclass(frozen=True)
class Context:
    """The store that steps read and write, the settings with mirrors and indexes, and the progress output."""

    store: Store
    settings: Settings
    progress: Progress
