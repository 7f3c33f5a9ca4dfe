"""Packages above a base: resolved by apt against what the base's own dpkg has, from the base's own sources.

The base's file tree is read for dpkg's status, sources, keyrings and preferences; imagegen's apt (apt.py) works beside
the host's. So a base that imagegen made and an image of a registry are the same here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from imagegen.core.config import Settings
from imagegen.core.errors import BaseError
from imagegen.core.progress import Progress, timed
from imagegen.image.base.apt import Apt, AptSource, AptSystem
from imagegen.image.base.build import STATUS
from imagegen.image.base.fetch import roots
from imagegen.image.base.resolve import ARCHITECTURE, check_names, parse_uris
from imagegen.image.base.sources import AptSuite, keys_of, read_preferences, read_sources, trusted_keys
from imagegen.image.base.unpack import inside
from imagegen.plan.distributions import archive_at, archives
from imagegen.plan.lock.base import LockedArchive, LockedDeb, LockedPackages


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
