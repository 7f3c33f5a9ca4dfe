"""Bringing all that a lock names into the store: wheels fetched by hash, and those made from their sdists."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from imagegen import base
from imagegen.config import Settings
from imagegen.errors import ReproducibilityError
from imagegen.lock import sdist
from imagegen.lock.model import Lock, LockedBase, LockedWheel
from imagegen.lock.sources import Finder, Wanted, in_parallel, missing
from imagegen.net import Client, MissingFiles
from imagegen.progress import Progress
from imagegen.store import Store


def fetch(lock: Lock, store: Store, settings: Settings, progress: Progress) -> None:
    """Bring every wheel of the lock into the store. Raises as `fetch_each`."""
    for _ in fetch_each(lock, store, settings, progress):
        pass


def fetch_each(lock: Lock, store: Store, settings: Settings, progress: Progress) -> Generator[LockedWheel]:
    """Each wheel of the lock as soon as it is in the store: what is there first, then the others in the lock's order.

    Raises MissingFiles at the end, naming all files that could not be had and every source that was tried for each.
    """
    absent: list[LockedWheel] = []
    for wheel in lock.wheels:
        if store.intact(wheel.file.digest, wheel.file.size):  # else a bad disk would be taken for a bad wheel
            yield wheel
        else:
            absent.append(wheel)
    if not absent:
        return
    workshop = workshop_of(lock.base, store, settings, progress)
    total = sum(wanted.file.size for wheel in absent for wanted in _parts(wheel))
    with (
        Client(settings) as client,
        progress.meter(f"fetching {len(absent)} wheel{'s' if len(absent) != 1 else ''}", total) as meter,
    ):
        finder = Finder(client, store, settings, meter)
        yield from in_parallel([partial(_obtain, wheel, finder, workshop) for wheel in absent], client)


def workshop_of(locked: LockedBase, store: Store, settings: Settings, progress: Progress) -> sdist.Workshop:
    """Where sdists become wheels: the lock's base, unpacked when the first one needs it."""
    return sdist.Workshop(
        key=base.key(locked),
        interpreter=locked.interpreter,
        rootfs=lambda: base.rootfs(locked, store, settings, progress),
        store=store,
        progress=progress,
    )


def _parts(wheel: LockedWheel) -> list[Wanted]:
    """The files that an index has to give for this wheel."""
    if wheel.sdist is None:
        return [Wanted(wheel.name, wheel.file)]
    return [
        Wanted(wheel.name, wheel.sdist.file),
        *(Wanted(each.name, each.file) for each in wheel.sdist.build_requires),
    ]


def complete(error: MissingFiles, lock: Lock, store: Store) -> MissingFiles:
    """`error` with all else that the store lacks of the lock: wheels, sdists, build requirements, Debian packages.

    For a build that ends at its first error, so that a machine without network hears once what to bring.
    """
    parts = (part for wheel in lock.wheels if not store.has(wheel.file.digest) for part in _parts(wheel))
    lacking = [missing(part) for part in parts if not store.has(part.file.digest)]
    return error.also([*lacking, *base.missing(lock.base, store)])


def _obtain(wheel: LockedWheel, finder: Finder, workshop: sdist.Workshop) -> LockedWheel:
    lacking: MissingFiles | None = None
    for wanted in _parts(wheel):
        try:
            finder.fetch(wanted)
        except MissingFiles as error:
            lacking = lacking.also(error.files) if lacking else error
    if lacking:
        raise lacking
    if wheel.sdist:
        built = sdist.build(wheel.name, wheel.version, wheel.sdist, workshop)
        if (built.sha256, built.size) != (wheel.file.sha256, wheel.file.size):
            raise ReproducibilityError(
                f"{wheel.sdist.file.filename} no longer gives the wheel that the lock names",
                where=wheel.file.filename,
                why=f"expected sha256 {wheel.file.sha256}, got {built.sha256}",
                fix="if the base moved on purpose, lock again",
            )
    return wheel
