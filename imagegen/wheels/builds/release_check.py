"""Check that a build's sources match its recipe, before its toolchain is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.core import data, toml
from imagegen.core.config import Settings
from imagegen.core.errors import BuildError
from imagegen.core.store import Store
from imagegen.lock.build_sources import patched_sources
from imagegen.lock.model import LockedBuild

RECIPE = "correct its recipe under wheels/ and lock again"


def require_sources(build: LockedBuild, store: Store, settings: Settings) -> None:
    """Raise BuildError where the sources cannot be unpacked, a patch does not apply, or they are another release.

    Reads the store only, with the worker's own code.
    """
    with patched_sources(build, store, settings) as (sources, _):
        _require_release(build, sources / "pyproject.toml")


def _require_release(build: LockedBuild, pyproject: Path) -> None:
    """Raise BuildError where pyproject.toml states another version (PEP 621: no backend may change it)."""
    stated = _stated(pyproject)
    if stated is None:
        return
    name, version = stated
    if (canonicalize_name(name), Version(version.public)) != (build.name, Version(Version(build.version).public)):
        raise BuildError(
            f"the sources of {build} are another release",
            code="source-build-wrong-release",
            where="pyproject.toml",
            why=f"they call themselves {name} {version}",
            fix=f"name the release as its sources do: {RECIPE}",
        )


def _stated(pyproject: Path) -> tuple[str, Version] | None:
    """Return name and version; None where the build decides, or where only the build's backend can report the fault."""
    if pyproject.is_symlink() or not pyproject.is_file():
        return None
    try:
        project: Any = toml.loads(data.read(pyproject, longest=data.MAX_SOURCE_FILE).decode()).get("project", {})
        return str(project["name"]), Version(project["version"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
