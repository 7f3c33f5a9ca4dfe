"""Fetch locked Debian packages by hash: from the mirror, else from snapshots of the archive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from urllib.parse import quote

from imagegen.core.config import Settings, archive_variable
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, PackagesGoneError
from imagegen.core.net import Client, Missing, MissingFiles, NotFoundError, UnreachableError
from imagegen.core.progress import Meter
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import redact
from imagegen.image.base.mirrors import roots, variable
from imagegen.lock.distributions import archives
from imagegen.lock.foundation import LockedBase, LockedDeb, LockedPackages
from imagegen.oci.documents import digest_of
from imagegen.oci.registry.mirror import Mirror

Locked = LockedBase | LockedPackages

_CONNECTIONS = 6
_GIVEN = Cache("deb", dict[str, str])
PACKAGES = "application/vnd.imagegen.mirror.debian-packages.v1"  # artifact of a private mirror that lists packages


def fetch(locked: Locked, context: Context) -> None:
    """Bring every package of `locked` into the store, by its hash.

    Raises PackagesGoneError, which names all packages that no mirror has, and MissingFiles, which names all files of
    mirrors that cannot be reached or serve other bytes than the lock names. Files fetched before stay in the store.
    """
    required = lacking(locked, context.store)
    if not required:
        return
    served = roots({deb.archive: address_of(locked, deb.archive) for deb in required}, context.settings)
    owner = title(locked)
    total = sum(deb.size for deb in required)
    with (
        Client(context.settings) as client,
        context.progress.meter(f"{len(required)} packages of {owner}", total) as meter,
    ):
        required = _not_mirrored(required, locked, client, context.store, context.settings, meter)

        def from_mirror(deb: LockedDeb) -> FetchError | None:
            try:
                _download(client, f"{served[deb.archive]}/{quote(deb.path)}", deb, context.store, meter)
            except FetchError as error:
                return error
            return None

        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            try:
                errors = dict(zip(required, pool.map(from_mirror, required), strict=True))
            except BaseException:
                client.close()  # stops the other threads, as after a full disk or Ctrl-C
                raise
        if all(error is None or isinstance(error, NotFoundError) for error in errors.values()):
            gone = [deb for deb, error in errors.items() if error]
            if not gone:
                return
            context.progress.say(f"{len(gone)} packages have left the mirror; asking the archive's snapshots")
            gone, why = _from_snapshot(gone, locked, client, context.store, meter)
            if not gone:
                return
            raise PackagesGoneError(
                f"{len(gone)} packages of {owner} are gone: " + ", ".join(f"{deb.name} {deb.version}" for deb in gone),
                why=f"newer ones have replaced them on the mirror; {why}",
                fix="lock only the base again, with the packages of today: imagegen lock CELL --upgrade-base",
            )
    failed = {deb: error for deb, error in errors.items() if error}
    reasons = {  # without the package's address if the mirror is at fault, so that many packages give one reason
        deb: f"{redact(served[deb.archive])}: {error.why}" if isinstance(error, UnreachableError) else error.summary
        for deb, error in failed.items()
    }
    raise MissingFiles([missing(deb, reason) for deb, reason in reasons.items()], context.store.root)


def title(locked: Locked) -> str:
    """Return the name of the packages' owner in messages."""
    return f"base {locked.name}" if isinstance(locked, LockedBase) else "the layer above the base"


def address_of(locked: Locked, archive: str) -> str:
    """Return the official address of an archive that packages are from; "" of one that has a name."""
    listed = () if isinstance(locked, LockedBase) else locked.archives
    return next((entry.address for entry in listed if entry.archive == archive and entry.address), "")


def lacking(locked: Locked, store: Store) -> list[LockedDeb]:
    """Return the packages that the store has not, or not from an archive.

    A package's scripts run as root when the base is made. So that a lock with foreign hashes cannot pass off a package
    as a wheel, and then install it, a package counts only once a mirror has given it.
    """
    return [deb for deb in locked.debs if not (store.has(deb.digest, deb.size) and _GIVEN.get(store, deb.digest))]


def listing(debs: Sequence[LockedDeb]) -> str:
    """The name under which a private mirror lists these packages as packages of Debian."""
    return f"debian-{digest_of(json.dumps(sorted(deb.digest for deb in debs)).encode())[7:23]}"


def _not_mirrored(
    required: list[LockedDeb], locked: Locked, client: Client, store: Store, settings: Settings, meter: Meter
) -> list[LockedDeb]:
    """Return the packages that the user's own mirror lacks. Only packages that it lists count."""
    mirror = Mirror.of(settings, client)
    listed = mirror.listed(listing(locked.debs)) if mirror else None
    if not mirror or listed is None or listed.kind != PACKAGES:
        return required
    mirrored = {blob.digest for _, blob in listed.parts}
    lacking_debs = []
    for deb in required:
        if deb.digest in mirrored and mirror.take(deb.digest, deb.size, store, meter):
            _GIVEN.put(store, deb.digest, {"archive": deb.archive})
        else:
            lacking_debs.append(deb)
    return lacking_debs


def missing(deb: LockedDeb, *tried: str) -> Missing:
    """Return the package as a file that the store lacks."""
    is_named = deb.archive in archives()
    variable_name = archive_variable(deb.archive) if is_named else variable(f"http://{deb.archive}")
    fix = f"name a mirror of {deb.archive} that can be reached: {variable_name}"
    return Missing(deb.path.rpartition("/")[2], deb.sha256, tried, fix)


def _from_snapshot(
    debs: Sequence[LockedDeb], locked: Locked, client: Client, store: Store, meter: Meter
) -> tuple[list[LockedDeb], str]:
    """The packages that the archives' snapshots lack too, and why."""
    lacking_debs = list(debs)
    for name in sorted({deb.archive for deb in debs}):
        if name not in archives():
            return lacking_debs, f"{name} keeps no snapshots that are known"
        then = f"{snapshots(name)}/{snapshot_time(locked, name)}"
        try:
            with client.impatient() as asking:
                asking.get(f"{snapshots(name)}/")
            for deb in debs:  # one after the other, since the archive limits the rate
                if deb.archive == name:
                    with suppress(NotFoundError):
                        _download(client, f"{then}/{quote(deb.path)}", deb, store, meter)
                        lacking_debs.remove(deb)
        except FetchError as error:
            return lacking_debs, f"the archive's snapshots cannot be reached ({error.why or error.what})"
    return lacking_debs, "the archive's snapshots do not have them either"


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
        newest = max(entry.date for entry in locked.archives if entry.archive == archive)
    moment = datetime.fromisoformat(newest) + timedelta(hours=12)
    return moment.strftime("%Y%m%dT%H%M%SZ")


def _download(client: Client, url: str, deb: LockedDeb, store: Store, meter: Meter) -> None:
    client.download(url, store, sha256=deb.sha256, size=deb.size, meter=meter, anew=True)
    _GIVEN.put(store, deb.digest, {"archive": deb.archive})
