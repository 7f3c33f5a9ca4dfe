"""A wheel that was built from source, as the wheelhouse keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel of the wheelhouse. `record` describes its build (sources, flags, toolchain, peak memory, duration)."""

    key: str  # "sha256:...": of everything that decides it
    name: str
    version: str
    filename: str
    sha256: str
    size: int  # bytes
    record: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The digest of the file as a blob of the store."""
        return f"sha256:{self.sha256}"
