"""Wheels in the local directories of the settings' find-links."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from imagegen.core.config import Settings
from imagegen.core.net import package_index
from imagegen.core.wheel_target import WheelTarget


def find_local_wheel(settings: Settings, package: str, version: str, target: WheelTarget) -> Path | None:
    """Return the one wheel of exactly this release (with its local version) in the find-links directories.

    None if there is none, or if several file names fit.
    """
    paths: dict[str, Path] = {}
    for directory in filter(None, map(package_index.local_directory, settings.find_links)):
        for path in sorted(directory.glob("*.whl")):
            if is_wheel_of(path.name, package, version) and target.best([(path.name, path)]) is not None:
                paths.setdefault(path.name, path)
    return next(iter(paths.values())) if len(paths) == 1 else None


def is_wheel_of(filename: str, package: str, version: str) -> bool:
    from packaging.utils import parse_wheel_filename

    try:
        name, wheel_version, _, _ = parse_wheel_filename(filename)
    except ValueError:
        return False
    return name == package and wheel_version == Version(version)
