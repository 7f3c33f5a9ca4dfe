"""A cell's lock as the subject of an audit: its wheels as they would be installed, on the base, for the cell's GPUs.

The store keeps the scans of wheels that a build made layers of. The other wheels are fetched and read, and no layer
is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

from imagegen.audit import facts
from imagegen.audit.model import Package, Subject, SystemLibraries
from imagegen.audit.readers.installation import absolute, relative, site_packages
from imagegen.core.context import Context
from imagegen.core.errors import LockError
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache
from imagegen.core.text import counted
from imagegen.image import file_tree, inputs, layers
from imagegen.image.inventory import libraries, system
from imagegen.image.inventory.disk import Disk
from imagegen.image.inventory.module_sources import LOCK_MODULES, WheelModules, modules_key
from imagegen.image.layers import loader, ownership, scan
from imagegen.image.layers.loader import LoaderLibrary
from imagegen.image.layers.plan import digest_of_json
from imagegen.lock.model import Lock, LockedWheel
from imagegen.spec.model import Cell

SYSTEMS = BlobCache("system")

_AT_ONCE = 8


def cell_subject(locked: Lock, cell: Cell, context: Context, scans: Mapping[str, Package] | None = None) -> Subject:
    """Return a cell as the subject of an audit. `scans` are read already, by distribution.

    Raises FetchError, WheelError, BaseError, StoreError.
    """
    scans_by_name = _packages(locked, context, scans or {})
    declared = cell.declarations
    packages: list[Package] = []
    excused: frozenset[str] = frozenset()
    for wheel in locked.wheels:
        package, left_out = _without_losers(scans_by_name[wheel.name], locked)
        modules, starts = declared.imports.get(wheel.name, ()), declared.entry_points.get(wheel.name, ())
        packages.append(replace(package, imports=modules, entry_points=starts))
        excused |= left_out
    return Subject(
        name=locked.cell,
        packages=tuple(packages),
        system=_with_declared_libraries(scan_system(locked, context), locked, cell, context),
        python=locked.python,
        gpus=cell.gpus,
        driver=locked.gpu.driver if locked.gpu else None,
        cuda=cell.cuda_version is not None,
        excused=excused,
        omits=declared.omits,
        modules=WheelModules(locked, context.store),
    )


def blobs(locked: Lock, store: Store) -> dict[str, str]:
    """Return the digests of all blobs that the store keeps for the cell's audit, with a description of each."""
    descriptions = {
        scan.recorded_blob(store, wheel, locked.python): f"the scan of {wheel.file.filename}" for wheel in locked.wheels
    }
    descriptions[SYSTEMS.get(store, system_key(locked))] = f"the scan of base {locked.base.name}"
    descriptions[LOCK_MODULES.get(store, modules_key(locked))] = f"the imports of {locked.cell}"
    return {blob.digest: description for blob, description in descriptions.items() if blob}


def known_system(locked: Lock, store: Store) -> SystemLibraries | None:
    """Return the scan of the cell's base; None if the store lacks it."""
    data = SYSTEMS.read(store, system_key(locked))
    return None if data is None else facts.system(data)


def stored_scans(wheels: Iterable[LockedWheel], python: str, store: Store) -> dict[str, Package]:
    """Return the scans that the store has of these wheels, by distribution."""
    recorded = {wheel.name: scan.recorded_scan(store, wheel, python) for wheel in wheels}
    return {name: package for name, package in recorded.items() if package}


def _packages(locked: Lock, context: Context, scans: Mapping[str, Package]) -> dict[str, Package]:
    """Return the scans of all wheels, by distribution."""
    unread = [wheel for wheel in locked.wheels if wheel.name not in scans]
    packages = {**scans, **stored_scans(unread, locked.python, context.store)}
    if missing := tuple(wheel for wheel in unread if wheel.name not in packages):
        required = replace(locked, wheels=missing)
        with closing(inputs.fetch_each(required, context)) as arrivals:
            packages |= _read(
                arrivals, locked.python, context.store, f"reading {counted(len(missing), 'wheel')}", context.progress
            )
    return packages


def _read(
    wheels: Iterable[LockedWheel], python: str, store: Store, text: str, progress: Progress
) -> dict[str, Package]:
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="read")
    try:
        with timed(progress, text):
            futures = {wheel.name: pool.submit(scan.scan_wheel, store, wheel, python) for wheel in wheels}
            return {name: future.result() for name, future in futures.items()}
    finally:
        pool.shutdown(cancel_futures=True)


def _without_losers(package: Package, locked: Lock) -> tuple[Package, frozenset[str]]:
    """The package without the files that others' take the place of, and the paths of those."""
    site = site_packages(locked.python)
    gone = ownership.left_out(locked, package.name, (absolute(path, site) for path in package.files))
    left_out = frozenset(relative(path, site) for path in gone)
    kept_files = {path: file for path, file in package.files.items() if path not in left_out}
    return (replace(package, files=kept_files) if left_out else package), left_out


def scan_system(locked: Lock, context: Context) -> SystemLibraries:
    """Return the scan of the cell's base; the store remembers it. Raises as `file_tree.tree`."""
    if (stored_system := known_system(locked, context.store)) is not None:
        return stored_system
    root = file_tree.tree(locked.foundation, context)
    system_libraries = libraries.from_directories(
        root, environment=layers.environment(locked), interpreter=locked.interpreter.path
    )
    tree = Disk(root)
    system_libraries = replace(system_libraries, debs=system.installed(tree), release=system.release(tree))
    SYSTEMS.write(context.store, system_key(locked), facts.packed(system_libraries))
    return system_libraries


def _with_declared_libraries(
    system_libraries: SystemLibraries, locked: Lock, cell: Cell, context: Context
) -> SystemLibraries:
    """Return the system with the libraries of the lock's `ldconfig`, which the loader takes before the base's own.

    Only those that LD_LIBRARY_PATH leads to come before them. Raises LockError as `loader.libraries`, with the line of
    the matrix.
    """
    if not locked.ldconfig:
        return system_libraries
    site = site_packages(locked.python)
    preloaded = {
        name for name, path in system_libraries.paths.items() if path.rpartition("/")[0] in system_libraries.preloaded
    }
    added: dict[str, LoaderLibrary] = {}
    try:
        declared = loader.libraries(locked, context.store, file_tree.tree(locked.foundation, context))
    except LockError as error:
        error.where = cell.ldconfig_places.get(str(error.where), error.where)
        raise
    for library in declared:
        if library.name not in preloaded:
            added.setdefault(library.name, library)
    paths = {name: relative(library.real, site) if library.wheel else library.path for name, library in added.items()}
    files = {name: library.file for name, library in added.items()}
    return replace(
        system_libraries, libraries={**system_libraries.libraries, **files}, paths={**system_libraries.paths, **paths}
    )


def system_key(locked: Lock) -> str:
    searched = layers.environment(locked).get("LD_LIBRARY_PATH", "")
    return digest_of_json(
        [facts.FACTS_FORMAT, file_tree.tree_key(locked.foundation), locked.interpreter.path, searched]
    )


def known_scans(locked: Lock, store: Store) -> dict[str, bytes]:
    """Return the store's scans of the lock's wheels and base by key; equal scans are equal bytes on every machine.

    With them, neither an audit nor the check for file conflicts needs the wheels.
    """
    scans = {key: cache.read(store, key) for cache, key in scan_keys(locked)}
    return {key: data for key, data in sorted(scans.items()) if data is not None}


def import_scans(locked: Lock, store: Store, keys: Container[str], bring: Callable[[str], bytes | None]) -> None:
    """Import the scans of the lock's wheels and base that are in `keys` and that the store lacks.

    `bring` returns the scan for a key, or None; its result is trusted and stored. Its exceptions propagate, and the
    scans imported before stay.
    """
    lacking = [(cache, key) for cache, key in scan_keys(locked) if key in keys and cache.get(store, key) is None]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="facts") as pool:
        fetched = pool.map(bring, [key for _, key in lacking])
        for (cache, key), data in zip(lacking, fetched, strict=True):
            if data is not None:
                cache.write(store, key, data)


def scan_keys(locked: Lock) -> Iterator[tuple[BlobCache, str]]:
    """Yield cache and key of every record that an audit of the cell reads."""
    for wheel in locked.distinct_wheels:
        yield scan.SCANS, scan.scan_key(wheel, locked.python)
    for environment in locked.environments:
        yield LOCK_MODULES, modules_key(environment.lock)
    yield SYSTEMS, system_key(locked)
