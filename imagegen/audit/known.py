"""What is known of libraries beforehand, data/libraries.yaml: those of the driver, optional ones, distributions."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).parent / "data" / "libraries.yaml"


@cache
def facts() -> Any:
    """The file as it stands. It is shipped: what is wrong with it is a bug."""
    return yaml.load(_FILE.read_bytes(), Loader=yaml.CSafeLoader)  # noqa: S506 - it is a safe loader


@cache
def is_driver(name: str) -> bool:
    """Whether a library comes with the host's driver, which the container's runtime mounts when it starts."""
    return any(re.fullmatch(pattern, name) for pattern in facts()["driver"]["libraries"])
