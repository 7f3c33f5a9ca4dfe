"""Files of a commit's archive, and the check of a matrix's metadata of a commit against its pyproject.toml."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterable
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.core import data, git, toml
from imagegen.core.errors import Location, LockError
from imagegen.core.layer_tar import Bounded, members
from imagegen.core.store import Store
from imagegen.core.types import parse_requirement
from imagegen.spec.model import Requirement

_LARGEST = 64 << 20  # bytes of a file that is read whole; a uv.lock of 1,000 packages takes 2 MB


def member(store: Store, archive: git.PackedTree, name: str) -> bytes:
    """Return a file of an archive. Raises KeyError where it holds no such file, or one too large to read whole."""
    with tarfile.open(store.path(archive.digest), "r:*", tarinfo=Bounded) as tar:
        info = next((info for info in members(tar) if info.name == name), None)
        file = tar.extractfile(info) if info and info.isreg() and info.size <= _LARGEST else None
        if file is None:
            raise KeyError(f"{name} is not a file, or too large")
        return file.read()


def pyproject(store: Store, archive: git.PackedTree, folder: str, subdirectory: str) -> dict[str, Any]:
    """Return the pyproject.toml of a project in an archive, {} where it has none. Raises LockError."""
    path = posixpath.join(folder, subdirectory, "pyproject.toml")
    try:
        return toml.loads(member(store, archive, path).decode(), data.MAX_SOURCE_FILE)
    except KeyError:
        return {}
    except ValueError as error:
        where = Location(path, error.line) if isinstance(error, toml.TomlError) else path
        raise LockError(
            "pyproject.toml is malformed", code="lock-pyproject-malformed", where=where, why=str(error)
        ) from error


def require_metadata(requirement: Requirement, archive: git.PackedTree, store: Store) -> None:
    """Raise LockError unless a commit's static metadata in the matrix equals its pyproject.toml (PEP 621).

    Fields that pyproject.toml leaves to the build backend are not compared; nor are requirements by address, which no
    matrix can hold.
    """
    source = requirement.git
    assert source  # noqa: S101 - the caller passes only requirements of commits
    package = requirement.component.package
    project = pyproject(store, archive, f"{package}-{source.metadata.version}", source.subdirectory).get("project", {})
    dynamic = project.get("dynamic", [])
    wrong = []
    if "version" in project and Version(project["version"]) != Version(source.metadata.version):
        wrong.append(f"version is {project['version']}, and the matrix has {source.metadata.version}")
    if "dependencies" in project and "dependencies" not in dynamic:
        stated, declared = _plain(project["dependencies"]), _plain(source.metadata.requires)
        if lacking := sorted(stated - declared):
            wrong.append(f"it requires {', '.join(lacking)}, which the matrix lacks")
        if odd := sorted(declared - stated):
            wrong.append(f"it does not require {', '.join(odd)}, which the matrix has")
    if wrong:
        raise LockError(
            f"the metadata of {requirement.component.name} differs from {source.url} at {source.commit}",
            code="lock-metadata-stale",
            why="\n".join(wrong),
            fix=f"correct `version` and `requires` of git entry {source.name!r}",
        )


def _plain(requirements: Iterable[str]) -> set[str]:
    """Return the requirements without extras and addresses, each in one spelling."""
    parsed = [parse_requirement(requirement) for requirement in requirements]
    normalised = set()
    for plain in parsed:
        if not plain.url and "extra" not in str(plain.marker or ""):
            extras = f"[{','.join(sorted(map(canonicalize_name, plain.extras)))}]" if plain.extras else ""
            marker = f"; {plain.marker}" if plain.marker else ""
            normalised.add(f"{canonicalize_name(plain.name)}{extras}{plain.specifier}{marker}")
    return normalised
