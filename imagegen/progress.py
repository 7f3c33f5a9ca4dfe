"""What long work says while it runs: bars on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from imagegen.text import shown

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Meter(Protocol):
    """Counts bytes towards a total, between enter and exit."""

    def __enter__(self) -> Meter: ...
    def __exit__(self, *exc: object) -> None: ...
    def advance(self, amount: int) -> None:
        """`amount` bytes more; negative when some have to be done again."""


class Progress(Protocol):
    """Thread-safe."""

    def say(self, text: str) -> None:
        """One line, now."""

    def meter(self, label: str, total: int) -> Meter:
        """A context manager that counts bytes towards `total`."""


class Quiet:
    """Says nothing: for tests and for callers that print their own."""

    def say(self, text: str) -> None:
        pass

    def meter(self, label: str, total: int) -> Meter:  # noqa: ARG002 - the protocol's signature
        return _Silent()


class _Silent:
    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass


class Terminal:
    """Bars through rich on a terminal; on a pipe, a line when a meter starts and one when it is done.

    All bars share one display, since several downloads run at once and a terminal has one bottom.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._display: RichProgress | None = None
        self._bars = 0

    def say(self, text: str) -> None:
        self.console.print(shown(text), highlight=False, markup=False, soft_wrap=True)

    def meter(self, label: str, total: int) -> Meter:
        if self.console.is_terminal:
            return _Bar(self, label, total)
        return _Lines(self, label, total)

    def add(self, label: str, total: int) -> tuple[RichProgress, TaskID]:
        """A bar on the display, which appears with the first bar."""
        from rich import progress  # late: an unchanged build shows no bar

        with self._lock:
            if self._display is None:
                self._display = progress.Progress(
                    progress.TextColumn("{task.description}"),
                    progress.BarColumn(),
                    progress.DownloadColumn(),
                    progress.TransferSpeedColumn(),
                    console=self.console,
                    transient=True,
                )
                self._display.start()
            self._bars += 1
            return self._display, self._display.add_task(label, total=total)

    def remove(self, task: TaskID) -> None:
        """Take the bar away; the display goes with the last one."""
        with self._lock:
            if self._display is None:
                return
            self._display.remove_task(task)
            self._bars -= 1
            if not self._bars:
                self._display.stop()
                self._display = None


class _Bar:
    def __init__(self, terminal: Terminal, label: str, total: int) -> None:
        self._terminal, self._label, self._total = terminal, label, total

    def __enter__(self) -> _Bar:
        self._display, self._task = self._terminal.add(self._label, self._total)
        return self

    def __exit__(self, *exc: object) -> None:
        self._terminal.remove(self._task)

    def advance(self, amount: int) -> None:
        self._display.advance(self._task, amount)


class _Lines:
    def __init__(self, progress: Progress, label: str, total: int) -> None:
        self._progress, self._label, self._total = progress, label, total

    def __enter__(self) -> _Lines:
        self._start = time.monotonic()
        self._progress.say(f"{self._label}: {human(self._total)}")
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is None:
            self._progress.say(f"{self._label}: done in {time.monotonic() - self._start:.1f} s")

    def advance(self, amount: int) -> None:
        pass


@contextmanager
def timed(progress: Progress, text: str) -> Iterator[None]:
    """Say `text` when the work starts and how long it took when it is done."""
    start = time.monotonic()
    progress.say(f"{text} ...")
    yield
    progress.say(f"{text}: {time.monotonic() - start:.1f} s")


def human(size: int) -> str:
    """Bytes for people, in decimal units as OCI tools and Docker print them: 191.8 MB."""
    number = float(size)
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.2f} GB"
