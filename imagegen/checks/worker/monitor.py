"""Sample the memory of a build's processes twice a second, and report progress."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

from .memory import process_tree
from .units import UnitCounter

_SAMPLE_EVERY = 0.5  # seconds between two looks
_REPORT_EVERY = 10.0  # seconds between two lines where no unit ended; engines cut a step's log off at 2 MiB


class ProcessMonitor:
    """Context manager. `peak` is the highest sum over all processes, `largest` the largest process; bytes."""

    def __init__(self, root: int, count: UnitCounter, emit: Callable[[dict[str, Any]], None]) -> None:
        self._root, self._count, self._emit = root, count, emit
        self._start = self._reported = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.now = self.peak = self.largest = 0
        self.process: str | None = None

    def __enter__(self) -> ProcessMonitor:
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
        """Report progress now."""
        self._reported = time.monotonic()
        self._emit(
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
        while not self._stop.wait(_SAMPLE_EVERY):
            self._sample()
            if time.monotonic() - self._reported > _REPORT_EVERY:
                self.progress()

    def _sample(self) -> None:
        own = os.getpid()
        processes = [process for process in process_tree(self._root) if process.pid != own]
        self.now = sum(process.memory for process in processes)
        self.peak = max(self.peak, self.now)
        heaviest = max(processes, key=lambda process: process.memory, default=None)
        if heaviest and heaviest.memory > self.largest:
            self.largest, self.process = heaviest.memory, heaviest.name
