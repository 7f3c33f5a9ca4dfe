"""Mirrors of Debian's archives: from the settings, else from the host's own apt.

A lock names archives by their official addresses, or by a name that stands for these; never this machine's mirrors.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from urllib.parse import quote, urlsplit

from imagegen.core.config import APT_VARIABLE, Settings, archive_variable, mirror_name
from imagegen.core.context import Context
from imagegen.core.errors import BaseError, FetchError, PackagesGoneError
from imagegen.core.net import Client, Missing, MissingFiles, NotFoundError, UnreachableError
from imagegen.core.oci.types import digest_of
from imagegen.core.progress import Meter
from imagegen.core.registry.layout import Mirror
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import redact
from imagegen.plan.distributions import archives
from imagegen.plan.lock.foundation import LockedBase, LockedDeb, LockedPackages

_LABELS = {"Debian": "debian", "Debian-Security": "debian-security"}  # of Release files -> archive
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_FORMAT = "$(ORIGIN)\t$(LABEL)\t$(REPO_URI)"


def mirrors(names: Sequence[str], settings: Settings) -> dict[str, str]:
    """Return each archive's root (the directory that holds dists/ and pool/), without a slash at its end.

    `names` are names of archives; Ubuntu's official address serves where no mirror is named, Debian's are taken from
    the host's apt. Raises BaseError, naming the variables to set, when an archive's address is not known here.
    """
    found = {name: root for name in names if (root := _named(name, settings))}
    if unknown := [name for name in names if name not in found]:
        found |= {name: root for name, root in _of_host(settings).items() if name in unknown}
        unknown = [name for name in names if name not in found]
    if unknown:
        variables = " and ".join(map(archive_variable, unknown))
        raise BaseError(
            f"no mirror is known here for {' and '.join(unknown)}",
            code="base-mirror-unknown",
            why=f"{variables} not set, and the host's apt has no lists of such an archive (apt-get indextargets)",
            fix=f"set {variables} to the address of a mirror, the directory that holds dists/; "
            "on a Debian host, `apt-get update` is enough",
        )
    return {name: found[name].rstrip("/") for name in names}


def _named(name: str, settings: Settings) -> str | None:
    """The address that the settings name for an archive; of Ubuntu's also the official one."""
    if name in settings.archive_mirrors:
        return settings.archive_mirrors[name]
    address = archives()[name].address
    return served(address, settings) if address else None


def variable(uri: str) -> str:
    """Return the variable that names a mirror of an address's host: IMAGEGEN_APT_MIRROR_ARCHIVE_UBUNTU_COM."""
    return APT_VARIABLE + mirror_name(urlsplit(uri).netloc)


def served(uri: str, settings: Settings) -> str:
    """Return the address of an unnamed archive on this machine: its own, or the path below its host's mirror."""
    mirror = settings.apt_mirrors.get(mirror_name(urlsplit(uri).netloc))
    return f"{mirror.rstrip('/')}{urlsplit(uri).path}" if mirror else uri


def roots(uris: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return where each archive of `uris` (name -> official address) is served here. Raises BaseError as `mirrors`."""
    known = [name for name in uris if name in archives()]
    others = {name: served(uri, settings).rstrip("/") for name, uri in uris.items() if name not in known}
    return {**mirrors(known, settings), **others}


def _of_host(settings: Settings) -> dict[str, str]:
    try:
        command = ["apt-get", "indextargets", "--format", _FORMAT]
        done = subprocess.run(command, capture_output=True, text=True, env=host_env(settings), check=False)
    except FileNotFoundError:  # a host without apt
        return {}
    return parse_targets(done.stdout)


def parse_targets(text: str) -> dict[str, str]:
    """Return archive -> address, from lines of origin, label and address separated by tabs; the first of each wins.

    Only addresses that can be fetched from count: not cdrom: or mirror+... ones.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        origin, label, address = [*line.split("\t"), "", ""][:3]
        if origin == "Debian" and label in _LABELS and address.startswith(("http://", "https://", "file:/")):
            found.setdefault(_LABELS[label], address)
    return found


def host_env(settings: Settings) -> Mapping[str, str]:
    """Return the few variables that programs of the host get: where programs are, and the way to the network."""
    kept = {name: settings.env[name] for name in ("PATH", "TMPDIR") if name in settings.env}
    # apt reads only the small ones; other readers take both.
    proxies = {name: settings.env.get(name) or settings.env.get(name.upper()) for name in _PROXIES}
    return {"LC_ALL": "C.UTF-8", **kept, **{name: value for name, value in proxies.items() if value}}


# Locked packages, into the store: from the mirror, else from the snapshots that the archive keeps of its past.

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
    what = title(locked)
    total = sum(deb.size for deb in required)
    with (
        Client(context.settings) as client,
        context.progress.meter(f"{len(required)} packages of {what}", total) as meter,
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
                client.close()  # a full disk or Ctrl-C is enough: the other threads stop
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
                f"{len(gone)} packages of {what} are gone: " + ", ".join(f"{deb.name} {deb.version}" for deb in gone),
                why=f"newer ones have replaced them on the mirror; {why}",
                fix="lock the base alone again, with the packages of today: imagegen lock CELL --upgrade-base",
            )
    failed = {deb: error for deb, error in errors.items() if error}
    raise MissingFiles(
        [missing(deb, _reason(error, served[deb.archive])) for deb, error in failed.items()], context.store.root
    )


def title(locked: Locked) -> str:
    """Return what messages call the packages' owner."""
    return f"base {locked.name}" if isinstance(locked, LockedBase) else "the layer above the base"


def address_of(locked: Locked, archive: str) -> str:
    """Return the official address of an archive that packages are from; "" of one that has a name."""
    listed = () if isinstance(locked, LockedBase) else locked.archives
    return next((each.address for each in listed if each.archive == archive and each.address), "")


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
    """Return the packages that the user's own mirror lacks. Only what is listed there as a package counts."""
    mirror = Mirror.of(settings, client)
    listed = mirror.listed(listing(locked.debs)) if mirror else None
    if not mirror or listed is None or listed.kind != PACKAGES:
        return required
    known = {blob.digest for _, blob in listed.parts}
    left = []
    for deb in required:
        if deb.digest in known and mirror.take(deb.digest, deb.size, store, meter):
            _GIVEN.put(store, deb.digest, {"archive": deb.archive})
        else:
            left.append(deb)
    return left


def missing(deb: LockedDeb, *tried: str) -> Missing:
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
    return error.summary


def _from_snapshot(
    debs: Sequence[LockedDeb], locked: Locked, client: Client, store: Store, meter: Meter
) -> tuple[list[LockedDeb], str]:
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


def _download(client: Client, url: str, deb: LockedDeb, store: Store, meter: Meter) -> None:
    client.download(url, store, sha256=deb.sha256, size=deb.size, meter=meter, anew=True)
    _GIVEN.put(store, deb.digest, {"archive": deb.archive})
