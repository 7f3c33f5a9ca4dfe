"""Export and import of scans: a store's scans of a cell's wheels and base as bytes, by the keys under which another
store keeps them.

With them, neither an audit nor the check for file conflicts needs the wheels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

from imagegen.audit import facts
from imagegen.audit.model import Package, Subject, SystemLibraries
from imagegen.core.context import Context
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache
from imagegen.core.text import counted
from imagegen.image import inputs, layers
from imagegen.image.inventory import system
from imagegen.image.inventory.disk import Disk
from imagegen.image.layers import ownership, scan
from imagegen.image.layers.install import absolute, relative, site_packages
from imagegen.image.layers.plan import digest_of_json
from imagegen.plan.lock.model import Lock, LockedWheel
from imagegen.plan.matrix.model import Cell

_AT_ONCE = 8


def known_scans(locked: Lock, store: Store) -> dict[str, bytes]:
    """Return the store's scans of the lock's wheels and base by key; the same scans give the same bytes on every
    machine.
    """
    found = {key: cache.read(store, key) for cache, key in _keys(locked)}
    return {key: data for key, data in sorted(found.items()) if data is not None}


def import_scans(locked: Lock, store: Store, named: Container[str], bring: Callable[[str], bytes | None]) -> None:
    """Import the scans of the lock's wheels and base that are in `named` and that the store lacks.

    `bring` returns the scan for a key, or None; its result is trusted and stored. Its exceptions propagate, and the
    scans imported before stay.
    """
    lacking = [(cache, key) for cache, key in _keys(locked) if key in named and cache.get(store, key) is None]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="facts") as pool:
        found = pool.map(bring, [key for _, key in lacking])
        for (cache, key), data in zip(lacking, found, strict=True):
            if data is not None:
                cache.write(store, key, data)


def _keys(locked: Lock) -> Iterator[tuple[BlobCache, str]]:
    """Yield cache and key of every record that an audit of the cell reads."""
    for wheel in locked.wheels:
        yield scan.SCANS, scan.scan_key(wheel, locked.python)
    yield SYSTEMS, system_key(locked)


# A cell's lock as the subject of an audit: its wheels as they would be installed, on the base, for the cell's GPUs.
#
# What a build has seen of the wheels while it made layers of them is remembered by the store. The others are fetched
# and read, and no layer is made.

SYSTEMS = BlobCache("system")


def subject(locked: Lock, cell: Cell, context: Context) -> Subject:
    """Return a cell as the subject of an audit. Raises FetchError, WheelError, BaseError, StoreError."""
    known = _packages(locked, context)
    declared = cell.declarations
    packages: list[Package] = []
    excused: frozenset[str] = frozenset()
    for wheel in locked.wheels:
        package, left_out = _without_losers(known[wheel.name], locked)
        modules, starts = declared.imports.get(wheel.name, ()), declared.entry_points.get(wheel.name, ())
        packages.append(replace(package, imports=modules, entry_points=starts))
        excused |= left_out
    return Subject(
        name=locked.cell,
        packages=tuple(packages),
        system=_system(locked, context),
        python=locked.python,
        gpus=cell.gpus,
        driver=locked.gpu.driver if locked.gpu else None,
        cuda=cell.cuda_version is not None,
        excused=excused,
        omits=declared.omits,
    )


def blobs(locked: Lock, store: Store) -> dict[str, str]:
    """Return the digests of all blobs that the store keeps for the cell's audit, with a description of each."""
    found = {
        scan.recorded_blob(store, wheel, locked.python): f"the scan of {wheel.file.filename}" for wheel in locked.wheels
    }
    found[SYSTEMS.get(store, system_key(locked))] = f"the scan of base {locked.base.name}"
    return {blob.digest: what for blob, what in found.items() if blob}


def known_system(locked: Lock, store: Store) -> SystemLibraries | None:
    """Return the scan of the cell's base, where the store has it."""
    data = SYSTEMS.read(store, system_key(locked))
    return None if data is None else facts.system(data)


def _packages(locked: Lock, context: Context) -> dict[str, Package]:
    """Name -> facts, of every wheel."""
    known = {wheel.name: scan.recorded_scan(context.store, wheel, locked.python) for wheel in locked.wheels}
    missing = tuple(wheel for wheel in locked.wheels if known[wheel.name] is None)
    found = {name: package for name, package in known.items() if package}
    if missing:
        required = replace(locked, wheels=missing)
        with closing(inputs.fetch_each(required, context)) as arrivals:
            found |= _read(
                arrivals, locked.python, context.store, f"reading {counted(len(missing), 'wheel')}", context.progress
            )
    return found


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


def _system(locked: Lock, context: Context) -> SystemLibraries:
    if (known := known_system(locked, context.store)) is not None:
        return known
    root = inputs.tree(locked.foundation, context)
    found = system.from_directories(root, environment=layers.environment(locked), interpreter=locked.interpreter.path)
    tree = Disk(root)
    found = replace(found, debs=system.installed(tree), release=system.release(tree))
    SYSTEMS.write(context.store, system_key(locked), facts.packed(found))
    return found


def system_key(locked: Lock) -> str:
    searched = layers.environment(locked).get("LD_LIBRARY_PATH", "")
    return digest_of_json([facts.FACTS_FORMAT, inputs.tree_key(locked.foundation), locked.interpreter.path, searched])
