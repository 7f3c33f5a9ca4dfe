"""Known vulnerabilities of what a lock holds: its wheels by their names on PyPI, its Debian packages by their sources.

Debian's advisories are about source packages. A lock has binary ones, which may have versions of their own; where the
base was looked at, dpkg says what each is built of, else the pool's directory and the lowest of the binaries' versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TypeAlias

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.audit.model import System
from imagegen.plan.lock.model import Lock
from imagegen.supply.trust import debversion, osv
from imagegen.supply.trust.project import Exemption
from imagegen.supply.trust.shipped import data

PYPI = "PyPI"

_Hit: TypeAlias = tuple[osv.Advisory, osv.Affected]


@dataclass(frozen=True)
class Package:
    """Something that advisories may be about. `version` is as they count it; `shown` says where it is in the image."""

    ecosystem: str  # "PyPI", "Debian:12"
    name: str
    version: str
    via: tuple[str, ...]  # who asks for it; empty: the cell, or the base
    shown: str  # "torch 2.13.0+cu130", "openssl 3.0.22-1 (libssl3, openssl)"


@dataclass(frozen=True)
class Vulnerability:
    """One vulnerability of one package, under all its names."""

    names: tuple[str, ...]  # the id of the first advisory about it, then the others, sorted
    package: Package
    summary: str
    severity: tuple[str, ...]  # as advisories give it
    fixed: str | None  # the lowest version without it, of this ecosystem
    exemption: Exemption | None = None  # of the project, in force or not

    def accepted(self, today: date) -> bool:
        """Whether the project has accepted it, and still does."""
        return self.exemption is not None and today <= self.exemption.until


def packages(lock: Lock, system: System | None) -> tuple[Package, ...]:
    """What a lock holds, as advisories name it. `system` is what is known of the base, where it was looked at."""
    stack = (Package(PYPI, each.name, each.version, each.via, f"{each.name} {each.version}") for each in lock.packages)
    return (*stack, *_sources(lock, system or System({})))


def vulnerabilities(
    found: Iterable[Package], advisories: Iterable[osv.Advisory], exemptions: Iterable[Exemption]
) -> tuple[Vulnerability, ...]:
    """By package and name; what several databases say of one vulnerability is one."""
    index: dict[tuple[str, str], list[tuple[osv.Advisory, osv.Affected]]] = {}
    for advisory in advisories:
        for affected in advisory.affected:
            index.setdefault(identity(affected.ecosystem, affected.name), []).append((advisory, affected))
    excused = tuple(exemptions)
    return tuple(
        each
        for package in found
        for group in _same(_hits(package, index.get(identity(package.ecosystem, package.name), ())))
        for each in [_vulnerability(package, group, excused)]
    )


def identity(ecosystem: str, name: str) -> tuple[str, str]:
    """By which packages and advisories about them find each other."""
    return ecosystem, canonicalize_name(name) if ecosystem == PYPI else name


def _hits(package: Package, about: Sequence[_Hit]) -> list[_Hit]:
    """What gathers vulnerabilities of which each has an advisory of its own is left to those."""
    order = _order(package)
    named = {name for advisory, _ in about for name in advisory.names}
    return [
        (advisory, affected)
        for advisory, affected in about
        if not (advisory.upstream and advisory.upstream <= named) and osv.is_affected(affected, package.version, order)
    ]


def _same(hits: Iterable[_Hit]) -> list[list[_Hit]]:
    """Advisories that share a name are about one vulnerability."""
    groups: list[list[_Hit]] = []
    for hit in hits:
        joined = [group for group in groups if any(hit[0].names & other.names for other, _ in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([each for group in joined for each in group] + [hit])
    return groups


def _vulnerability(package: Package, hits: list[_Hit], exemptions: Iterable[Exemption]) -> Vulnerability:
    names = {name for advisory, _ in hits for name in advisory.names}
    excused = [
        each for each in exemptions if each.advisory in names and each.package in (None, package.name, package.shown)
    ]
    order = _order(package)
    fixes = [fix for _, affected in hits if (fix := osv.fixed_in(affected, package.version, order))]
    return Vulnerability(
        names=tuple(sorted(names, key=lambda name: (not name.startswith("CVE-"), name))),
        package=package,
        summary=next((advisory.summary for advisory, _ in hits if advisory.summary), ""),
        severity=tuple(dict.fromkeys(each for hit in hits for told in hit for each in told.severity)),
        fixed=max(fixes, key=order, default=None),
        exemption=max(excused, key=lambda each: each.until, default=None),
    )


def _order(package: Package) -> osv.Order:
    return _public if package.ecosystem == PYPI else debversion.key


def _public(version: str) -> Version:
    """PEP 440, without the local label: 2.13.0+cu130 is 2.13.0, which may be the last that is affected."""
    return Version(Version(version).public)


def _sources(lock: Lock, system: System) -> Iterator[Package]:
    """The source packages of the base; none where neither the lock nor a look at the base tells them."""
    ecosystem = _ecosystem(lock, system)
    binaries: dict[str, list[str]] = {}
    versions: dict[str, set[str]] = {}
    for name, source, version in _built(lock, system) if ecosystem else ():
        binaries.setdefault(source, []).append(name)
        versions.setdefault(source, set()).add(version)
    for source, names in sorted(binaries.items()):
        version = min(versions[source], key=debversion.key)
        yield Package(ecosystem or "", source, version, (), f"{source} {version} ({', '.join(sorted(names))})")


def _built(lock: Lock, system: System) -> Iterator[tuple[str, str, str]]:
    """Each Debian package with its source's name and version."""
    if not lock.base.debs:
        yield from ((name, deb.source, deb.source_version) for name, deb in system.debs.items())
    for deb in lock.debs if lock.base.debs else ():
        there = system.debs.get(deb.name)
        if there and there.version == deb.version:
            yield deb.name, there.source, there.source_version
        else:  # rebuilt, as +b1 says, of an equal source
            yield deb.name, deb.path.split("/")[-2], re.sub(r"\+b[0-9]+$", "", deb.version)


def _ecosystem(lock: Lock, system: System) -> str | None:
    """How osv.dev calls the base's distribution; None where that is not known, or it has no packages of this kind."""
    if lock.base.suite:
        number = data("debian")["releases"].get(lock.base.suite)
        return f"Debian:{number}" if number else None
    release = system.release
    if release and release.id == "debian" and release.version:
        return f"Debian:{release.version}"
    if release and release.id == "ubuntu":
        return f"Ubuntu:{release.version}" + (":LTS" if release.version in data("debian")["ubuntu-lts"] else "")
    return None
