"""Parse explanations of uv about the cutoff: packages whose releases are too new, or have no upload time."""

from __future__ import annotations

import re

# uv 0.13 says "The requested version, v1.0, was published at T." or "The latest version satisfying the requirement is
# v1.0, published at T."; without "published at" where the index gives no upload time.
_EXCLUDED = re.compile(
    r"`([^`]+)` was filtered by `exclude-newer` to only include packages uploaded before \S+\."
    r"(?: The (?:requested|latest) version[^`]*? v\S+,(?: was)? published at (\S+)\.)?"
)
_UNDATED = re.compile(r"(?<![\w.-])([\w.-]+)(?:\[[\w,-]+\])?(?:[=<>!~]\S{0,200})? (?:has|have) no publish time")


def is_limited_by_cutoff(explanation: str) -> bool:
    """Return whether uv ignored files that were uploaded after the cutoff."""
    late = any(uploaded for _, uploaded in _excluded(explanation))
    return late or "exclude newer time" in " ".join(explanation.split())


def packages_without_upload_time(explanation: str) -> list[str]:
    """Return the packages of which uv ignored files since the index gives no upload time, each once."""
    hinted = [name for name, uploaded in _excluded(explanation) if not uploaded]
    return list(dict.fromkeys([*hinted, *_UNDATED.findall(" ".join(explanation.split()))]))


def _excluded(explanation: str) -> list[tuple[str, str]]:
    return _EXCLUDED.findall(" ".join(explanation.split()))
