"""Resolve Debian packages from signed archives, in an apt of our own (apt.py): of a base, and those above one."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

from imagegen.core.config import Settings
from imagegen.core.errors import BaseError
from imagegen.core.progress import Progress, timed
from imagegen.image.base import image
from imagegen.image.base.apt import Apt, AptSource, AptSystem, keyring
from imagegen.image.base.fetch import mirrors, roots
from imagegen.image.base.sources import AptSuite, keys_of, read_preferences, read_sources, trusted_keys
from imagegen.image.base.unpack import inside
from imagegen.plan.distributions import DebianRelease, archive_at, archives, release
from imagegen.plan.lock.foundation import LockedArchive, LockedBase, LockedDeb, LockedPackages
from imagegen.plan.matrix.model import Base

ARCHITECTURE = "amd64"
STATUS = "var/lib/dpkg/status"  # dpkg's database, in a tree
_ESSENTIAL = "?essential"  # apt's own idea of it (apt-patterns(7))
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")  # Debian policy 5.6.1; apt takes a final "-" as "remove"
_URI_LINE = re.compile(
    r"'(?P<uri>[^']+)' (?P<name>[^ _]+)_(?P<version>[^ _]+)_(?P<architecture>[^ _]+)\.deb "
    r"(?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})"
)


def resolve(base: Base, settings: Settings, progress: Progress) -> LockedBase:
    """Return the exact packages of `base` in the archive as it is now: essential ones, apt, its own, dependencies.

    Recommended packages stay out. For kind registry, return the image that its name resolves to now, or raise
    FetchError. Raises BaseError: no apt or keyring on this machine, no mirror known, the archive unreachable or expired
    or not signed by Debian, a package that does not exist.
    """
    if base.kind == "registry":
        return image.resolve(base, settings, progress, architecture=ARCHITECTURE)
    if base.kind != "debian" or base.suite is None:
        raise BaseError(f"base {base.name}: unknown kind {base.kind!r}", code="base-unknown-kind", fix="kind: debian")
    check_names(base.packages, f"base {base.name}")
    found = release(base.suite)
    sources = official(found, settings)
    with tempfile.TemporaryDirectory(prefix="imagegen-apt-") as name, timed(progress, f"resolving base {base.name}"):
        apt = Apt(Path(name), sources, settings, architecture=ARCHITECTURE)
        apt.run("update", "--error-on=any")
        archives = {f"{archive}/{suite}": date for (archive, suite), (_, date) in apt.releases().items()}
        required = (_ESSENTIAL, *found.packages, *sorted(base.packages))
        debs = parse_uris(apt.run("install", "--yes", "--no-install-recommends", "--print-uris", *required), apt.roots)
    return LockedBase(base.name, base.kind, base.suite, archives, debs)


def official(release: DebianRelease, settings: Settings, *, pockets: bool = True) -> list[AptSource]:
    """Return the sources of a release, with its updates; without `pockets` the first suite alone.

    Raises BaseError: no mirror known, no keyring on this machine.
    """
    signed_by = keyring(release)
    suites = [(archive, suite) for archive, suites in release.suites.items() for suite in suites]
    suites = suites if pockets else suites[:1]
    served = mirrors(list(dict(suites)), settings)
    return [AptSource(archive, served[archive], suite, release.components, signed_by) for archive, suite in suites]


def check_names(packages: Iterable[str], where: str) -> None:
    """Raise BaseError for what cannot be the name of a package, before apt reads it as an option or an action."""
    if wrong := [name for name in packages if not _NAME.fullmatch(name)]:
        raise BaseError(
            f"{where}: {', '.join(map(repr, wrong))} cannot be a package's name",
            code="base-package-name-invalid",
            fix="name packages without version, architecture or suite: the lock pins them",
        )


def parse_uris(text: str, roots: Mapping[str, str]) -> tuple[LockedDeb, ...]:
    """Return the lines of `apt-get --print-uris` as packages, sorted by name.

    A line is 'URI' name_version_architecture.deb size SHA256:hash, with %XX for what a file name may not hold.
    Raises BaseError for a line of another form and for a URI that is in none of the archives.
    """
    debs = []
    for line in text.splitlines():
        match = _URI_LINE.fullmatch(line.strip())
        if match is None:
            raise BaseError("apt answered in an unknown form", code="base-apt-output-invalid", why=line)
        name, version, architecture = (unquote(match[field]) for field in ("name", "version", "architecture"))
        for archive, root in sorted(roots.items(), key=lambda item: -len(item[1])):  # one may lie below another
            if match["uri"].startswith(root + "/"):
                path = unquote(match["uri"].removeprefix(root + "/")).removeprefix("./")  # of a flat archive
                debs.append(LockedDeb(name, version, architecture, int(match["size"]), match["sha256"], archive, path))
                break
        else:
            raise BaseError("a package comes from none of the archives", code="base-apt-output-invalid", why=line)
    return tuple(sorted(debs, key=lambda deb: deb.name))


# Packages above a base: resolved by apt against what the base's own dpkg has, from the base's own sources.
#
# The base's file tree is read for dpkg's status, sources, keyrings and preferences; imagegen's apt (apt.py) works
# beside the host's. So a base that imagegen made and an image of a registry are the same here.


def resolve_packages(
    requested: Mapping[str, str], tree: Path, name: str, settings: Settings, progress: Progress
) -> LockedPackages:
    """Return the debs that the base `name`, unpacked at `tree`, lacks of the `requested` packages (name -> reason).

    Recommended packages stay out. Nothing is removed, and nothing that is on hold changes. Raises BaseError: no dpkg in
    the base, no archive that can be fetched from, one that is unsigned, expired or unreachable, a package that does not
    exist or conflicts with what the base holds.
    """
    where = f"packages above base {name}"
    check_names(requested, where)
    status = read_status(tree, name)
    entries, others = read_sources(tree, ARCHITECTURE)
    for each in others:
        progress.say(f"note: the archive {each[:200]} of base {name} is left out: only http and https are fetched from")
    if not entries:
        raise BaseError(
            f"base {name} has no archive of packages",
            code="base-no-package-sources",
            why="/etc/apt/sources.list and /etc/apt/sources.list.d name none that can be fetched from",
            fix="use an image whose apt is configured",
        )
    addresses: dict[str, str] = {}
    for entry in entries:
        addresses.setdefault(archive_at(entry.uri), entry.uri)
    served = roots(addresses, settings)
    sources = [_source(entry, served, tree) for entry in entries]
    system = AptSystem(status, trusted_keys(tree), read_preferences(tree))
    with tempfile.TemporaryDirectory(prefix="imagegen-apt-") as work, timed(progress, f"resolving {where}"):
        apt = Apt(Path(work), sources, settings, architecture=ARCHITECTURE, system=system)
        apt.run("update", "--error-on=any")
        options = ("--yes", "--no-remove", "--no-install-recommends", "--print-uris")
        debs = parse_uris(apt.run("install", *options, *sorted(requested)), apt.roots)
        dates = {key: date for key, (_, date) in apt.releases().items()}
    return LockedPackages(dict(sorted(requested.items())), _archives(entries, debs, addresses, dates), debs)


def read_status(tree: Path, name: str) -> bytes:
    """Return dpkg's status of the tree of the base `name`. Raises BaseError where it has no dpkg and apt."""
    status = inside(tree, STATUS)
    if not status.is_file() or not inside(tree, "usr/bin/apt-get").is_file():
        raise BaseError(
            f"base {name} has no dpkg and apt",
            code="base-no-package-manager",
            where=f"/{STATUS}",
            why="packages are added to distributions that are made of Debian packages alone",
            fix="leave `packages` out, or use an image of Debian or Ubuntu",
        )
    return status.read_bytes()


def _source(entry: AptSuite, served: Mapping[str, str], tree: Path) -> AptSource:
    archive = archive_at(entry.uri)
    keys = keys_of(entry, tree)
    return AptSource(archive, served[archive], entry.suite, entry.components, keys, entry.valid_until)


def _archives(
    entries: list[AptSuite],
    debs: tuple[LockedDeb, ...],
    addresses: Mapping[str, str],
    dates: Mapping[tuple[str, str], str],
) -> tuple[LockedArchive, ...]:
    """Return every suite of the archives that debs come from: any of them may have given the package."""
    used = {deb.archive for deb in debs}
    found = {
        LockedArchive(
            archive,
            entry.suite,
            entry.components,
            dates[archive, entry.suite],
            None if archive in archives() else addresses[archive],
        )
        for entry in entries
        if (archive := archive_at(entry.uri)) in used
    }
    return tuple(sorted(found, key=lambda each: (each.archive, each.suite)))
