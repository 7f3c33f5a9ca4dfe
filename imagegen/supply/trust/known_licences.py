"""Look up the licences of all packages of a lock: from scans of layers and audits, else from the index.

For a wheel that this store has never read, the index may give the metadata without the wheel (PEP 658, or ranges of the
archive). It is not verified, so only metadata of the very file that the lock pins is used.
"""

from __future__ import annotations

import email.parser
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from imagegen.audit.contents import stated
from imagegen.audit.model import Licence
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError
from imagegen.core.net import Client
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import counted
from imagegen.image.inventory.cell import known_system
from imagegen.image.layers import scan
from imagegen.plan.harvest import wheel_metadata
from imagegen.plan.lock import indexes
from imagegen.plan.lock.model import Lock, LockedWheel
from imagegen.supply.trust.sbom import KnownLicences

_LICENCES = Cache("licence", Licence)
_THREADS = 8


def read_known_licences(lock: Lock, context: Context) -> KnownLicences:
    """Return the licences that the store and the indexes know; unknown ones are missing. No wheel is fetched."""
    found = {wheel.file.sha256: licence for wheel in lock.wheels if (licence := _recalled(wheel, lock, context.store))}
    missing = [wheel for wheel in lock.wheels if wheel.file.sha256 not in found and _is_served(wheel)]
    if missing:
        with timed(context.progress, f"asking indexes for the licences of {counted(len(missing), 'wheel')}"):
            found |= _asked(missing, context.store, context.settings)
    system = known_system(lock, context.store)
    return KnownLicences(found, system.debs, system.release) if system else KnownLicences(found)


def _recalled(wheel: LockedWheel, lock: Lock, store: Store) -> Licence | None:
    if package := scan.recorded_scan(store, wheel, lock.python):
        return package.licence
    return _LICENCES.get(store, wheel.file.digest)


def _is_served(wheel: LockedWheel) -> bool:
    return not (wheel.sdist or wheel.build)


def _asked(wheels: Iterable[LockedWheel], store: Store, settings: Settings) -> dict[str, Licence]:
    with Client(settings).impatient() as client, ThreadPoolExecutor(_THREADS, thread_name_prefix="licences") as pool:
        answers = pool.map(lambda wheel: (wheel, _said(wheel, client, settings)), wheels)
        found = {wheel: licence for wheel, licence in answers if licence}
    for wheel, licence in found.items():
        _LICENCES.put(store, wheel.file.digest, licence)
    return {wheel.file.sha256: licence for wheel, licence in found.items()}


def _said(wheel: LockedWheel, client: Client, settings: Settings) -> Licence | None:
    """Return the index's metadata of the wheel; None if no index can be reached, or none has the file."""
    url = indexes.url_of(wheel.file.index, settings)
    try:
        links = indexes.project(client, url, wheel.name) if url else []
        link = next((each for each in links if each.sha256 == wheel.file.sha256), None)
        raw = wheel_metadata.read(client, link) if link else None
    except FetchError:
        return None
    return None if raw is None else stated(email.parser.HeaderParser().parsestr(raw.decode(errors="replace")))
