"""Where the shipped data lies: inside the installed wheel, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path


def shipped(name: str) -> Path:
    """The folder of shipped data called `name`: "matrices", "dockerfiles" or "locks"."""
    package = Path(__file__).parent
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name
