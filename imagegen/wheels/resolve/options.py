"""Options of a resolution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LockOptions:
    """Options of a resolution.

    upgrade: take the newest versions; packages: upgrade these; upgrade_base: lock today's Debian packages.
    as_of: the cutoff time (RFC 3339); None keeps the previous lock's, or is now where something is upgraded.
    bounds: further version specifiers, by package.
    trust_previous_wheels: do not rebuild a wheel that the previous lock has of the same sdist on the same base; the
    build of the lock compares it.
    """

    upgrade: bool = False
    packages: tuple[str, ...] = ()
    upgrade_base: bool = False
    as_of: str | None = None
    bounds: Mapping[str, str] = field(default_factory=dict)
    trust_previous_wheels: bool = False
