"""Lists in findings, cut to the first items and the number of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from imagegen.audit.demangle import demangle

T = TypeVar("T")
_SYMBOLS = 3  # of a file


def few(items: Sequence[T], limit: int, line: Callable[[T], str] = str, noun: str = "") -> tuple[str, ...]:
    """Return a line for each of the first `limit` items, and a last line with the number of the others."""
    omitted = len(items) - limit
    summary = (f"and {omitted} more {noun}".rstrip(),) if omitted > 0 else ()
    return (*map(line, items[:limit]), *summary)


def listed(symbols: frozenset[str]) -> str:
    """Return the first symbols, demangled, in one line."""
    shown = [demangle(symbol) for symbol in sorted(symbols)[:_SYMBOLS]]
    return "; ".join(shown + ([f"{len(symbols) - _SYMBOLS} more"] if len(symbols) > _SYMBOLS else []))
