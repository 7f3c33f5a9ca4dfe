"""Locked packages, into the store: from the mirror, else from the snapshots that the archive keeps of its past."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from urllib.parse import quote

from imagegen.core.config import Settings, archive_variable
from imagegen.core.errors import FetchError, PackagesGoneError
from imagegen.core.net import Client, Missing, MissingFiles, NotFoundError, UnreachableError
from imagegen.core.progress import Meter, Progress
from imagegen.core.registry.mirror import Mirror
from imagegen.core.store import Store, digest_of
from imagegen.core.text import redact
from imagegen.image.base.mirrors import roots, variable
from imagegen.plan.distributions import archives
from imagegen.plan.lock.base import Deb, LockedBase, LockedPackages

Locked = LockedBase | LockedPackages

_CONNECTIONS = 6
_RECORD = "deb"
PACKAGES = "application/vnd.imagegen.mirror.debian-packages.v1"  # artifact of one's own mirror that lists packages


def fetch(locked: Locked, store: Store, settings: Settings, progress: Progress) -> None:
    """Bring every package of `locked` into the store, by its hash.

    Raises PackagesGoneError, which names all packages that no mirror has, and MissingFiles, which names all files of
    mirrors that cannot be reached or serve other bytes than the lock names. Files fetched before stay in the store.
    """
    wanted = lacking(locked, store)
    if not wanted:
        return
    served = roots({deb.archive: address_of(locked, deb.archive) for deb in wanted}, settings)
    what = title(locked)
    total = sum(deb.size for deb in wanted)
    with Client(settings) as client, progress.meter(f"{len(wanted)} packages of {what}", total) as meter:
        wanted = _not_mirrored(wanted, locked, client, store, settings, meter)

        def from_mirror(deb: Deb) -> FetchError | None:
            try:
                _download(client, f"{served[deb.archive]}/{quote(deb.path)}", deb, store, meter)
            except FetchError as error:
                return error
            return None

        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            try:
                errors = dict(zip(wanted, pool.map(from_mirror, wanted), strict=True))
            except BaseException:
                client.close()  # a full disk or Ctrl-C is enough: the other threads stop
                raise
        if all(error is None or isinstance(error, NotFoundError) for error in errors.values()):
            gone = [deb for deb, error in errors.items() if error]
            if not gone:
                return
            progress.say(f"{len(gone)} packages have left the mirror; asking the archive's snapshots")
            gone, why = _from_snapshot(gone, locked, client, store, meter)
            if not gone:
                return
            raise PackagesGoneError(
                f"{len(gone)} packages of {what} are gone: " + ", ".join(f"{deb.name} {deb.version}" for deb in gone),
                why=f"newer ones have replaced them on the mirror; {why}",
                fix="lock the base alone again, with the packages of today: imagegen lock CELL --upgrade-base",
            )
    failed = {deb: error for deb, error in errors.items() if error}
    raise MissingFiles([missing(deb, _reason(error, served[deb.archive])) for deb, error in failed.items()], store.root)


def title(locked: Locked) -> str:
    """Return what messages call the packages' owner."""
    return f"base {locked.name}" if isinstance(locked, LockedBase) else "the layer above the base"


def address_of(locked: Locked, archive: str) -> str:
    """Return the official address of an archive that packages are from; "" of one that has a name."""
    listed = () if isinstance(locked, LockedBase) else locked.archives
    return next((each.address for each in listed if each.archive == archive and each.address), "")


def lacking(locked: Locked, store: Store) -> list[Deb]:
    """Return the packages that the store has not, or not from an archive.

    A package's scripts run as root when the base is made. So that a lock with foreign hashes cannot pass off a package
    as a wheel, and then install it, a package counts only once a mirror has given it.
    """
    return [deb for deb in locked.debs if not (store.has(deb.digest, deb.size) and store.recall(_RECORD, deb.digest))]


def listing(debs: Sequence[Deb]) -> str:
    """The name under which one's own mirror lists these packages as packages of Debian."""
    return f"debian-{digest_of(json.dumps(sorted(deb.digest for deb in debs)).encode())[7:23]}"


def _not_mirrored(
    wanted: list[Deb], locked: Locked, client: Client, store: Store, settings: Settings, meter: Meter
) -> list[Deb]:
    """Return the packages that the user's own mirror lacks. Only what is listed there as a package counts."""
    mirror = Mirror.of(settings, client)
    listed = mirror.listed(listing(locked.debs)) if mirror else None
    if not mirror or listed is None or listed.kind != PACKAGES:
        return wanted
    known = {blob.digest for _, blob in listed.parts}
    left = []
    for deb in wanted:
        if deb.digest in known and mirror.take(deb.digest, deb.size, store, meter):
            store.remember(_RECORD, deb.digest, {"archive": deb.archive})
        else:
            left.append(deb)
    return left


def missing(deb: Deb, *tried: str) -> Missing:
    """Return the package as a file that the store lacks."""
    named = deb.archive in archives()
    own = archive_variable(deb.archive) if named else variable(f"http://{deb.archive}")
    fix = f"name a mirror of {deb.archive} that can be reached: {own}"
    return Missing(deb.path.rpartition("/")[2], deb.sha256, tried, fix)


def _reason(error: FetchError, root: str) -> str:
    """Return the reason; without the package's address if the mirror is at fault, so that many packages give one
    reason.
    """
    if isinstance(error, UnreachableError):
        return f"{redact(root)}: {error.why}"
    return f"{error.what}: {error.why}"


def _from_snapshot(
    debs: Sequence[Deb], locked: Locked, client: Client, store: Store, meter: Meter
) -> tuple[list[Deb], str]:
    """The packages that the archives' snapshots lack too, and why."""
    left = list(debs)
    for name in sorted({deb.archive for deb in debs}):
        if name not in archives():
            return left, f"{name} keeps no snapshots that are known"
        then = f"{snapshots(name)}/{snapshot_time(locked, name)}"
        try:
            with client.impatient() as asking:
                asking.get(f"{snapshots(name)}/")
            for deb in debs:  # one after the other: the archive limits the rate
                if deb.archive == name:
                    with suppress(NotFoundError):
                        _download(client, f"{then}/{quote(deb.path)}", deb, store, meter)
                        left.remove(deb)
        except FetchError as error:
            return left, f"the archive's snapshots cannot be reached ({error.why or error.what})"
    return left, "the archive's snapshots do not have them either"


def snapshots(archive: str) -> str:
    """Return the address below which an archive lies as it was."""
    return archives()[archive].snapshots


def snapshot_time(locked: Locked, archive: str) -> str:
    """Return the time, as snapshot archives write it, at which one surely held the packages of `archive`.

    Debian's answers with its last copy before that time. A copy is taken some hours after a Release file is dated, and
    a package stays for more than a day after it has been replaced: hence half a day later.
    """
    if isinstance(locked, LockedBase):
        newest = max(date for suite, date in locked.archives.items() if suite.partition("/")[0] == archive)
    else:
        newest = max(each.date for each in locked.archives if each.archive == archive)
    moment = datetime.fromisoformat(newest) + timedelta(hours=12)
    return moment.strftime("%Y%m%dT%H%M%SZ")


def _download(client: Client, url: str, deb: Deb, store: Store, meter: Meter) -> None:
    client.download(url, store, sha256=deb.sha256, size=deb.size, meter=meter, anew=True)
    store.remember(_RECORD, deb.digest, {"archive": deb.archive})
