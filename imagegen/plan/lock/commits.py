"""Files of a commit's archive, and the check of a matrix's metadata of a commit against its pyproject.toml."""

from __future__ import annotations

import posixpath
import tarfile
import tomllib
from collections.abc import Iterable
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.core import git
from imagegen.core.errors import LockError
from imagegen.core.store import Store
from imagegen.core.types import parse_requirement
from imagegen.plan.matrix.model import Requirement

_LARGEST = 64 << 20  # bytes of a file that is read whole; a uv.lock of 1,000 packages takes 2 MB


def member(store: Store, archive: git.Archive, name: str) -> bytes:
    """Return a file of an archive. Raises KeyError where it holds no such file, or one too large to read whole."""
    with tarfile.open(store.path(archive.digest), "r:") as tar:
        info = tar.getmember(name)
        file = tar.extractfile(info) if info.isreg() and info.size <= _LARGEST else None
        if file is None:
            raise KeyError(f"{name} is no file, or too large")
        return file.read()


def pyproject(store: Store, archive: git.Archive, folder: str, subdirectory: str) -> dict[str, Any]:
    """Return the pyproject.toml of a project in an archive, {} where it has none. Raises LockError."""
    path = posixpath.join(folder, subdirectory, "pyproject.toml")
    try:
        return tomllib.loads(member(store, archive, path).decode())
    except KeyError:
        return {}
    except (ValueError, RecursionError) as error:
        raise LockError(
            "pyproject.toml is malformed", code="lock-pyproject-malformed", where=path, why=str(error)
        ) from error


def require_metadata(requirement: Requirement, archive: git.Archive, store: Store) -> None:
    """Raise LockError unless a commit's static metadata in the matrix equals that of its pyproject.toml (PEP 621).

    Fields that pyproject.toml leaves to the build backend are not compared; nor are requirements by address, which no
    matrix can hold.
    """
    source = requirement.git
    assert source  # noqa: S101 - asked for such alone
    package = requirement.component.package
    project = pyproject(store, archive, f"{package}-{source.metadata.version}", source.subdirectory).get("project", {})
    dynamic = project.get("dynamic", [])
    wrong = []
    if "version" in project and Version(project["version"]) != Version(source.metadata.version):
        wrong.append(f"version is {project['version']}, and the matrix has {source.metadata.version}")
    if "dependencies" in project and "dependencies" not in dynamic:
        said, declared = _plain(project["dependencies"]), _plain(source.metadata.requires)
        if lacking := sorted(said - declared):
            wrong.append(f"it requires {', '.join(lacking)}, which the matrix lacks")
        if odd := sorted(declared - said):
            wrong.append(f"it does not require {', '.join(odd)}, which the matrix has")
    if wrong:
        raise LockError(
            f"the metadata of {requirement.component.name} is not that of {source.url} at {source.commit}",
            code="lock-metadata-stale",
            why="\n".join(wrong),
            fix=f"correct `version` and `requires` of git entry {source.name!r}",
        )


def _plain(requirements: Iterable[str]) -> set[str]:
    """Return the requirements without extras and addresses, each in one spelling."""
    parsed = [parse_requirement(each) for each in requirements]
    found = set()
    for each in parsed:
        if not each.url and "extra" not in str(each.marker or ""):
            extras = f"[{','.join(sorted(map(canonicalize_name, each.extras)))}]" if each.extras else ""
            marker = f"; {each.marker}" if each.marker else ""
            found.add(f"{canonicalize_name(each.name)}{extras}{each.specifier}{marker}")
    return found
