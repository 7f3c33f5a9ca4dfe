"""The statements of releases in package metadata: requirements, Pythons, and what their wheels are for."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain
from operator import and_

from packaging.ranges import VersionRange
from packaging.version import Version

from imagegen.compat import atoms
from imagegen.compat.atoms import UNREAD, Atom, points
from imagegen.compat.derived import derived_rule, release_span
from imagegen.compat.facts import Fact, versions_in
from imagegen.compat.metadata import PackageReleases, ReleaseMetadata, holds
from imagegen.compat.rule import Rule
from imagegen.compat.scans import ScanCache
from imagegen.compat.solve import ClauseOrigin
from imagegen.core import deferred

_INDEXES = {"pypi": "PyPI"}  # as users call them
_EXACT = re.compile(r"\s*([=!]=)\s*+([^=*+]+)")
_FIRST = re.compile(r"\s*>=\s*+([^=*+]+)")
_BOUND = re.compile(r"\s*([<>]=?)[^=*].*")  # a comparison that admits all releases above or below one

# A statement without its releases: name, choices, words, marker, the extra of the marker, required extras of the name.
StatementRow = tuple[str, tuple[str, ...], str, str | None, str, frozenset[str]]


@dataclass(frozen=True)
class Statement:
    """A statement of some releases (a mask, the oldest is bit 0): while `marker` holds, `name` fits one of `choices`.

    `needs` is its text for messages: "requires torch==2.8.0". `name` must be installed for it unless it is a
    surrounding.
    """

    package: str
    releases: int
    name: str
    choices: tuple[str, ...]  # PEP 440 specifiers
    needs: str
    marker: str | None = None  # PEP 508
    extra: str = ""  # for which the marker counts
    extras: frozenset[str] = frozenset()  # of `name`

    @property
    def of_wheels(self) -> bool:
        """True if the statement is about available wheels: a build from sources could change it."""
        return self.needs.startswith("has ")

    @property
    def required(self) -> str:
        """The versions that would fit, in words."""
        if self.name in {"python", "glibc"}:
            return f"another {self.name.capitalize() if self.name == 'python' else 'base'}"
        return self.choices[0] if self.name == "platform" else f"{self.name}{self.choices[0]}"

    @property
    def origin(self) -> ClauseOrigin:
        return ClauseOrigin("wheels" if self.of_wheels else "stated", f"{self.package} {self.needs}")


@deferred.dataclass(frozen=True)
class ReleaseStatements:
    """The statements of a release, as row numbers in the table of its package."""

    required: tuple[int, ...]
    extras: Mapping[str, tuple[int, ...]]  # extra -> the rows that it adds
    included: Mapping[str, frozenset[str]]  # extra -> itself and the extras that it includes
    files: Mapping[str, tuple[int, ...]]  # machine -> the rows about Pythons and wheels

    def added_by(self, extras: Iterable[str]) -> Iterator[int]:
        """Yield the statements that these extras and those that they include add."""
        all_extras = frozenset[str]().union(*(self.included.get(extra, ()) for extra in extras))
        return chain.from_iterable(self.extras.get(name, ()) for name in sorted(all_extras))


@deferred.dataclass(frozen=True)
class StatementTable:
    """The metadata of a package, and the distinct statements of its releases; statement_tables.py builds it."""

    package: PackageReleases
    rows: tuple[StatementRow, ...]
    releases: tuple[ReleaseStatements, ...]  # the oldest first
    holding: Mapping[tuple[str, str, str], tuple[str, ...]]  # marker, extra, machine -> the PYTHONS for which it holds
    required_extras: frozenset[str] = frozenset()  # without which nothing of the package runs


class Releases:
    """A package's known releases, the oldest first."""

    def __init__(self, table: StatementTable, complete: VersionRange | None = None) -> None:
        self.table = table
        self.complete = complete  # versions of which all releases are known, whatever `since`
        self.package = table.package
        self.all: tuple[ReleaseMetadata, ...] = tuple(reversed(list(table.package.releases.values())))
        self.versions = tuple(Version(release.version) for release in self.all)
        self._fitting: dict[str, int] = {}
        self._said: dict[tuple[int, str, frozenset[str]], tuple[Statement, ...]] = {}

    def within(self, fact: Fact | None) -> int:
        """Return the mask of the releases that the fact admits."""
        fitting = (fact is None or version in fact.range for version in self.versions)
        return sum(1 << position for position, fits in enumerate(fitting) if fits)

    def lacking(self, among: int, extras: Iterable[str]) -> list[str]:
        """Return the extras, normalised, that no release in the mask is known to have, sorted."""
        releases = [release for position, release in enumerate(self.all) if among >> position & 1]
        return sorted(extra for extra in extras if not any(extra in release.extras for release in releases))

    def fitting(self, specifier: str) -> int:
        """Return the mask of the releases that a PEP 440 specifier admits."""
        if specifier not in self._fitting:
            comparisons = specifier.split(",") if "===" not in specifier else [specifier]
            self._fitting[specifier] = reduce(and_, map(self._fitting_part, comparisons), (1 << len(self.versions)) - 1)
        return self._fitting[specifier]

    def _fitting_part(self, specifier: str) -> int:
        """Return the mask for one comparison. The releases that ">=" or "<" admits have no gaps: bisect for the end."""
        all_releases = (1 << len(self.versions)) - 1
        if exact := _EXACT.fullmatch(specifier):
            matching = self.masks.get(Version(exact[2]), 0)
            return matching if exact[1] == "==" else all_releases & ~matching
        if bound := _FIRST.fullmatch(specifier):
            below = (1 << bisect_left(self.versions, Version(bound[1]))) - 1
            return all_releases & ~below
        if bound := _BOUND.fullmatch(specifier):
            admitted, upwards = versions_in(specifier), bound[1].startswith(">")
            end = bisect_left(self.versions, True, key=lambda version: (version in admitted) is upwards)
            below = (1 << end) - 1
            return all_releases & ~below if upwards else below
        return self.within(Fact.within(specifier))

    @cached_property
    def masks(self) -> dict[Version, int]:
        """The mask of each release."""
        return {version: 1 << position for position, version in enumerate(self.versions)}

    @cached_property
    def points(self) -> tuple[Atom, ...]:
        """The atoms of the releases."""
        return points(self.versions)

    @cached_property
    def older(self) -> Atom | None:
        """The releases before the oldest one that was read; None if all were read."""
        if self.package.since is None:
            return None
        unread = versions_in(f"<{self.package.since}")
        unread = unread.difference(self.complete) if self.complete else unread
        return None if unread.is_empty else Atom(UNREAD, range=unread, opaque=True)

    def statements(self, among: int, machine: str, extras: frozenset[str] = frozenset()) -> tuple[Statement, ...]:
        """Return the statements of the releases in the mask; one that several of them share, once."""
        key = (among, machine, extras | self.table.required_extras)
        if key not in self._said:
            self._said[key] = tuple(self._statements(*key))
        return self._said[key]

    def _statements(self, among: int, machine: str, extras: frozenset[str]) -> Iterator[Statement]:
        releases_by_row: dict[int, int] = {}  # row of the table -> releases
        for position, release in enumerate(self.table.releases):
            if among >> position & 1:
                added = release.added_by(extras) if extras and release.extras else ()
                for row in chain(release.required, added, release.files[machine]):
                    releases_by_row[row] = releases_by_row.get(row, 0) | 1 << position
        for row, releases in releases_by_row.items():
            yield Statement(self.package.name, releases, *self.table.rows[row])

    def holding(self, marker: str | None, extra: str, pythons: Iterable[str], machine: str) -> list[bool]:
        """Return for each Python, a full version, whether a marker of a statement certainly holds on Linux."""
        if marker is None:
            return [True for _ in pythons]
        latest = self.table.holding[marker, extra, machine]
        return [
            python in latest if python in atoms.LATEST else holds(marker, python, machine, extra) is True
            for python in pythons
        ]

    def rule(self, statement: Statement, among: int) -> Rule:
        """Return the statement as a rule about its releases in the mask."""
        name, index = self.package.name, _INDEXES.get(self.package.index, self.package.index)
        about = statement.releases & among or statement.releases
        versions = [release.version for position, release in enumerate(self.all) if about >> position & 1]
        span, specifier = release_span(versions)
        verb, _, predicate = statement.needs.partition(" ")
        verb = verb if len(versions) == 1 else {"requires": "require", "has": "have"}[verb]
        return derived_rule(
            f"{self.package.index}:{name}-{versions[0]}:{statement.name}",
            f"{name}{f'[{statement.extra}]' if statement.extra else ''} {span} {verb} {predicate}.",
            when={name: specifier},
            then={statement.name: ",".join(statement.choices)},
            source=f"{index} metadata of {name} {span}",
            date=self.package.read or "",
            kind="pip-refuses",
            fix=f"Take {statement.required}, or another release of {name}{self._or_build(statement)}.",
        )

    @staticmethod
    def _or_build(statement: Statement) -> str:
        return ", or build it from its sources, of which nothing is known here" if statement.of_wheels else ""


class MetadataCache:
    """Packages by name, each read when it is first requested; `scans` has the demands of their wheels."""

    def __init__(self, load: Callable[[str], StatementTable | None], scans: ScanCache | None = None) -> None:
        self._load = load
        self._known: dict[str, Releases | None] = {}
        self.scans = scans or ScanCache(lambda _: None)

    def add(self, package: PackageReleases, specifier: str = "") -> None:
        """Add releases that were read on demand; those that are known stay the same, except for more extras.

        They are all that `specifier` admits, unless the package has a `since`.
        """
        from imagegen.compat.statement_tables import table_of  # late: results of earlier runs stand for most tables

        known_releases, complete = self.of(package.name), None if package.since else versions_in(specifier)
        if known_releases:
            earlier = known_releases.complete
            complete = earlier.union(complete) if earlier and complete else earlier or complete
            merged = {**package.releases, **known_releases.package.releases}
            for version in package.releases.keys() & known_releases.package.releases.keys():
                extras = {**package.releases[version].extras, **merged[version].extras}
                merged[version] = replace(merged[version], extras=extras)
            newest_first = sorted(merged, key=Version, reverse=True)
            # If the package has no `since`, releases between these may be missing.
            since = known_releases.package.since or (newest_first[0] if package.since else None)
            releases = {version: merged[version] for version in newest_first}
            package = replace(known_releases.package, since=since, releases=releases)
        self._known[package.name] = Releases(table_of(package), complete)

    def of(self, name: str) -> Releases | None:
        """Return the releases of the package; None if it has no metadata."""
        if name not in self._known:
            table = self._load(name)
            self._known[name] = Releases(table) if table and table.releases else None
        return self._known[name]
