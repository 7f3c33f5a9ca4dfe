"""A progress display that records what it is given."""

from __future__ import annotations


class Meter:
    def __init__(self) -> None:
        self.total = 0

    def advance(self, amount: int) -> None:
        self.total += amount
