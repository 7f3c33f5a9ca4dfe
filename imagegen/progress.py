"""What long work says while it runs: bars on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """Thread-safe. `total` and `amount` are bytes."""

    def say(self, text: str) -> None:
        """One line, now."""

    def meter(self, label: str, total: int) -> _Meter:
        """A context manager that counts bytes towards `total`."""


class _Meter(Protocol):
    def __enter__(self) -> _Meter: ...
    def __exit__(self, *exc: object) -> None: ...
    def advance(self, amount: int) -> None: ...


class Quiet:
    """Says nothing: for tests and for callers that print their own."""

    def say(self, text: str) -> None:
        pass

    def meter(self, label: str, total: int) -> _Meter:  # noqa: ARG002 - the protocol's signature
        return _Silent()


class _Silent:
    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass


class Terminal:
    """Bars through rich on a terminal; on a pipe, a line when a meter starts and one when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def meter(self, label: str, total: int) -> _Meter:
        return _Bar(self._console, label, total) if self._console.is_terminal else _Lines(self, label, total)


class _Bar:
    def __init__(self, console: Console, label: str, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = RichProgress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(label, total=total)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def advance(self, amount: int) -> None:
        self._progress.advance(self._task, amount)


class _Lines:
    def __init__(self, progress: Progress, label: str, total: int) -> None:
        self._progress, self._label, self._total = progress, label, total
        self._start = time.monotonic()

    def __enter__(self) -> _Lines:
        self._progress.say(f"{self._label}: {human(self._total)}")
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
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
