"""Strict JSON for signed content.

Parsers of other languages read signed content too. Bytes that two of them could read differently are rejected (RFC
8259, section 4, allows repeated names; RFC 7493 forbids them).
"""

from __future__ import annotations

import json
import math
from typing import Any

from imagegen.core.data import unique_keys

MAX_SIZE = 32 << 20  # bytes
_EXACT = 1 << 53  # whole numbers below it are equal as integers and as doubles, as Go writes them


class UnreadableError(ValueError):
    """The bytes are not strict JSON; the message has the reason."""


def parse(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises UnreadableError."""
    if len(data) > MAX_SIZE:
        raise UnreadableError(f"it has {len(data)} bytes, and the limit is {MAX_SIZE}")
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique_keys, parse_float=_number, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise UnreadableError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error
    except UnreadableError:
        raise
    except ValueError as error:  # not JSON, or an integer of thousands of digits
        raise UnreadableError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableError("it is not a JSON object")
    return value


def canonical(value: dict[str, Any]) -> bytes:
    """Return canonical JSON, with sorted names and without white space. Raises UnreadableError."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error


def _number(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise UnreadableError(f"the number {text[:40]} is too large")
    return int(number) if number.is_integer() and abs(number) < _EXACT else number


def _constant(text: str) -> Any:
    raise UnreadableError(f"{text} is not a number")
