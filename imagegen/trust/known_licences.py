"""Look up the licences of all packages of a lock in scans of layers and audits, else on the index.

For a wheel that this store has not scanned, the index may give the metadata without the wheel (PEP 658, or ranges of
the archive). It is not verified, so it is only used for the file that the lock pins.
"""

from __future__ import annotations

import email.parser
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from imagegen.audit.licence import read_licence
from imagegen.audit.model import Licence
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, package_index, wheel_metadata
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import counted
from imagegen.image.inventory.cell_subject import known_system
from imagegen.image.layers import scan
from imagegen.lock.model import LOCAL, Lock, LockedWheel
from imagegen.trust.licences import KnownLicences

_LICENCES = Cache("licence", Licence)
_THREADS = 8


def read_known_licences(lock: Lock, context: Context) -> KnownLicences:
    """Return the licences in the store and on the indexes; unknown ones are missing. Wheels are not fetched."""
    licences = with_system(lock, stored_licences([lock], context.store), context.store)
    missing = [
        wheel for wheel in lock.distinct_wheels if wheel.file.sha256 not in licences.wheels and _is_served(wheel)
    ]
    if not missing:
        return licences
    with timed(context.progress, f"asking indexes for the licences of {counted(len(missing), 'wheel')}"):
        return replace(
            licences, wheels={**licences.wheels, **_fetch_licences(missing, context.store, context.settings)}
        )


def stored_licences(locks: Iterable[Lock], store: Store) -> dict[str, Licence]:
    """Return the licences of wheels in the store, which come from scans or from an index, by the wheel's sha256."""
    wheels = {(wheel.file.sha256, lock.python): wheel for lock in locks for wheel in lock.distinct_wheels}
    licences: dict[str, Licence] = {}
    for (sha256, python), wheel in wheels.items():  # a wheel may be scanned for only one of several Pythons
        if sha256 not in licences and (licence := _recorded(wheel, python, store)):
            licences[sha256] = licence
    return licences


def with_system(lock: Lock, wheels: Mapping[str, Licence], store: Store) -> KnownLicences:
    """Return the licences of wheels together with the base's licences in the store."""
    system = known_system(lock, store)
    return KnownLicences(wheels, system.debs, system.release) if system else KnownLicences(wheels)


def _recorded(wheel: LockedWheel, python: str, store: Store) -> Licence | None:
    if package := scan.recorded_scan(store, wheel, python):
        return package.licence
    return _LICENCES.get(store, wheel.file.digest)


def _is_served(wheel: LockedWheel) -> bool:
    return not (wheel.sdist or wheel.original or wheel.build or wheel.file.index == LOCAL)


def _fetch_licences(wheels: Iterable[LockedWheel], store: Store, settings: Settings) -> dict[str, Licence]:
    with Client(settings).impatient() as client, ThreadPoolExecutor(_THREADS, thread_name_prefix="licences") as pool:
        answers = pool.map(lambda wheel: (wheel, _fetch_licence(wheel, client, settings)), wheels)
        fetched = {wheel: licence for wheel, licence in answers if licence}
    for wheel, licence in fetched.items():
        _LICENCES.put(store, wheel.file.digest, licence)
    return {wheel.file.sha256: licence for wheel, licence in fetched.items()}


def _fetch_licence(wheel: LockedWheel, client: Client, settings: Settings) -> Licence | None:
    """Return the licence in the index's metadata; None if the index cannot be reached or does not have the file."""
    url = package_index.url_of(wheel.file.index, settings)
    try:
        links = package_index.project(client, url, wheel.name) if url else []
        link = next((item for item in links if item.sha256 == wheel.file.sha256), None)
        raw = wheel_metadata.read(client, link) if link else None
    except FetchError:
        return None
    return None if raw is None else read_licence(email.parser.HeaderParser().parsestr(raw.decode(errors="replace")))
