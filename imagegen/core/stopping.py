"""The end of a run by a signal, everywhere within two seconds: programs are killed, and threads start no further work.

The handler of the signal (cli/main.py) calls `stop_all` and raises Stopped in the main thread, which then waits for the
others. They end at their next `check`: before a program, a request or a piece of a file. Changes are undone
afterwards, so the main thread may still start programs and send requests.
"""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from contextlib import suppress
from typing import Protocol

_PACE = 0.1  # seconds
_signal = 0  # the number of the one that stops the run
_steps: dict[int, str] = {}


class Stopped(BaseException):
    """A signal asks imagegen to stop: containers, processes, mounts and temporary files are removed on the way out."""

    def __init__(self, number: int | None = None) -> None:
        super().__init__()
        self.number, self.steps = _signal if number is None else number, steps()


class Work(Protocol):
    """Something that another thread waits for."""

    def stop(self) -> None:
        """End it now, from any thread."""


_running: weakref.WeakValueDictionary[int, Work] = weakref.WeakValueDictionary()


def stop_all(number: int) -> None:
    """End all work that is registered, in a thread, since the handler of the signal `number` must wait for no lock."""
    global _signal  # noqa: PLW0603 - a process stops once
    _signal = number
    _thread.start_new_thread(_stop_all, ())


def _stop_all() -> None:
    for reference in _running.valuerefs():
        if work := reference():
            with suppress(Exception):
                work.stop()


def begin(step: object, text: str) -> None:
    """Note what a step of the run does, until `end`: the message about a stopped run names it."""
    _steps[id(step)] = text


def end(step: object) -> None:
    _steps.pop(id(step), None)


def steps() -> tuple[str, ...]:
    """Return the run's current steps, each text once, in the order of their beginnings."""
    return tuple(dict.fromkeys(list(_steps.values())))


def register(work: Work) -> None:
    """Let `stop_all` end the work, for as long as something else refers to it."""
    _running[id(work)] = work
    if _signal and not _is_main():
        work.stop()


def is_stopped() -> bool:
    """Return whether a signal stops the run."""
    return bool(_signal)


def check() -> None:
    """Raise Stopped in every thread but the main one, once the run is stopped."""
    if _signal and not _is_main():
        raise Stopped


def wait(event: threading.Event, seconds: float) -> None:
    """Wait until `event` is set, at most `seconds`. Raises as `check`."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0 and not event.wait(min(remaining, _PACE)):
        check()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
