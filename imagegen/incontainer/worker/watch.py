"""Watches what a build's processes take, twice a second, and tells how far it is."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

from .memory import family
from .units import Count

_EVERY = 0.5  # seconds between two looks
_TELL = 10.0  # seconds between two lines where no unit ended; engines cut a step's log off at 2 MiB


class Watch:
    """Between enter and exit. `peak` is of all processes together, `largest` of one; bytes."""

    def __init__(self, root: int, count: Count, tell: Callable[[dict[str, Any]], None]) -> None:
        self._root, self._count, self._tell = root, count, tell
        self._start = self._told = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.now = self.peak = self.largest = 0
        self.process: str | None = None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        # What looks may miss: the kernel keeps the peak of the largest descendant that was waited for, nameless.
        self.largest = max(self.largest, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def progress(self) -> None:
        """Say now how far it is."""
        self._told = time.monotonic()
        self._tell(
            {
                "event": "progress",
                "done": self._count.done,
                "total": self._count.total,
                "seconds": round(self.seconds, 1),
                "memory": self.now,
                "peak": self.peak,
                "largest": self.largest,
                "process": self.process,
            }
        )

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            self._look()
            if time.monotonic() - self._told > _TELL:
                self.progress()

    def _look(self) -> None:
        own = os.getpid()
        processes = [process for process in family(self._root) if process.pid != own]
        self.now = sum(process.memory for process in processes)
        self.peak = max(self.peak, self.now)
        heaviest = max(processes, key=lambda process: process.memory, default=None)
        if heaviest and heaviest.memory > self.largest:
            self.largest, self.process = heaviest.memory, heaviest.name
