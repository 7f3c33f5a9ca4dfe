"""Lists in findings, cut to the first items and the number of others."""

from __future__ import annotations

from collections.abc import Sequence

from imagegen.audit.demangle import demangle

_SYMBOLS = 3  # of a file


def few(lines: Sequence[str], limit: int, noun: str = "") -> tuple[str, ...]:
    """Return the first `limit` lines, and a last line with the number of the others."""
    omitted = len(lines) - limit
    summary = (f"and {omitted} more {noun}".rstrip(),) if omitted > 0 else ()
    return (*lines[:limit], *summary)


def listed(symbols: frozenset[str]) -> str:
    """Return the first symbols, demangled, in one line."""
    shown = [demangle(symbol) for symbol in sorted(symbols)[:_SYMBOLS]]
    return "; ".join(shown + ([f"{len(symbols) - _SYMBOLS} more"] if len(symbols) > _SYMBOLS else []))
