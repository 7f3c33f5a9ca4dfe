"""Wheel scans for audits, cached by the wheel's hash; and the owners of the files' paths.

A scan is read while the wheel's layer is made. It depends on the wheel and on where its files go, not on the other
wheels of the stack: file-conflict overrides of the matrix, for one, are applied by the readers of scans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from imagegen.audit import extras, facts
from imagegen.audit.collect import IN_MEMORY, Collector
from imagegen.audit.imports import ApiScanner
from imagegen.audit.model import File, OptionalImport, Package
from imagegen.audit.ownership import clashes
from imagegen.audit.readers.installation import InstalledFile, absolute, installation, pyc_path, relative, site_packages
from imagegen.audit.readers.loose_wheels import scan_file
from imagegen.audit.readers.wheel import Wheel
from imagegen.core.errors import ErrorGroup, WheelError
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache, Cache, StoredBlob
from imagegen.image.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.lock.model import FileConflict, Lock, LockedWheel

SCANS = BlobCache("facts")


def open_locked(store: Store, locked: LockedWheel) -> Wheel:
    """The wheel of a lock, which must be in the store."""
    path = store.path(locked.file.digest)
    return Wheel(path, locked.file.filename, ignore_record=locked.record_exception is not None)


class WheelScanner:
    """Scans a wheel's `files` while another consumer reads them."""

    def __init__(
        self, store: Store, locked: LockedWheel, wheel: Wheel, files: Sequence[InstalledFile], python: str
    ) -> None:
        self._store, self._locked, self._wheel, self._python = store, locked, wheel, python
        self._files = files
        self._found: dict[str, bytes] = {}  # path relative to site-packages -> what `facts.file_text` makes of its file
        self._modules = extras.optional_modules(wheel.requires)
        self._imports: dict[str, list[OptionalImport]] = {}  # by path
        self._site = site_packages(python)
        self._api = ApiScanner(locked.name, [relative(file.path, self._site) for file in files])

    def watched(self) -> list[InstalledFile]:
        """Return the files, wrapped so that the bytes read by their consumer are scanned too."""
        return [
            InstalledFile(file.path, file.size, file.executable, file.sha256, partial(self._seen, file))
            for file in self._files
        ]

    def finish(self) -> bytes:
        """Read the files that were not read to their end, then record and return the scan, as `facts.packed` does."""
        for file in self._files:
            path = relative(file.path, self._site)
            if path not in self._found:
                self._found[path] = facts.file_text(scan_file(file, self._store.scratch))
                if self._is_read(file):
                    self._scan(file, b"".join(file.chunks()))
        package = Package(
            self._locked.name,
            self._locked.version,
            {},
            requires=self._wheel.requires,
            tags=self._wheel.tags,
            licence=self._wheel.licence,
            optional_imports=tuple(
                optional_import for path in sorted(self._imports) for optional_import in self._imports[path]
            ),
            exports=self._api.exports(),
            required_names=self._api.required_names(),
        )
        packed = facts.packed_package(package, self._found)
        SCANS.write(self._store, scan_key(self._locked, self._python), packed)
        return packed

    def _seen(self, file: InstalledFile) -> Iterator[bytes]:
        source: list[bytes] | None = [] if self._is_read(file) else None
        with Collector(file.size, self._store.scratch) as collector:
            for chunk in file.chunks():
                collector.write(chunk)
                if source is not None:
                    source.append(chunk)
                yield chunk
            scan_result = collector.finish(file.sha256, executable=file.executable)
        if source is not None:
            self._scan(file, b"".join(source))
        if scan_result.unreadable and collector.partial:
            scan_result = scan_file(file, self._store.scratch, whole=True)
        self._found[relative(file.path, self._site)] = facts.file_text(scan_result)

    def _is_read(self, file: InstalledFile) -> bool:
        """Return whether the file is a Python source in which imports or names are looked for."""
        path = relative(file.path, self._site)
        return path.endswith(".py") and file.size <= IN_MEMORY and bool(self._modules or self._api.reads(path))

    def _scan(self, file: InstalledFile, source: bytes) -> None:
        path = relative(file.path, self._site)
        if self._modules:
            self._imports[file.path] = list(extras.scan_imports(path, source, self._modules))
        if self._api.reads(path):
            self._api.add(path, source)


def scan_wheel(store: Store, locked: LockedWheel, python: str) -> Package:
    """Return the scan of a wheel; one without a layer in this store is read, and must be in the store.

    Raises WheelError, StoreError.
    """
    if (recorded := recorded_scan(store, locked, python)) is not None:
        return recorded
    with store.explained(), open_locked(store, locked) as wheel:
        watch = WheelScanner(store, locked, wheel, installation(wheel, python), python)
        return facts.package(watch.finish())


def recorded_scan(store: Store, locked: LockedWheel, python: str) -> Package | None:
    """Return the wheel's scan; None if the store lacks it."""
    data = SCANS.read(store, scan_key(locked, python))
    return None if data is None else facts.package(data)


def recorded_blob(store: Store, locked: LockedWheel, python: str) -> StoredBlob | None:
    """Return the blob that holds the wheel's scan; None if the store lacks it."""
    return SCANS.get(store, scan_key(locked, python))


def scan_key(locked: LockedWheel, python: str) -> str:
    """Return the digest of all that decides the wheel's scan.

    The version is part of it, because 1.0 and 1.0+cu130 can be the same bytes under two file names.
    """
    return digest_of_json([locked.file.sha256, locked.version, python, LAYER_FORMAT, facts.FACTS_FORMAT])


# Two packages may own the same file at one path. Different files are an error, wherever in the image they lie.
#
# Overlay file systems would show whichever layer comes last, and pip whichever package was installed last: a package
# that works by the order of installation does not work. An override of the lock (`file-conflict`, from a
# sourced rule of the matrix) names the one that keeps its files; the others leave theirs out.

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
    errors = [*_ownerless(lock.file_conflicts, out, contents_of_owners), *_clashes(contents_of_owners)]
    if errors:
        raise OwnershipErrors(list(errors))
    return out


def check(store: Store, lock: Lock) -> None:
    """Raise OwnershipErrors as `losers` does. A wheel that no layer of this store was made of must be in the store."""
    for environment in lock.environments:
        losers(environment.lock, {wheel.name: table(store, wheel, lock.python) for wheel in environment.lock.wheels})


def remember(store: Store, locked: LockedWheel, files: Iterable[InstalledFile], python: str) -> Contents:
    """Record and return the files that the wheel installs, so that it is opened only once."""
    identities = {file.path: _identity(file) for file in files}
    _FILES.put(store, _key(locked, python), identities)
    return identities


def table(store: Store, locked: LockedWheel, python: str) -> Contents:
    """Return the files that the wheel installs, from the cache or from the wheel, which must then be in the store."""
    if (contents := known(store, locked, python)) is not None:
        return contents
    with open_locked(store, locked) as wheel:
        return remember(store, locked, installation(wheel, python), python)


def known(store: Store, locked: LockedWheel, python: str) -> Contents | None:
    """Return the files that the wheel installs, from the cache or from its scan; None where the store has neither."""
    contents = _FILES.get(store, _key(locked, python))
    if contents is None and (package := recorded_scan(store, locked, python)) is not None:
        site = site_packages(python)
        contents = {absolute(path, site): _identity(file) for path, file in package.files.items()}
        _FILES.put(store, _key(locked, python), contents)
    return contents


def scanned_contents(store: Store, locked: LockedWheel, python: str) -> Contents | None:
    """Return the files that the wheel installs; None unless the store has both these and the wheel's scan."""
    return known(store, locked, python) if recorded_blob(store, locked, python) else None


def _identity(file: InstalledFile | File) -> str:
    return f"{file.sha256 or 'unhashed'} {'x' if file.executable else '-'}"


def _clashes(contents: Mapping[str, Contents]) -> list[WheelError]:
    """Return one error for each pair of distributions with a file conflict, with the first path as its place.

    A wheel never contains byte-code of its own sources: a file in its place belongs to another distribution.
    """
    return [_clash(*pair, sorted(paths)) for pair, paths in sorted(clashes(contents, _byte_code).items())]


def _byte_code(path: str) -> str:
    """Return the byte-code's path for a source in .../lib/python3.11/...; for others a path that no
    package installs.
    """
    _, _, below_library = path.partition("/lib/python")
    return pyc_path(path, below_library.partition("/")[0])


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


def _key(locked: LockedWheel, python: str) -> str:
    return digest_of_json([locked.file.sha256, python, LAYER_FORMAT])
