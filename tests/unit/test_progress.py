"""Messages of long work without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from imagegen.core.progress import Terminal
from tests.support.golden import Golden


def test_bytes_on_a_pipe(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """A line every half minute, with the rate since the last one, however many bytes came in between."""
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr("imagegen.core.progress.time.monotonic", lambda: now[0])
    with Terminal(Console(file=out)).meter("pushing", 4_000_000_000) as meter:
        for seconds, amount in ((1, 500_000_000), (29, 1_000_000_000), (1, 1), (30, 310_000_000), (40, -400_000_000)):
            now[0] += seconds
            meter.advance(amount)
    golden.check(out.getvalue())
