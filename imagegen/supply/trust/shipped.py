"""Data about licences and releases: data/*.yaml, with sources and dates."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def data(name: str) -> Any:
    """A file as it stands. It is shipped: what is wrong with it is a bug."""
    path = Path(__file__).parent / "data" / f"{name}.yaml"
    return yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
