"""A limit on the processor time of a test, which also ends code that would run for hours."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlowError(AssertionError):
    """The block took more processor time than it may."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooSlowError when the block takes more processor time than `seconds`. For tests in the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {seconds} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
