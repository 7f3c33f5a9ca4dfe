"""The packages of a locked base, into the store: from the mirror, else from Debian's archive of its own past."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from urllib.parse import quote

from imagegen.base.mirrors import mirrors
from imagegen.base.model import Deb, LockedBase
from imagegen.config import Settings
from imagegen.errors import GoneError
from imagegen.net import Client, NotFoundError, UnreachableError
from imagegen.progress import Meter, Progress
from imagegen.store import Store

_SNAPSHOTS = "https://snapshot.debian.org/archive"
_CONNECTIONS = 6


def fetch(locked: LockedBase, store: Store, settings: Settings, progress: Progress) -> None:
    """Every package of `locked` is in the store by its hash afterwards.

    Raises GoneError that names all packages that are gone everywhere, and FetchError when a mirror cannot be reached
    or serves other bytes than the lock names. Packages fetched before the error stay in the store.
    """
    wanted = [deb for deb in locked.debs if not store.has(deb.digest, deb.size)]
    if not wanted:
        return
    roots = mirrors(settings)
    client = Client(settings)
    with progress.meter(f"{len(wanted)} packages of base {locked.name}", sum(deb.size for deb in wanted)) as meter:

        def from_mirror(deb: Deb) -> bool:
            return _download(client, f"{roots[deb.archive]}/{quote(deb.path)}", deb, store, meter)

        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            try:
                gone = [deb for deb, found in zip(wanted, pool.map(from_mirror, wanted), strict=True) if not found]
            except BaseException:
                client.close()  # one failure or Ctrl-C is enough: the other threads stop
                raise
        if gone:
            progress.say(f"{len(gone)} packages have left the mirror; asking Debian's snapshot archive")
            gone, why = _from_snapshot(gone, locked, client, store, meter)
    if gone:
        raise GoneError(
            f"{len(gone)} packages of base {locked.name} are gone: "
            + ", ".join(f"{deb.name} {deb.version}" for deb in gone),
            why=f"newer ones have replaced them on the mirror; {why}",
            fix="lock the base alone again, with the packages of today: imagegen lock CELL --upgrade-base",
        )


def _from_snapshot(
    debs: Sequence[Deb], locked: LockedBase, client: Client, store: Store, meter: Meter
) -> tuple[list[Deb], str]:
    """The packages that the snapshot archive lacks too, and why."""
    try:
        client.impatient().get(f"{_SNAPSHOTS}/")
    except (NotFoundError, UnreachableError) as error:
        return list(debs), f"Debian's snapshot archive cannot be reached ({error.why or error.what})"
    missing = []
    for deb in debs:  # one after the other: the archive limits the rate
        url = f"{_SNAPSHOTS}/{deb.archive}/{snapshot_time(locked, deb.archive)}/{quote(deb.path)}"
        if not _download(client, url, deb, store, meter):
            missing.append(deb)
    return missing, "Debian's snapshot archive does not have them either"


def snapshot_time(locked: LockedBase, archive: str) -> str:
    """The moment, as the snapshot archive writes it, at which it surely held the packages of `archive`.

    The archive answers with its last copy before the moment asked for. A copy is taken some hours after a Release
    file is dated, and a package stays for more than a day after it has been replaced: hence half a day later.
    """
    newest = max(date for suite, date in locked.archives.items() if suite.partition("/")[0] == archive)
    moment = datetime.fromisoformat(newest) + timedelta(hours=12)
    return moment.strftime("%Y%m%dT%H%M%SZ")


def _download(client: Client, url: str, deb: Deb, store: Store, meter: Meter) -> bool:
    """Whether the source has the package; it is in the store then."""
    try:
        client.download(url, store, sha256=deb.sha256, size=deb.size, meter=meter)
    except NotFoundError:
        return False
    return True
