"""Properties of packages that neither metadata nor scans state (data/packages.yaml), each with its source and date.

They are read when tables of metadata and demands of wheels are computed, whose results are kept: no answer reads YAML.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def package_data() -> Any:
    """Return the sections of the file by name. It is shipped: a fault in it is a bug."""
    return yaml.load((Path(__file__).parent / "data/packages.yaml").read_bytes(), Loader=yaml.CSafeLoader)


def entries_of(section: str, package: str) -> list[dict[str, Any]]:
    """Return the entries of a section about a package."""
    return [entry for entry in package_data()[section] if entry["package"] == package]
