"""Harvest the names that `import` of each package needs of the others, and which releases of those lack them.

Of each release the modules are read that its top-level modules import while they are imported. Then its names are
looked up in the releases of the packages that have them. Names below a test of versions count for the releases for
which the test holds.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from imagegen.audit.api.conditions import PYTHON, VersionTest
from imagegen.audit.api.exports import parents
from imagegen.audit.api.import_time import ImportedName
from imagegen.audit.import_reach import top_modules
from imagegen.audit.model import Package, required_name
from imagegen.compat.import_names import ImportNames
from imagegen.compat.package_names import SharedName
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError, ImagegenError
from imagegen.core.net import Client, package_index
from imagegen.core.net.package_index import DEFAULT, IndexLink
from imagegen.core.progress import Progress
from tools.harvest.names_files import spans
from tools.harvest.wheel_modules import Cache, WheelModules, wheels_of

_THREADS = 2  # wheels at once
_OLDER = dt.date(2023, 1, 1)  # of providers, the last release of each minor series since then is read too
_PYTHONS = tuple(map(Version, ("3.10", "3.11", "3.12", "3.13")))  # a test of Python must hold for all of them

_Tests = tuple[VersionTest, ...]


class NeededName(NamedTuple):
    """A name of another package that an import needs if all `tests`, of other packages' versions, hold."""

    name: str
    modules: int  # its first parts that must be modules
    path: str
    line: int
    tests: _Tests = ()


class RefusedVersion(NamedTuple):
    """A statement that raises if all `tests` hold."""

    path: str
    line: int
    tests: _Tests


@dataclass(frozen=True)
class Needs:
    """What importing the top-level modules of a release needs of other packages."""

    names: tuple[NeededName, ...] = ()
    refusals: tuple[RefusedVersion, ...] = ()


# What a release needs


def needs_of(package: str, version: str, roots: Iterable[str], modules: WheelModules) -> Needs:
    """Return the needs of an import of the `roots` of a wheel."""
    tops = {name.partition(".")[0] for name in modules.shallowest if name not in modules.namespaces}

    def installed(name: str) -> Version | None:
        return Version(version) if required_name(name) == package or name in tops else None

    names: dict[tuple[str, int, _Tests], NeededName] = {}
    refusals: dict[tuple[str, int], RefusedVersion] = {}
    for module, tests in _reached(roots, modules, installed):
        path, imported = modules.paths[module], modules.read(module)
        for refusal in imported.refusals:
            if (left := undecided((*tests, *refusal.tests), installed)) is not None:
                refusals.setdefault((path, refusal.line), RefusedVersion(path, refusal.line, left))
        for name in imported.names:
            if not _is_own(name.name, modules):
                left = undecided((*tests, *name.tests), installed)
                if left is not None:
                    needed = NeededName(name.name, name.modules, path, name.line, left)
                    names.setdefault((name.name, name.modules, left), needed)
    return Needs(tuple(names.values()), tuple(refusal for refusal in refusals.values() if refusal.tests))


def _reached(
    roots: Iterable[str], modules: WheelModules, installed: Callable[[str], Version | None]
) -> Iterator[tuple[str, _Tests]]:
    """Yield the modules that importing the roots imports, with the tests that must hold; those without tests first."""
    visited: set[str] = set()
    certain: list[tuple[str, _Tests]] = [(name, ()) for root in roots for name in (*parents(root), root)]
    conditional: list[tuple[str, _Tests]] = []
    while certain or conditional:
        if not certain:
            certain, conditional = conditional, []
        pending, certain = [entry for entry in certain if entry[0] in modules.paths], []
        modules.prefetch(name for name, _ in pending if name not in visited)
        for module, tests in pending:
            if module in visited:
                continue
            visited.add(module)
            yield module, tests
            for name in modules.read(module).names:
                left = undecided((*tests, *name.tests), installed)
                if left is None or not _is_own(name.name, modules):
                    continue
                targets = [(target, left) for target in _loaded(name, modules) if target not in visited]
                if left:
                    conditional += targets
                else:
                    certain += targets


def _is_own(name: str, modules: WheelModules) -> bool:
    return any(part in modules.paths for part in (*parents(name), name))


def _loaded(name: ImportedName, modules: WheelModules) -> Iterator[str]:
    """Yield the modules of the wheel that an import of the name imports."""
    targets = [".".join(name.name.split(".")[: name.modules])]
    above, _, last = name.name.rpartition(".")
    if above in modules.paths:
        read = modules.read(above)
        if last in read.lazy:
            targets.append(read.lazy[last])
        elif name.name in modules.paths and last not in read.defined.names:
            targets.append(name.name)
    for target in targets:
        yield from (*parents(target), target)


def undecided(tests: Iterable[VersionTest], installed: Callable[[str], Version | None]) -> _Tests | None:
    """Return the tests that neither the own release nor Python decide; None if one of the tests may not hold."""
    left: list[VersionTest] = []
    for test in tests:
        version = installed(test.name)
        versions = _PYTHONS if test.name == PYTHON else [version] if version else []
        if not versions:
            left.append(test)
        elif not all(test.holds(version) for version in versions):
            return None
    return tuple(dict.fromkeys(left))


# Which releases of providers lack it


@dataclass(frozen=True)
class Provider:
    """A package that others import: its releases, oldest first, and the first missing part of names by release."""

    releases: Sequence[str]  # that were read
    published: Sequence[str]  # all final ones of the index
    missing: Mapping[str, Mapping[tuple[str, int], str]]  # release -> name and modules -> part

    def spans(self, chosen: Collection[str]) -> tuple[str, ...]:
        """Return the spans of chosen releases, with releases that were not read if both neighbours are chosen."""
        read, inside, pending = frozenset(self.releases), self.releases[0] in chosen, list[str]()
        published: list[str] = []
        for release in self.published:
            pending.append(release)
            if release in read:
                published += pending if inside and release in chosen else [release] * (release in chosen)
                inside, pending = release in chosen, []
        return spans([*published, *(pending if inside else ())], self.published, open_ended=True)


def rows(
    needs: Mapping[str, Needs], providers: Mapping[str, Provider], provider_of: Callable[[str], str | None]
) -> Iterator[SharedName]:
    """Yield the names that releases of a package need and releases of a provider lack, and versions that it refuses.

    Args:
        needs: release of the package -> its needs, the oldest first.
        providers: by package.
        provider_of: returns the package that has a module, or that is called so.

    One name is enough for a pair of releases, so names that fail with no further pair are left out.
    """
    for provider_name, provider in providers.items():
        rejected: dict[str, dict[str, int]] = defaultdict(dict)  # shown part -> release -> bits of the provider's
        shown: dict[tuple[str, str], tuple[bool, str, int]] = {}
        for release, release_needs in needs.items():
            for needed in release_needs.names:
                if provider_of(needed.name) != provider_name:
                    continue
                if any(provider_of(test.name) != provider_name for test in needed.tests):
                    continue
                for part, bits in _lacking(needed, provider).items():
                    rejected[part][release] = rejected[part].get(release, 0) | bits
                    is_module = part.count(".") < needed.modules
                    shown.setdefault((part, release), (is_module, needed.path, needed.line))
        yield from _cover(provider_name, rejected, shown, list(needs), provider)
        yield from _refusals(provider_name, needs, provider.published, provider_of)


def _lacking(needed: NeededName, provider: Provider) -> dict[str, int]:
    """Return the missing parts of a name, each with bits of the releases that need and lack it or a parent."""
    lacked: dict[str, int] = {}
    parts_by_release = [provider.missing[release].get((needed.name, needed.modules)) for release in provider.releases]
    for part in {part for part in parts_by_release if part}:
        bits, count = 0, 0
        for index, (release, missing) in enumerate(zip(provider.releases, parts_by_release, strict=True)):
            if missing and (part == missing or part.startswith(f"{missing}.")):
                count += 1
                if all(test.holds(Version(release)) for test in needed.tests):
                    bits |= 1 << index
        if bits and count < len(provider.releases):  # else it is made in a way that sources do not show
            lacked[part] = bits
    return lacked


def _cover(
    provider_name: str,
    rejected: Mapping[str, Mapping[str, int]],
    shown: Mapping[tuple[str, str], tuple[bool, str, int]],
    releases: Sequence[str],
    provider: Provider,
) -> Iterator[SharedName]:
    """Yield names until all pairs of releases that fail have one, first the name that most pairs fail with."""
    covered: dict[str, int] = dict.fromkeys(releases, 0)
    while True:
        gains = {
            part: sum((bits & ~covered[release]).bit_count() for release, bits in by_release.items())
            for part, by_release in rejected.items()
        }
        part = max(sorted(gains), key=lambda part: gains[part], default="")
        if not part or not gains[part]:
            return
        by_bits: dict[int, list[str]] = {}
        for release, bits in rejected[part].items():
            if bits & ~covered[release]:
                by_bits.setdefault(bits, []).append(release)
            covered[release] |= bits
        for bits, chosen in by_bits.items():
            lacked = [release for index, release in enumerate(provider.releases) if bits >> index & 1]
            yield SharedName(
                provider_name,
                part,
                *shown[part, chosen[-1]],
                True,
                spans(chosen, releases, open_ended=False),
                provider.spans(lacked),
            )


def _refusals(
    provider: str, needs: Mapping[str, Needs], published: Sequence[str], provider_of: Callable[[str], str | None]
) -> Iterator[SharedName]:
    by_span: dict[tuple[str, ...], dict[str, RefusedVersion]] = {}
    for release, release_needs in needs.items():
        for refusal in release_needs.refusals:
            if {provider_of(test.name) for test in refusal.tests} == {provider}:
                refused = [
                    version for version in published if all(test.holds(Version(version)) for test in refusal.tests)
                ]
                if 0 < len(refused) < len(published):
                    by_span.setdefault(spans(refused, published, open_ended=True), {})[release] = refusal
    for lacked_by, by_release in by_span.items():
        newest = list(by_release.values())[-1]
        required_by = spans(by_release, list(needs), open_ended=False)
        yield SharedName(provider, "", False, newest.path, newest.line, True, required_by, lacked_by)


# Reading wheels


class ImportHarvest:
    """Reads wheels of packages that an index offers. `roots` names modules that users import, by package."""

    def __init__(
        self,
        packages: Sequence[str],
        settings: Settings,
        progress: Progress,
        cache: Path | None = None,
        roots: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        url = package_index.url_of(DEFAULT, settings)
        if url is None:
            raise FetchError(f"no address is known for the index {DEFAULT}", code="fetch-no-index")
        self._packages, self._settings, self._progress, self._url = packages, settings, progress, url
        more: Mapping[str, Sequence[str]] = yaml.safe_load((Path(__file__).parent / "roots.yaml").read_bytes())
        roots = roots or {}
        self._roots = {name: (*roots.get(name, ()), *more.get(name, ())) for name in packages}
        self._cache_directory = cache

    def read(self, requested: Sequence[str], today: str) -> Iterator[ImportNames]:
        """Yield the names of the requested packages. Raises FetchError."""
        with (
            Client(self._settings) as client,
            closing(Cache(self._cache_directory)) as self._cache,
            ThreadPoolExecutor(_THREADS) as self._pool,
        ):
            self._client = client
            self._progress.say(f"listing {len(self._packages)} packages")
            links = dict(zip(self._packages, self._pool.map(self._links, self._packages), strict=True))
            self._wheels = {name: wheels_of(package_links) for name, package_links in links.items()}
            self._provided = {
                name: _last_of_minor(wheels_of(package_links, _OLDER), self._wheels[name])
                for name, package_links in links.items()
            }
            self._published = {name: _published(package_links) for name, package_links in links.items()}
            self._modules = self._providers_of_modules()
            self._missing: dict[str, dict[str, dict[tuple[str, int], str]]] = {}
            for name in requested:
                yield self._package(name, today)

    def _links(self, package: str) -> list[IndexLink]:
        return package_index.project(self._client, self._url, package)

    def _providers_of_modules(self) -> dict[str, set[str]]:
        """Return the packages that have a module, for the shallowest modules of their oldest and newest wheels."""

        def shallowest(package: str) -> set[str]:
            releases = list(self._provided[package].values())
            modules: set[str] = set()
            for link in {link.filename: link for link in (*releases[:1], *releases[-1:])}.values():
                with closing(WheelModules(self._cache, self._client, link)) as wheel:
                    modules |= wheel.shallowest
            return modules

        by_module: dict[str, set[str]] = defaultdict(set)
        for package, modules in zip(self._packages, self._pool.map(shallowest, self._packages), strict=True):
            for module in modules:
                by_module[module].add(package)
        return by_module

    def _provider_of(self, name: str) -> str | None:
        """Return the only package that has the module of a dotted name, or that has this name."""
        for part in (name, *reversed(list(parents(name)))):
            if packages := self._modules.get(part):
                return next(iter(packages)) if len(packages) == 1 else None
        return package if (package := required_name(name)) in self._wheels else None

    def _package(self, package: str, today: str) -> ImportNames:
        wheels = self._wheels[package]
        self._progress.say(f"reading {len(wheels)} wheels of {package}")
        needs_or_none = self._pool.map(partial(self._needs, package), wheels.items())
        needs = {version: needed for version, needed in zip(wheels, needs_or_none, strict=True) if needed is not None}
        asked: dict[str, set[tuple[str, int]]] = defaultdict(set)
        named: set[str] = set()
        for release_needs in needs.values():
            for needed in release_needs.names:
                provider = self._provider_of(needed.name)
                if provider and provider != package:
                    asked[provider].add((needed.name, needed.modules))
            named |= {name for refusal in release_needs.refusals for test in refusal.tests
                      if (name := self._provider_of(test.name)) and name != package}  # fmt: skip
        providers = {name: self._provider(name, asked.get(name, ())) for name in sorted({*asked, *named})}
        shared = sorted(rows(needs, providers, self._provider_of))
        return ImportNames(
            package,
            today,
            self._spans(package, needs),
            {name: self._spans(name, provider.releases) for name, provider in providers.items() if name in asked},
            tuple(shared),
        )

    def _spans(self, package: str, releases: Iterable[str]) -> tuple[str, ...]:
        return spans(releases, self._published[package], open_ended=False)

    def _needs(self, package: str, wheel: tuple[str, IndexLink]) -> Needs | None:
        """Return the needs of a release; None if its wheel cannot be read."""
        version, link = wheel
        with closing(WheelModules(self._cache, self._client, link)) as modules:

            def compute() -> Needs:
                package_files = Package(package, version, dict.fromkeys(modules.members))  # type: ignore[arg-type]
                roots = [name for name in self._roots.get(package, ()) if name in modules.paths]
                tops = top_modules(package_files) or sorted(modules.shallowest)
                return needs_of(package, version, [*tops, *roots], modules)

            try:
                roots = ",".join(self._roots.get(package, ()))
                return self._cache.of(f"needs {self._cache.readers} {link.filename} {link.sha256} {roots}", compute)
            except ImagegenError as error:
                self._progress.say(f"{link.filename}: {error}")
                return None

    def _provider(self, package: str, asked: Collection[tuple[str, int]]) -> Provider:
        """Return the package with the missing parts of the names that it is asked for."""
        by_release = self._missing.setdefault(package, {})

        def look_up(wheel: tuple[str, IndexLink]) -> None:
            version, link = wheel
            key = f"lacking {self._cache.readers} {link.filename} {link.sha256}"
            answers: dict[tuple[str, int], str] = by_release.get(version) or self._cache.get(key) or {}
            if new := [name for name in asked if name not in answers]:
                with closing(WheelModules(self._cache, self._client, link)) as modules:
                    try:
                        for name in new:
                            answers[name] = self._missing_part(package, name, modules)
                    except ImagegenError as error:
                        self._progress.say(f"{link.filename}: {error}")
                        return
                self._cache.put(key, answers)
            by_release[version] = answers

        for _ in self._pool.map(look_up, self._provided[package].items()):
            pass
        releases = [version for version in self._provided[package] if version in by_release]
        return Provider(releases, self._published[package], by_release)

    def _missing_part(self, package: str, name: tuple[str, int], modules: WheelModules) -> str:
        """Return the first missing part of a name, or its first module if only this one is missing in the wheel."""
        if missing := modules.missing(*name):
            return missing
        for part in (*parents(name[0]), name[0]):
            if self._modules.get(part) == {package}:
                return "" if part in modules or not modules.paths else part
        return ""


def _last_of_minor(wheels: Mapping[str, IndexLink], newer: Mapping[str, IndexLink]) -> dict[str, IndexLink]:
    """Return the wheels of the newer releases, and of the last release of each minor series before them."""
    last = {Version(version).release[:2]: version for version in wheels if version not in newer}
    return {version: link for version, link in wheels.items() if version in newer or version in last.values()}


def _published(links: Iterable[IndexLink]) -> list[str]:
    """Return all final releases of the files, the oldest first."""
    versions: set[Version] = set()
    for link in links:
        try:
            parse_name = parse_wheel_filename if link.filename.endswith(".whl") else parse_sdist_filename
            versions.add(parse_name(link.filename)[1])
        except (ValueError, InvalidVersion):
            continue
    return [str(version) for version in sorted(versions) if not version.is_prerelease]
