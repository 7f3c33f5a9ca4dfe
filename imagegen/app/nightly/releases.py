"""The releases of components that are newer than the locked ones, from package indexes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, package_index
from imagegen.core.net.package_index import IndexLink
from imagegen.core.progress import Progress
from imagegen.core.wheel_target import WheelTarget
from imagegen.spec.model import Cell, Requirement
from imagegen.wheels.selector import WheelSelector

_THREADS = 8  # pages at once


@dataclass(frozen=True)
class NewerRelease:
    """A release of a component. `version` is public; `lacks` is the reason that excludes it from the cell, or None.

    Indexes state the day of an upload: only the resolver decides whether one from `today` came before the cutoff.
    """

    version: str
    lacks: str | None = None
    today: bool = False


class ReleaseIndex:
    """The releases of components, newest first, as of a cutoff; each index is read once."""

    def __init__(self, as_of: str, settings: Settings, selector: WheelSelector, progress: Progress) -> None:
        self._until = dt.date.fromisoformat(as_of[:10])
        self._settings = settings
        self._selector = selector
        self._progress = progress
        self._links: dict[tuple[str, str], tuple[IndexLink, ...]] = {}
        self._fetched: set[str] = set()  # cells of which all is known

    def _fetch(self, cell: Cell) -> None:
        """Ask for all of the cell's components at once."""
        self._fetched.add(cell.id)
        requested = [
            requirement
            for requirement in cell.requirements
            if not requirement.git and requirement.component.package not in cell.recipes
        ]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda needed: self._project(needed.index, needed.component.package), requested))

    def of(self, requested: Requirement, cell: Cell, target: WheelTarget) -> tuple[NewerRelease, ...]:
        """Return the releases of a component, newest first; a git component has none.

        An index that does not respond is logged and yields no releases; the resolution raises the error if it needs
        that index.
        """
        package = requested.component.package
        if requested.git:
            return ()
        if cell.id not in self._fetched:
            self._fetch(cell)
        if recipe := cell.recipes.get(package):
            versions = {*recipe.releases, *(() if requested.from_source else self._selector.versions(package))}
            return tuple(NewerRelease(version) for version in sorted(versions, key=Version, reverse=True))
        return tuple(_releases(self._project(requested.index, package), self._until, target))

    def _project(self, alias: str, package: str) -> tuple[IndexLink, ...]:
        if (alias, package) not in self._links:
            self._links[alias, package] = self._ask(alias, package)
        return self._links[alias, package]

    def _ask(self, alias: str, package: str) -> tuple[IndexLink, ...]:
        url = package_index.url_of(alias, self._settings)
        try:
            with Client(self._settings) as client:
                links = package_index.project(client.impatient(), url, package) if url else []
        except FetchError as error:
            self._progress.say(f"whether there is a newer {package} is not known: {error.what}")
            return ()
        return tuple(link for link in links if is_file_of(link.filename, package))


def _releases(links: Iterable[IndexLink], until: dt.date, target: WheelTarget) -> Iterator[NewerRelease]:
    links_by_version: dict[Version, list[IndexLink]] = {}
    for link in links:
        if not link.yanked and (link.uploaded is None or link.uploaded <= until):
            links_by_version.setdefault(_version(link.filename), []).append(link)
    for version in sorted(links_by_version, reverse=True):
        if not version.is_prerelease:
            today = min(filter(None, (link.uploaded for link in links_by_version[version])), default=None) == until
            yield NewerRelease(version.public, _lacks(links_by_version[version], target), today)


def _lacks(links: list[IndexLink], target: WheelTarget) -> str | None:
    python = next((link.python for link in links if link.python), "")
    try:
        if not SpecifierSet(python).contains(target.python):
            return f"it is for Python {python}"
    except ValueError:  # uv reads some that packaging does not
        pass
    wheels = [link.filename for link in links if link.filename.endswith(".whl")]
    if wheels and target.best((name, name) for name in wheels) is None:
        return f"it has no wheel for Python {target.python} on {target.uv_platform}"
    return None


def is_file_of(filename: str, package: str) -> bool:
    try:
        name = parse_wheel_filename(filename)[0] if filename.endswith(".whl") else parse_sdist_filename(filename)[0]
    except ValueError:
        return False
    return name == package


def _version(filename: str) -> Version:
    return parse_wheel_filename(filename)[1] if filename.endswith(".whl") else parse_sdist_filename(filename)[1]
