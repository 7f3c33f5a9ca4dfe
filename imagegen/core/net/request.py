"""Parts of a request that need no connection: its body, its Authorization header."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

CHUNK = 1 << 18  # bytes that are read at once, and the headway that a try must make to count as none
AUTHORIZATION = "Authorization"


@dataclass(frozen=True)
class Body:
    """The body of a request: `pieces` gives its `size` bytes from the first one on, each time that it is called."""

    size: int
    pieces: Callable[[], Iterator[bytes]]


def authorized(authorization: str | None) -> dict[str, str]:
    """Return the Authorization header for the first request; it is dropped on cross-origin redirects."""
    return {AUTHORIZATION: authorization} if authorization else {}
