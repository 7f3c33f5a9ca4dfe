"""JSON that every parser reads alike: UTF-8, one object, each name once, numbers that are numbers.

Signed content goes through parsers of other languages too. Bytes that two of them could read differently are rejected
(RFC 8259, section 4, leaves repeated names open; RFC 7493 forbids them).
"""

from __future__ import annotations

import json
import math
from typing import Any

from imagegen.core.data import unique_keys

LONGEST = 32 << 20  # bytes
_EXACT = 1 << 53  # whole numbers below it are the same as integers and as doubles, which is how Go writes them


class UnreadableError(ValueError):
    """The bytes are not such JSON; the message has the reason."""


def parse(data: bytes) -> dict[str, Any]:
    """The object that is all of `data`. Raises UnreadableError."""
    if len(data) > LONGEST:
        raise UnreadableError(f"it has {len(data)} bytes, and {LONGEST} are the most that are read")
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique_keys, parse_float=_number, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise UnreadableError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error
    except UnreadableError:
        raise
    except ValueError as error:  # no JSON, or an integer of thousands of digits
        raise UnreadableError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableError("it is no JSON object")
    return value


def canonical(value: dict[str, Any]) -> bytes:
    """The same bytes for whatever means the same: names sorted, nothing between. Raises UnreadableError."""
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
    raise UnreadableError(f"{text} is no number")
