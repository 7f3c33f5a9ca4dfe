"""Progress of long work: bars on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from imagegen.core import stopping
from imagegen.core.text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


_SILENCE = 300  # seconds
_PAUSE = 30  # seconds between lines about bytes


class Meter(Protocol):
    """Counts bytes towards a total, between enter and exit."""

    def __enter__(self) -> Meter: ...
    def __exit__(self, *exc: object) -> None: ...
    def advance(self, amount: int) -> None:
        """Add `amount` bytes; negative where some must be transferred again."""


class Counter(Protocol):
    """Counts steps without a size, between enter and exit."""

    def __enter__(self) -> Counter: ...
    def __exit__(self, *exc: object) -> None: ...
    def reach(self, finished: int, total: int, note: str) -> None:
        """Report that `done` of `total` are done; `note` is a further remark: "3.1 GB"."""


class Progress(Protocol):
    """Messages and meters for the user. Thread-safe."""

    def say(self, text: str) -> None:
        """Print one line immediately."""

    def meter(self, label: str, total: int) -> Meter:
        """A context manager that counts bytes towards `total`."""

    def counter(self, label: str, noun: str) -> Counter:
        """A context manager that counts things that are called `noun`: "unit"."""


class Quiet:
    """Prints nothing: for tests and for callers that print their own messages."""

    def say(self, text: str) -> None:
        pass

    def meter(self, label: str, total: int) -> Meter:  # noqa: ARG002 - the protocol's signature
        return _Silent()

    def counter(self, label: str, noun: str) -> Counter:  # noqa: ARG002 - the protocol's signature
        return _Silent()


class _Silent:
    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def reach(self, finished: int, total: int, note: str) -> None:
        pass


class Output(Protocol):
    """A stream that lines are printed to: rich's Console, or `PlainOutput`."""

    @property
    def is_terminal(self) -> bool: ...
    @property
    def width(self) -> int: ...
    def print(
        self, *texts: Any, soft_wrap: bool | None = None, highlight: bool | None = None, markup: bool | None = None
    ) -> None: ...


class PlainOutput:
    """Standard output or error where it is not a terminal: lines of any length without styles. It needs no rich, which
    takes longer to load than most answers.
    """

    is_terminal = False
    width = 10_000  # columns: more than any row of a table has

    def __init__(self, *, stderr: bool = False) -> None:
        self._stderr = stderr
        self._lock = threading.RLock()

    def print(self, *texts: Any, **_: bool | None) -> None:
        """Print one line. Options of rich's Console do not apply to plain lines."""
        with self._lock:
            print(*texts, file=sys.stderr if self._stderr else sys.stdout, flush=True)


class Terminal:
    """Bars through rich on a terminal; on a pipe, a line when a meter starts and one when it is done.

    All bars share one display, since several downloads run at once and a terminal has one bottom.
    """

    def __init__(self, console: Output) -> None:
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

    def counter(self, label: str, noun: str) -> Counter:
        if self.console.is_terminal:
            return _CountingBar(self, label, noun)
        return _CountingLines(self, label, noun)

    def add(self, label: str, total: int | None, **fields: Any) -> tuple[RichProgress, TaskID]:
        """A bar on the display, which appears with the first bar. A field `note` stands in place of bytes."""
        from rich import progress  # late: an unchanged build shows no bar
        from rich.text import Text

        class Amount(progress.DownloadColumn):
            def render(self, task: progress.Task) -> Text:
                return Text(task.fields["note"]) if "note" in task.fields else super().render(task)

        class Speed(progress.TransferSpeedColumn):
            def render(self, task: progress.Task) -> Text:
                return Text() if "note" in task.fields else super().render(task)

        with self._lock:
            if self._display is None:
                self._display = progress.Progress(
                    progress.TextColumn("{task.description}"),
                    progress.BarColumn(),
                    Amount(),
                    Speed(),
                    console=cast("Console", self.console),
                    transient=True,
                )
                self._display.start()
            self._bars += 1
            return self._display, self._display.add_task(label, total=total, **fields)

    def remove(self, task: TaskID) -> None:
        """Remove the bar; the display ends with the last one."""
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
        stopping.begin(self, self._label)
        return self

    def __exit__(self, *exc: object) -> None:
        stopping.end(self)
        self._terminal.remove(self._task)

    def advance(self, amount: int) -> None:
        self._display.advance(self._task, amount)


class _CountingBar:
    def __init__(self, terminal: Terminal, label: str, noun: str) -> None:
        self._terminal, self._label, self._noun = terminal, label, noun

    def __enter__(self) -> _CountingBar:
        self._display, self._task = self._terminal.add(self._label, None, note="")
        return self

    def __exit__(self, *exc: object) -> None:
        self._terminal.remove(self._task)

    def reach(self, finished: int, total: int, note: str) -> None:
        text = f"{finished}/{total} {self._noun}s, {note}"
        self._display.update(self._task, completed=finished, total=total or None, note=text)


class _CountingLines:
    """A line when a twentieth more is done, or five minutes have gone by."""

    def __init__(self, progress: Progress, label: str, noun: str) -> None:
        self._progress, self._label, self._noun = progress, label, noun
        self._said, self._at = 0, time.monotonic()

    def __enter__(self) -> _CountingLines:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def reach(self, finished: int, total: int, note: str) -> None:
        now = time.monotonic()
        if finished - self._said >= max(1, total / 20) or (now - self._at >= _SILENCE and finished > self._said):
            self._said, self._at = finished, now
            self._progress.say(f"{self._label}: {finished} of {total} {self._noun}s, {note}")


class _Lines:
    """A line when it starts, one when it is done, and every half minute how far it is and how fast of late."""

    def __init__(self, progress: Progress, label: str, total: int) -> None:
        self._progress, self._label, self._total = progress, label, total
        self._done = self._said = 0  # bytes, now and at the last line
        self._lock = threading.Lock()

    def __enter__(self) -> _Lines:
        self._start = self._at = time.monotonic()
        self._progress.say(f"{self._label}: {human(self._total)}")
        stopping.begin(self, self._label)
        return self

    def __exit__(self, *exc: object) -> None:
        stopping.end(self)
        if exc[0] is None:
            self._progress.say(f"{self._label}: done in {time.monotonic() - self._start:.1f} s")

    def advance(self, amount: int) -> None:
        now = time.monotonic()
        with self._lock:
            self._done += amount
            finished, came, took = self._done, self._done - self._said, now - self._at
            if took < _PAUSE:
                return
            self._said, self._at = finished, now
        rate = human(max(0, came) / took)
        self._progress.say(f"{self._label}: {human(finished)} of {human(self._total)}, {rate}/s")


@contextmanager
def timed(progress: Progress, text: str) -> Iterator[None]:
    """Log `text` when the work starts, and its duration at the end."""
    start, step = time.monotonic(), object()
    progress.say(f"{text} ...")
    stopping.begin(step, text)
    try:
        yield
    finally:
        stopping.end(step)
    progress.say(f"{text}: {time.monotonic() - start:.1f} s")


def human(size: float) -> str:
    """Bytes for human readers, in decimal units as OCI tools and Docker print them: 191.8 MB."""
    number = float(size)
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.2f} GB"
