"""Options of a resolution, and its cutoff time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from packaging.utils import canonicalize_name

from imagegen.core.errors import LockError, UsageError
from imagegen.core.types import parse_requirement


@dataclass(frozen=True)
class LockOptions:
    """Options of a resolution.

    upgrade: take the newest versions; packages: upgrade these; upgrade_base: lock today's Debian packages.
    as_of: cutoff time (RFC 3339); None keeps the previous lock's, or is now where something is upgraded.
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


def parse_upgrades(texts: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return names and bounds of packages to upgrade, each NAME or NAME==VERSION. Raises UsageError."""
    try:
        requirements = [parse_requirement(text) for text in texts]
    except ValueError as error:
        fix = "as in pillow, or pillow==13.0.0"
        raise UsageError(f"--upgrade-package: {error}", code="usage-invalid-value", fix=fix) from error
    bounds = {canonicalize_name(required.name): str(required.specifier) for required in requirements}
    return tuple(bounds), {name: specifier for name, specifier in bounds.items() if specifier}


def rfc3339(time: datetime) -> str:
    """Return a UTC time as locks write it: 2026-11-20T00:00:00Z."""
    return time.replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def parse_cutoff(text: str | None) -> str:
    """Return the cutoff as locks write it; None is now. Raises LockError for a malformed or a future time."""
    if text is None:
        return rfc3339(datetime.now(UTC))
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise LockError(
            f"{text!r} is not a time",
            code="lock-cutoff-invalid",
            why=str(error),
            fix="write a date or a time as in 2026-11-20T00:00:00Z",
        ) from error
    # A date or a time without zone is UTC, so that a lock does not depend on where it is made.
    time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    if time > datetime.now(UTC):
        why = "releases until then may still appear, so the next resolution could differ"
        raise LockError(f"{text} lies in the future", code="lock-cutoff-in-future", why=why, fix="use a past time")
    return rfc3339(time)
