"""The project's own packages: its directories and wheel files, as blobs of the store, and compared with a lock.

A directory's sources are the files that git shows to a colleague (core/git/local.py). The build backend may select
others, but its choice is known only after its code has run. The project's own locks/ and matrices/ never count, since a
lock would then contain its own hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagegen.core import data, git
from imagegen.core.errors import DependencyConfusionError, Location, LockError
from imagegen.core.git import PackedTree
from imagegen.core.store import Store
from imagegen.lock.build_sources import locate_errors
from imagegen.lock.model import Lock, LockedWheel
from imagegen.projects.requirements import project_name
from imagegen.spec.model import Cell, OwnSource, Requirement

_CHUNK = 1 << 20  # bytes
_UNUSED = ("locks", "matrices")  # of the project's directory


def pack_own_packages(cell: Cell, project: Path, store: Store) -> dict[str, PackedTree]:
    """Bring the cell's own packages into the store, and return them by package: archives of directories, and wheels.

    Raises LockError and FetchError, with the line that names the source, for one that is absent, leaves the project, or
    has no pyproject.toml; DependencyConfusionError for the project's own package without a source.
    """
    _require_no_confusion(cell, project)
    return {
        requirement.component.package: _pack(requirement.own, requirement.component.package, project, store)
        for requirement in cell.requirements
        if requirement.own
    }


def require_own_packages(lock: Lock, cell: Cell, project: Path, store: Store) -> None:
    """Write the lock's own packages to the store if they are unchanged.

    One that is absent here is accepted if the store has its wheel. Raises LockError, naming the files that changed, and
    as `pack_own_packages`.
    """
    wheels = {wheel.name: wheel for wheel in lock.wheels}
    for requirement in cell.requirements:
        if requirement.own and (wheel := wheels.get(requirement.component.package)):
            _require_unchanged(requirement, requirement.own, wheel, cell, project, store)


def _require_unchanged(
    requirement: Requirement, source: OwnSource, wheel: LockedWheel, cell: Cell, project: Path, store: Store
) -> None:
    path = project / source.path
    if not path.exists() and store.has(wheel.file.digest):
        return
    _require_source(source, path, project)
    with _located(source, cell):
        if wheel.sdist:
            git.unchanged(path, requirement.component.package, wheel.sdist.file.digest, store, _without(source))
        elif (digest := _copy(path, store).digest) != wheel.file.digest:
            why = f"its digest is {digest}, the lock names {wheel.file.digest}"
            raise LockError(f"{path} changed since the lock was made", code="lock-source-changed", why=why)


def _require_no_confusion(cell: Cell, project: Path) -> None:
    """Raise DependencyConfusionError for a component with the project's name that only an index would give."""
    for requirement in cell.requirements:
        name, has_source = requirement.component.package, requirement.own or requirement.git or requirement.address
        if not (has_source or requirement.component.declared) and name == project_name(project, project):
            raise DependencyConfusionError(
                f"index {requirement.index} would give {name}, which is the project itself",
                where=Location(project),
                why="its component has no source, and anyone may publish a project of this name",
                fix=f"`path: .` takes the project; a `components` entry that declares {name} takes the index's package",
            )


@contextmanager
def _located(source: OwnSource, cell: Cell) -> Iterator[None]:
    with locate_errors(source.where):
        try:
            yield
        except LockError as error:
            error.where, error.fix = source.where, f"`imagegen lock {cell.id}` locks the current sources"
            raise


def _pack(source: OwnSource, package: str, project: Path, store: Store) -> PackedTree:
    path = project / source.path
    _require_source(source, path, project)
    with locate_errors(source.where):
        return git.pack(path, package, store, _without(source)) if source.kind == "path" else _copy(path, store)


def _require_source(source: OwnSource, path: Path, project: Path) -> None:
    """Raise LockError where the path leads out of the project, or to no Python project and no wheel."""
    try:
        data.require_within(path, project)
    except OSError as error:
        raise _unusable(source, error.strerror, "name a path below the directory of the project") from error
    if source.kind == "wheel":
        if not path.is_file():
            raise _unusable(source, f"there is no file {path}", "correct the path, from the directory of the project")
    elif not path.is_dir():
        raise _unusable(source, f"there is no directory {path}", "correct the path, from the directory of the project")
    elif not (path / "pyproject.toml").is_file():
        why, fix = f"{path} has no pyproject.toml", "add one (`uv init --package` writes one), or correct the path"
        raise _unusable(source, why, fix)


def _unusable(source: OwnSource, why: str | None, fix: str) -> LockError:
    message = f"`{source.kind}: {source.path}` gives no package"
    return LockError(message, code="lock-own-invalid", where=source.where, why=why, fix=fix)


def _without(source: OwnSource) -> tuple[str, ...]:
    return _UNUSED if source.path == "." else ()


def _copy(path: Path, store: Store) -> PackedTree:
    """Return the wheel as a blob, written where the store lacks it."""
    with path.open("rb") as file:
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        size = file.tell()
        if not store.has(digest, size):
            file.seek(0)
            with store.writer() as blob:
                while chunk := file.read(_CHUNK):
                    blob.write(chunk)
                return PackedTree(blob.commit(), blob.size)
    return PackedTree(digest, size)
