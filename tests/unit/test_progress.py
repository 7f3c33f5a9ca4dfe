"""Messages of long work without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from imagegen.core.progress import Terminal


def test_bytes_on_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line every half minute, with the rate since the last one, however many bytes came in between."""
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr("imagegen.core.progress.time.monotonic", lambda: now[0])
    with Terminal(Console(file=out)).meter("pushing", 4_000_000_000) as meter:
        for seconds, amount in ((1, 500_000_000), (29, 1_000_000_000), (1, 1), (30, 310_000_000), (40, -400_000_000)):
            now[0] += seconds
            meter.advance(amount)
    assert out.getvalue().splitlines() == [
        "pushing: 4.00 GB",
        "pushing: 1.50 GB of 4.00 GB, 50.0 MB/s",
        "pushing: 1.81 GB of 4.00 GB, 10.0 MB/s",
        "pushing: 1.41 GB of 4.00 GB, 0 B/s",
        "pushing: done in 101.0 s",
    ]
