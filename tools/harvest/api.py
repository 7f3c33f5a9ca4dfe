"""Harvest the names that releases of packages require of others, and which releases of those have them.

Wheels are read in parts: of the requiring package all Python sources, of the other ones the modules in question. No
code of theirs runs.
"""

from __future__ import annotations

import datetime as dt
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.audit.api import Api, Module, RequiredName
from imagegen.audit.api.exports import OPEN, listed, module, with_namespaces
from imagegen.audit.api.required import called, required, tops_of
from imagegen.audit.api.source import LONGEST, is_package, module_name
from imagegen.audit.api.uses import NameUse, uses
from imagegen.audit.imports import providers, starts
from imagegen.compat.package_names import PackageNames, SharedName
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, package_index, wheel_metadata
from imagegen.core.net.package_index import DEFAULT, IndexLink
from imagegen.core.progress import Progress
from tools.harvest.names_files import spans
from tools.harvest.signatures import Signatures, Source

SINCE = dt.date(2024, 7, 1)  # releases before that are not read
_THREADS = 6  # wheels at once
_PLATFORM = re.compile(r"any|(?:many)?linux.*_x86_64")
_INSTALLED = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")  # files that installers move to site-packages

_Name = tuple[str, int, str]  # name, modules, keyword
_Part = tuple[str, str]  # name, keyword
_Lacking = Mapping[_Name, _Part]  # -> the first part of it that a release does not define
_Member = tuple[str, int, int]  # path, CRC-32 and size: of equal ones, one is read


@dataclass
class _Readers:
    """The client and threads that read wheels, and what was read before, by file."""

    client: Client
    pool: ThreadPoolExecutor
    modules: dict[_Member, Module] = field(default_factory=dict)
    listed: dict[_Member, Module] = field(default_factory=dict)
    uses: dict[_Member, list[NameUse]] = field(default_factory=dict)
    sources: dict[_Member, bytes] = field(default_factory=dict)


def read(packages: Sequence[str], settings: Settings, today: str, progress: Progress) -> list[PackageNames]:
    """Return the names that each of the packages shares with others. Raises FetchError."""
    url = package_index.url_of(DEFAULT, settings)
    if url is None:
        raise FetchError(f"no address is known for the index {DEFAULT}", code="fetch-no-index")
    with Client(settings) as client, ThreadPoolExecutor(_THREADS) as pool:
        readers = _Readers(client, pool)
        tops = {top for name in packages for top in starts(name)}
        top_by_provider = {name: top for name, top in providers().items() if top in tops}
        links = {name: _wheels(package_index.project(client, url, name)) for name in (*packages, *top_by_provider)}
        needed: dict[str, dict[str, tuple[RequiredName, ...]]] = {}
        for name in packages:
            progress.say(f"reading {len(links[name])} wheels of {name}")
            each_release = pool.map(partial(_required, readers, name), links[name].values())
            needed[name] = dict(zip(links[name], each_release, strict=True))
        lacking: dict[str, dict[str, _Lacking]] = {}
        for name, top in top_by_provider.items():
            names = {
                (required_name.name, required_name.modules, required_name.keyword)
                for releases in needed.values()
                for required_names in releases.values()
                for required_name in required_names
                if required_name.name.partition(".")[0] == top
            }
            if names:
                progress.say(f"reading {len(links[name])} wheels of {name} in parts")
                read_one = partial(_lacking, readers, top=top, names=names)
                lacking[name] = dict(zip(links[name], pool.map(read_one, links[name].values()), strict=True))
    packages_with_names = []
    for name in packages:
        own_lacking = {
            provider: releases for provider, releases in lacking.items() if top_by_provider[provider] in starts(name)
        }
        wheels = {
            distribution: {version: link.sha256 or "" for version, link in links[distribution].items()}
            for distribution in (name, *own_lacking)
        }
        packages_with_names.append(PackageNames(name, today, wheels, tuple(sorted(shared(needed[name], own_lacking)))))
    return packages_with_names


def _wheels(links: Iterable[IndexLink]) -> dict[str, IndexLink]:
    """Return a wheel for each release since 2024-07 that is neither yanked nor a pre-release, the oldest first."""
    by_version: dict[Version, IndexLink] = {}
    for link in links:
        try:
            _, version, _, tags = parse_wheel_filename(link.filename)
        except ValueError:
            continue
        if link.yanked or version.is_prerelease or (link.uploaded and link.uploaded < SINCE):
            continue
        if any(_PLATFORM.fullmatch(tag.platform) for tag in tags):
            by_version.setdefault(version, link)
    return {str(version): by_version[version] for version in sorted(by_version)}


def _required(readers: _Readers, package: str, link: IndexLink) -> tuple[RequiredName, ...]:
    with wheel_metadata.archive(readers.client, link) as archive:
        members = {_INSTALLED.sub("", info.filename): info for info in archive.infolist()}
        files = {path: info for path, info in members.items() if path.endswith(".py") and info.file_size <= LONGEST}
        tops = tops_of(files, starts(package))
        used: list[NameUse] = []
        for path, info in files.items():
            key = (path, info.CRC, info.file_size)
            if key not in readers.uses:
                source = wheel_metadata.bounded(archive, info)
                readers.uses[key] = uses(path, source, tops, called(path, starts(package)))
            used += readers.uses[key]
    return required(files, used, starts(package))


def _lacking(readers: _Readers, link: IndexLink, *, top: str, names: Collection[_Name]) -> _Lacking:
    """Return the names that a release of a provider does not define, and the keywords that it refuses."""
    lacking: dict[_Name, _Part] = {}
    with wheel_metadata.archive(readers.client, link) as archive:
        members = _members(archive, top)
        api = Api(_modules(readers, archive, members, {name for name, _, _ in names}))
        signatures = Signatures(partial(_source, readers, archive, members))
        for name, modules, keyword in names:
            if not keyword and (part := api.missing(name, modules)):
                lacking[name, modules, keyword] = (part, "")
            elif keyword and signatures.refuses(name, keyword):
                lacking[name, modules, keyword] = (name, keyword)
    return lacking


def _members(archive: zipfile.ZipFile, top: str) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a wheel that are modules below `top`, by the name of the module."""
    members = {module_name(_INSTALLED.sub("", info.filename)): info for info in archive.infolist()}
    return {name: info for name, info in members.items() if name and name.partition(".")[0] == top}


def _source(
    readers: _Readers, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str
) -> Source | None:
    info = members.get(name)
    if info is None or not info.filename.endswith(".py") or info.file_size > LONGEST:
        return None
    key = (info.filename, info.CRC, info.file_size)
    if key not in readers.sources:
        readers.sources[key] = wheel_metadata.bounded(archive, info)
    return Source(readers.sources[key], is_package(info.filename))


def _modules(
    readers: _Readers, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], names: Iterable[str]
) -> dict[str, Module]:
    """Return the modules of a wheel: names of those that `names` lead to, nothing of the others."""
    modules: dict[str, Module] = {}
    pending = [name for text in names for name in _prefixes(text)]
    while pending:
        name = pending.pop()
        if name in modules or name not in members:
            continue
        modules[name] = _module(readers, archive, members[name], name)
        pending += modules[name].stars
    for package in [name for name, package_module in modules.items() if package_module.below]:
        for name, info in members.items():
            if name.startswith(f"{package}.") and name not in modules:
                modules[name] = _listed(readers, archive, info)
    return with_namespaces({name: modules.get(name, Module()) for name in members})


def _prefixes(name: str) -> Iterator[str]:
    words = name.split(".")
    yield from (".".join(words[:length]) for length in range(1, len(words) + 1))


def _module(readers: _Readers, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Module:
    if not info.filename.endswith(".py") or info.file_size > LONGEST:
        return OPEN
    key = (info.filename, info.CRC, info.file_size)
    if key not in readers.modules:
        readers.modules[key] = module(wheel_metadata.bounded(archive, info), name, package=is_package(info.filename))
    return readers.modules[key]


def _listed(readers: _Readers, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Module:
    if not info.filename.endswith(".py") or info.file_size > LONGEST:
        return OPEN
    key = (info.filename, info.CRC, info.file_size)
    if key not in readers.listed:
        readers.listed[key] = Module(listed(wheel_metadata.bounded(archive, info)))
    return readers.listed[key]


# From the names of each release to spans of releases.


def shared(
    required: Mapping[str, Sequence[RequiredName]], lacking: Mapping[str, Mapping[str, _Lacking]]
) -> Iterator[SharedName]:
    """Yield the names that some releases of a package require and some releases of a provider lack.

    Args:
        required: release of the package -> its names, the oldest first.
        lacking: provider -> its release -> the names that this does not define, the oldest first.
    """
    for provider, releases in lacking.items():
        missing_parts = _parts(releases)
        # (missing part, module, certain) -> by release
        uses: dict[tuple[_Part, bool, bool], dict[str, RequiredName]] = {}
        for version, names in required.items():
            for required_name in sorted(names, key=lambda name: not name.certain):
                for part in missing_parts.get((required_name.name, required_name.modules, required_name.keyword), ()):
                    key = (part, part[0].count(".") < required_name.modules)
                    if version not in uses.get((*key, True), {}):
                        uses.setdefault((*key, required_name.certain), {}).setdefault(version, required_name)
        lacked = _lacked(releases)
        for (part, is_module, certain), by_release in uses.items():
            if len(lacked[part]) == len(releases):  # so it is made in a way that sources do not show
                continue
            newest = list(by_release.values())[-1]
            name, keyword = part
            yield SharedName(
                provider,
                name,
                is_module,
                newest.path,
                newest.line,
                certain,
                spans(by_release, list(required), open_ended=False),
                spans(lacked[part], list(releases), open_ended=True),
                keyword,
            )


def _parts(releases: Mapping[str, _Lacking]) -> dict[_Name, set[_Part]]:
    """Return for each name the parts of it that some release does not define."""
    parts_by_name: dict[_Name, set[_Part]] = {}
    for lacking in releases.values():
        for name, part in lacking.items():
            parts_by_name.setdefault(name, set()).add(part)
    return parts_by_name


def _lacked(releases: Mapping[str, _Lacking]) -> dict[_Part, set[str]]:
    """Return for each missing part the releases that lack it, or what stands before a name."""
    missing = {version: set(lacking.values()) for version, lacking in releases.items()}
    return {
        part: {version for version, missing_parts in missing.items() if not missing_parts.isdisjoint(_above(part))}
        for part in set[_Part]().union(*missing.values())
    }


def _above(part: _Part) -> Iterator[_Part]:
    name, keyword = part
    yield from [part] if keyword else ((prefix, "") for prefix in _prefixes(name))
