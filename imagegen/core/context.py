"""What nearly every step takes: the store, the settings and the progress output of one invocation."""

from __future__ import annotations

from dataclasses import dataclass

from imagegen.core.config import Settings
from imagegen.core.progress import Progress
from imagegen.core.store import Store


@dataclass(frozen=True)
class Context:
    """Where a step reads and writes (`store`), from where it fetches (`settings`), and what it reports to."""

    store: Store
    settings: Settings
    progress: Progress
