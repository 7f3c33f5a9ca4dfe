"""Debian's archives on this machine: the mirrors that serve them, and their files by hash.

Mirrors come from the settings, else from the host's own apt. A lock names archives by their official addresses, or by a
name that stands for these; never this machine's mirrors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

from imagegen.core import programs
from imagegen.core.config import APT_VARIABLE, Settings, archive_variable, mirror_name
from imagegen.core.context import Context
from imagegen.core.errors import BaseError, FetchError, Location, PackagesGoneError
from imagegen.core.net import Client, Missing, MissingFiles, NotFoundError, UnreachableError
from imagegen.core.progress import Meter
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import redact
from imagegen.image.base.image import inside
from imagegen.lock.distributions import archives
from imagegen.lock.foundation import LockedBase, LockedDeb, LockedPackages
from imagegen.oci.documents import digest_of
from imagegen.oci.registry.mirror import Mirror

_LABELS = {"Debian": "debian", "Debian-Security": "debian-security"}  # of Release files -> archive
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_FORMAT = "$(ORIGIN)\t$(LABEL)\t$(REPO_URI)"


def mirrors(names: Sequence[str], settings: Settings) -> dict[str, str]:
    """Return each archive's root (the directory that holds dists/ and pool/), without a slash at its end.

    `names` are names of archives; Ubuntu's official address serves where no mirror is named, Debian's are taken from
    the host's apt. Raises BaseError, naming the variables to set, when an archive's address is not known here.
    """
    addresses = {name: root for name in names if (root := _named(name, settings))}
    if unknown := [name for name in names if name not in addresses]:
        addresses |= {name: root for name, root in _of_host(settings).items() if name in unknown}
        unknown = [name for name in names if name not in addresses]
    if unknown:
        variables = " and ".join(map(archive_variable, unknown))
        raise BaseError(
            f"no mirror is known here for {' and '.join(unknown)}",
            code="base-mirror-unknown",
            why=f"{variables} not set, and the host's apt has no lists of such an archive (apt-get indextargets)",
            fix=f"set {variables} to the address of a mirror, the directory that holds dists/; "
            "on a Debian host, `apt-get update` is enough",
        )
    return {name: addresses[name].rstrip("/") for name in names}


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
    named_archives = [name for name in uris if name in archives()]
    unnamed = {name: served(uri, settings).rstrip("/") for name, uri in uris.items() if name not in named_archives}
    return {**mirrors(named_archives, settings), **unnamed}


def _of_host(settings: Settings) -> dict[str, str]:
    try:
        command = ["apt-get", "indextargets", "--format", _FORMAT]
        process = programs.run(command, capture_output=True, text=True, env=host_env(settings))
    except FileNotFoundError:  # a host without apt
        return {}
    return parse_targets(process.stdout)


def parse_targets(text: str) -> dict[str, str]:
    """Return archive -> address, from lines of origin, label and address separated by tabs; the first of each wins.

    Only addresses that can be fetched from count: not cdrom: or mirror+... ones.
    """
    addresses: dict[str, str] = {}
    for line in text.splitlines():
        origin, label, address = [*line.split("\t"), "", ""][:3]
        if origin == "Debian" and label in _LABELS and address.startswith(("http://", "https://", "file:/")):
            addresses.setdefault(_LABELS[label], address)
    return addresses


def host_env(settings: Settings) -> Mapping[str, str]:
    """Return the few variables that programs of the host get: where programs are, and the way to the network."""
    variables = {name: settings.env[name] for name in ("PATH", "TMPDIR") if name in settings.env}
    # apt reads only the small ones; other readers take both.
    proxies = {name: settings.env.get(name) or settings.env.get(name.upper()) for name in _PROXIES}
    return {"LC_ALL": "C.UTF-8", **variables, **{name: value for name, value in proxies.items() if value}}


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
    raise MissingFiles(
        [missing(deb, _reason(error, served[deb.archive])) for deb, error in failed.items()], context.store.root
    )


def title(locked: Locked) -> str:
    """Return the name of the packages' owner in messages."""
    return f"base {locked.name}" if isinstance(locked, LockedBase) else "the layer above the base"


def address_of(locked: Locked, archive: str) -> str:
    """Return the official address of an archive that packages are from; "" of one that has a name."""
    listed = () if isinstance(locked, LockedBase) else locked.archives
    return next(
        (entry.address for entry in listed if entry.archive == archive and entry.address),
        "",
    )


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


# The archives that an image's own apt is configured with, read from its file tree: one-line and deb822 form.
#
# The tree may be hostile: links are followed as inside it, and keyrings are read only from it. Source of the formats:
# sources.list(5). Entries that apt refuses are refused; unsupported addresses (cdrom:, file: of the image, mirror
# lists) are left out and reported.

_LIST, _PARTS = "etc/apt/sources.list", "etc/apt/sources.list.d"
_TRUSTED = ("etc/apt/trusted.gpg", "etc/apt/trusted.gpg.d")
_PREFERENCES = "etc/apt/preferences"
_LONGEST = 1 << 20  # bytes of a source file or keyring
_FIELD = re.compile(r"([A-Za-z0-9-]+):(.*)")
_URI = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~%+=@:-]+)*/?")
_SUITE = re.compile(r"/|\./|(?:\./)?[A-Za-z0-9][A-Za-z0-9._+~-]*(?:/[A-Za-z0-9][A-Za-z0-9._+~-]*)*/?")
_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{16,64}!?")
_NO = ("no", "false", "without", "off", "disable", "0")  # the words that mean no to apt (strutl.cc, StringToBool)


@dataclass(frozen=True)
class AptSuite:
    """One suite of one archive. A flat archive's suite ends in a slash, and it has no components."""

    uri: str  # as the image has it, without a slash at its end
    suite: str
    components: tuple[str, ...]
    signed_by: str  # path of a keyring, fingerprint, armored key; "": any of the image's trusted keys
    valid_until: bool  # whether the archive's own expiry date counts
    where: Location  # in the image


def parse_lines(text: str, file: str, architecture: str = "amd64") -> Iterator[AptSuite | str]:
    """Yield the enabled `deb` entries of a sources.list; the address of each unsupported one.

    Raises BaseError with file and line for an entry that apt would not take.
    """
    for number, written in enumerate(text.splitlines(), 1):
        where, line = Location(file, number), written.partition("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+\S+)*)", line)
        if match is None:
            raise _malformed(where, line)
        if match[1] == "deb-src":
            continue
        options: dict[str, str] = {}
        for word in (match[2] or "").split():
            name, equals, value = word.partition("=")
            if not equals:
                raise _malformed(where, line)
            options[name.rstrip("+-").lower()] = value
        if architecture in options.get("arch", architecture).split(","):
            yield from _entries(
                [match[3]], [match[4]], match[5].split(), options.get("signed-by", ""),
                options.get("check-valid-until", ""), architecture, where,
            )  # fmt: skip


def parse_deb822(text: str, file: str, architecture: str = "amd64") -> Iterator[AptSuite | str]:
    """Yield the entries of a file in deb822 form, as `parse_lines` does."""
    for where, fields in _stanzas(text, file):
        architectures = fields.get("architectures", "").split() or [architecture]
        enabled = fields.get("enabled", "yes").strip().lower() not in _NO
        if not enabled or "deb" not in fields.get("types", "").split() or architecture not in architectures:
            continue
        uris, suites = fields.get("uris", "").split(), fields.get("suites", "").split()
        if not uris or not suites:
            raise _malformed(where, "URIs or Suites are missing")
        components, signed_by = fields.get("components", "").split(), fields.get("signed-by", "")
        expiry = fields.get("check-valid-until", "")
        yield from _entries(uris, suites, components, signed_by, expiry, architecture, where)


def read_sources(tree: Path, architecture: str) -> tuple[list[AptSuite], list[str]]:
    """Return the entries of an image's tree, each once, and the addresses that cannot be fetched from.

    Raises BaseError for a source that apt would not take.
    """
    files = [_LIST, *(f"{_PARTS}/{path.name}" for path in _listed(tree, _PARTS, (".list", ".sources")))]
    suites: dict[tuple[str, str], AptSuite] = {}
    unsupported = []
    for file in files:
        parse = parse_deb822 if file.endswith(".sources") else parse_lines
        for entry in parse(_read(tree, file).decode(errors="replace"), f"/{file}", architecture):
            if isinstance(entry, str):
                unsupported.append(entry)
            elif (before := suites.get((entry.uri, entry.suite))) is not None:
                components = tuple(dict.fromkeys((*before.components, *entry.components)))
                signed_by = before.signed_by or entry.signed_by
                suites[entry.uri, entry.suite] = AptSuite(
                    entry.uri,
                    entry.suite,
                    components,
                    signed_by,
                    before.valid_until and entry.valid_until,
                    before.where,
                )
            else:
                suites[entry.uri, entry.suite] = entry
    return list(suites.values()), unsupported


def keys_of(entry: AptSuite, tree: Path) -> dict[str, bytes] | str:
    """Return the keyrings that may sign the entry's archive, by file name; or fingerprints among the trusted keys.

    Raises BaseError for a keyring that the image has not.
    """
    signed_by = entry.signed_by
    if "BEGIN PGP PUBLIC KEY BLOCK" in signed_by:
        return {"inline.asc": signed_by.encode()}
    words = signed_by.replace(",", " ").split()
    if words and all(word.startswith("/") for word in words):
        keyrings = {}
        for number, word in enumerate(words):
            content = _read(tree, word)
            if not content:
                raise BaseError(
                    f"the archive {entry.uri} has no keyring",
                    code="base-source-key-missing",
                    where=entry.where,
                    why=f"Signed-By names {word}, which the image does not hold",
                    fix="use an image that holds the archive's key",
                )
            keyrings[f"{number}.{'asc' if content.lstrip().startswith(b'-----BEGIN') else 'gpg'}"] = content
        return keyrings
    if all(_FINGERPRINT.fullmatch(word) for word in words):
        return ",".join(words)
    raise BaseError(
        f"the archive {entry.uri} names its keys in an unknown form",
        code="base-source-key-unsupported",
        where=entry.where,
        why=f"Signed-By: {signed_by[:200]}",
        fix="Signed-By holds paths, fingerprints or an armored key",
    )


def trusted_keys(tree: Path) -> dict[str, bytes]:
    """Return the keyrings that the image's apt trusts for every archive, by file name."""
    single, folder = _TRUSTED
    names = [f"{folder}/{path.name}" for path in _listed(tree, folder, (".gpg", ".asc"))]
    keyrings = {name.rpartition("/")[2]: _read(tree, name) for name in names}
    keyring = _read(tree, single)
    return keyrings | ({"trusted.gpg": keyring} if keyring else {})


def read_preferences(tree: Path) -> dict[str, bytes]:
    """Return the image's files of apt_preferences(5), by file name. They decide which version is installed."""
    folder = f"{_PREFERENCES}.d"
    names = [f"{folder}/{path.name}" for path in _listed(tree, folder, ("", ".pref")) if path.suffix in ("", ".pref")]
    preferences = {name.rpartition("/")[2]: _read(tree, name) for name in names}
    main_file = _read(tree, _PREFERENCES)
    return preferences | ({"00preferences": main_file} if main_file else {})


def _entries(
    uris: Iterable[str],
    suites: Iterable[str],
    components: Iterable[str],
    signed_by: str,
    valid_until: str,
    architecture: str,
    where: Location,
) -> Iterator[AptSuite | str]:
    components = tuple(components)
    names = [suite_name.replace("$(ARCH)", architecture) for suite_name in suites]
    for uri in (template.replace("$(ARCH)", architecture) for template in uris):
        if not uri.lower().startswith(("http://", "https://")):
            yield uri
            continue
        for suite in names:
            sound = _URI.fullmatch(uri) and _SUITE.fullmatch(suite) and all(map(_COMPONENT.fullmatch, components))
            if not sound or ".." in f"{uri}/{suite}" or suite.endswith("/") == bool(components):
                raise _malformed(where, f"{uri} {suite} {' '.join(components)}")
            yield AptSuite(uri.rstrip("/"), suite, components, signed_by.strip(), valid_until not in _NO, where)


def _stanzas(text: str, file: str) -> Iterator[tuple[Location, dict[str, str]]]:
    """Yield each stanza's place and fields, by lower-case name; continued lines are joined by line ends."""
    fields: dict[str, str] = {}
    start, last = 1, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield Location(file, start), fields
            fields, last = {}, ""
        elif line[0] in " \t":
            if not last:
                raise _malformed(Location(file, number), line)
            fields[last] += "\n" + ("" if line.strip() == "." else line[1:])
        elif match := _FIELD.fullmatch(line):
            start = start if fields else number
            last = match[1].lower()
            fields[last] = match[2].strip()
        else:
            raise _malformed(Location(file, number), line)


def _listed(tree: Path, folder: str, endings: tuple[str, ...]) -> list[Path]:
    directory = inside(tree, folder)
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.name.endswith(endings))


def _read(tree: Path, path: str) -> bytes:
    """The contents of a regular file of the tree, or none. Raises BaseError for one that is too long."""
    location = inside(tree, path)
    if not location.is_file():
        return b""
    with location.open("rb") as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise BaseError(
            f"the image's /{path.lstrip('/')} is longer than any source or keyring", code="base-source-too-large"
        )
    return content


def _malformed(where: Location, text: str) -> BaseError:
    return BaseError(
        "the image configures an archive that apt would not take",
        code="base-source-invalid",
        where=where,
        why=text[:200],
        fix="correct the image's sources (sources.list(5)), or use another image",
    )
