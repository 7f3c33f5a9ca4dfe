"""Two packages may own the same file at one path. Different files are an error, wherever in the image they lie.

Overlay file systems would show whichever layer comes last, and pip whichever package was installed last: a package
that works by the order of installation does not work. An override of the lock (`file-conflict`, from a
sourced rule of the matrix) names the one that keeps its files; the others leave theirs out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from imagegen.audit.model import File
from imagegen.audit.ownership import clashes
from imagegen.audit.readers.installation import InstalledFile, absolute, installation, site_packages
from imagegen.core.errors import ErrorGroup, WheelError
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.image.layers.scan import open_locked, recorded_blob, recorded_scan
from imagegen.lock.model import FileConflict, Lock, LockedWheel

Contents = Mapping[str, str]  # path -> sha256 and mode of each file that a wheel installs
_FILES = Cache("files", dict[str, str])
_FIX = (
    "leave one of the two out of the image, lock versions that do not overlap, or say in the matrix which of them wins "
    "(`file_conflicts:`)"
)


class OwnershipErrors(ErrorGroup, WheelError):
    """Every pair of packages that own a path with different contents."""


def left_out(lock: Lock, distribution: str, paths: Iterable[str]) -> frozenset[str]:
    """Return the paths of a distribution that the lock gives to others. No other wheel need be known for it."""
    globs = [conflict.paths for conflict in lock.file_conflicts if distribution in conflict.over]
    return frozenset(path for path in paths if any(fnmatchcase(path, glob) for glob in globs)) if globs else frozenset()


def losers(lock: Lock, contents: Mapping[str, Contents]) -> dict[str, frozenset[str]]:
    """Distribution -> the paths that it must leave out, for those that have any.

    `contents` are of all wheels of the lock, by distribution. Raises OwnershipErrors unless, without these paths, each
    path of the stack has one content, and each that was left out is in the package that owns it.
    """
    out = {name: paths_left_out for name in contents if (paths_left_out := left_out(lock, name, contents[name]))}
    contents_of_owners = {
        name: {path: identity for path, identity in table.items() if path not in out[name]} if name in out else table
        for name, table in contents.items()
    }
    errors = [*_ownerless(lock.file_conflicts, out, contents_of_owners)]
    # A wheel never contains byte-code of its own sources: a file in its place belongs to another distribution.
    pairs = clashes(contents_of_owners, byte_code=True)
    errors += [_clash(*pair, sorted(paths)) for pair, paths in sorted(pairs.items())]
    if errors:
        raise OwnershipErrors(errors)
    return out


def check(store: Store, lock: Lock) -> None:
    """Raise OwnershipErrors as `losers` does. A wheel that no layer of this store was made of must be in the store."""
    for environment in lock.environments:
        losers(environment.lock, {wheel.name: table(store, wheel, lock.python) for wheel in environment.lock.wheels})


def remember(store: Store, locked: LockedWheel, files: Iterable[InstalledFile], python: str) -> Contents:
    """Record and return the files that the wheel installs, so that it is opened only once."""
    identities = {file.path: _identity(file) for file in files}
    _FILES.put(store, contents_key(locked, python), identities)
    return identities


def table(store: Store, locked: LockedWheel, python: str) -> Contents:
    """Return the files that the wheel installs, from the cache or from the wheel, which must then be in the store."""
    if (contents := known(store, locked, python)) is not None:
        return contents
    with open_locked(store, locked) as wheel:
        return remember(store, locked, installation(wheel, python), python)


def known(store: Store, locked: LockedWheel, python: str) -> Contents | None:
    """Return the files that the wheel installs, from the cache or from its scan; None where the store has neither."""
    contents = _FILES.get(store, contents_key(locked, python))
    if contents is None and (package := recorded_scan(store, locked, python)) is not None:
        site = site_packages(python)
        contents = {absolute(path, site): _identity(file) for path, file in package.files.items()}
        _FILES.put(store, contents_key(locked, python), contents)
    return contents


def scanned_contents(store: Store, locked: LockedWheel, python: str) -> Contents | None:
    """Return the files that the wheel installs; None unless the store has both these and the wheel's scan."""
    return known(store, locked, python) if recorded_blob(store, locked, python) else None


def _identity(file: InstalledFile | File) -> str:
    return f"{file.sha256 or 'unhashed'} {'x' if file.executable else '-'}"


def _clash(first: str, two: str, why: str, paths: list[str]) -> WheelError:
    more_paths = f" (and {len(paths) - 1} more paths)" if len(paths) > 1 else ""
    return WheelError(
        "two packages own one file",
        code="wheel-file-conflict",
        where=paths[0],
        why=f"{first} and {two}: {why}{more_paths}",
        fix=_FIX,
    )


def _ownerless(
    file_conflicts: Iterable[FileConflict], out: Mapping[str, frozenset[str]], owned: Mapping[str, Contents]
) -> list[WheelError]:
    """Errors for files that are left out in favour of one that does not bring them, so that no package has them."""
    errors = []
    for conflict in file_conflicts:
        for other in conflict.over:
            paths_left_out = {path for path in out.get(other, ()) if fnmatchcase(path, conflict.paths)}
            if lost := sorted(paths_left_out - owned.get(conflict.distribution, {}).keys()):
                why = f"{conflict.rule} gives it to {conflict.distribution}, which does not bring it; {other} does"
                fix = "narrow the `paths` of that rule to the files that both bring"
                errors.append(
                    WheelError(
                        "a file would be in no package",
                        code="wheel-file-override-invalid",
                        where=lost[0],
                        why=why,
                        fix=fix,
                    )
                )
    return errors


def contents_key(locked: LockedWheel, python: str) -> str:
    """Return the key under which a store keeps the files that a wheel installs."""
    return digest_of_json([locked.file.sha256, python, LAYER_FORMAT])
