"""Choose the wheel of a compiled component from the places of this machine, and lock it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.audit.model import Finding
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BuildError, LockError
from imagegen.core.net import Client, package_index
from imagegen.core.net.package_index import IndexLink
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.model import LINKS, URL, Lock, LockedFile, LockedWheel
from imagegen.lock.recipes import Compiled, allowed, environment
from imagegen.lock.resolution_inputs import pep508
from imagegen.spec.model import Cell, Component
from imagegen.spec.model import Requirement as Asked
from imagegen.spec.recipe import Commit, LocalSource, Recipe, SdistFile
from imagegen.wheels import wheelhouse
from imagegen.wheels.catalogue import Catalogue
from imagegen.wheels.find import Offer, WheelListing, WheelRequirement, WheelSources, find
from imagegen.wheels.offers import Candidate, WheelSource

COMPILED = frozenset(
    {WheelSource.WHEELHOUSE, WheelSource.TEAM, WheelSource.SOURCE}
)  # whose wheels stand in a lock as builds


class WheelSelector(Protocol):
    """Selects the wheel of a component."""

    def versions(self, package: str) -> Iterable[str]:
        """Return releases that may have a wheel, in addition to the releases of a recipe."""

    def choose(self, need: WheelRequirement, index: str) -> Candidate | None:
        """Return the first wheel that fits, else the source build; `index` is the component's own."""


@dataclass(frozen=True)
class LocalWheelSelector:
    """The selector of this machine's wheels. `examine` audits one wheel, for the cell's GPUs and a release of torch."""

    catalogue: Catalogue
    examine: Callable[[Path, str | None], Sequence[Finding]]
    context: Context

    def versions(self, package: str) -> Iterable[str]:
        return self.catalogue.versions(package)

    def choose(self, need: WheelRequirement, index: str) -> Candidate | None:
        with Client(self.context.settings) as client:
            listing = index_listing(index, need.package, self.context.settings, client)
            sources = candidate_places(
                self.catalogue, listing, self.context.settings, self.context.store, client, self.context.progress
            )
            candidates = find(need, sources, lambda path: self.examine(path, need.torch))
        chosen = next((candidate for candidate in candidates if candidate.fits), None)
        self._report(need, candidates, chosen)
        return chosen

    def _report(self, need: WheelRequirement, candidates: Sequence[Candidate], chosen: Candidate | None) -> None:
        """Report the choice; for a source build also why the best candidate of each source does not fit."""
        answer = f"{chosen.place}, {chosen.reason}" if chosen else "no wheel fits, and none can be compiled"
        self.context.progress.say(f"{need.package} {need.version}: {answer}")
        if chosen is None or chosen.place is WheelSource.SOURCE:
            best = {candidate.place: candidate for candidate in reversed(candidates) if not candidate.fits}
            for rejected in reversed(best.values()):
                self.context.progress.say(
                    "  "
                    + ": ".join(filter(None, [rejected.place, rejected.filename or rejected.where, rejected.reason]))
                )


def wheel_of(component: Compiled, candidate: Candidate, via: tuple[str, ...]) -> LockedWheel:
    """Return the locked form of a wheel that was found."""
    assert candidate.sha256 and candidate.size is not None  # noqa: S101 - its file was examined
    index = {WheelSource.CATALOGUE: URL, WheelSource.LINKS: LINKS}.get(candidate.place, component.requirement.index)
    file = LockedFile(
        candidate.filename,
        candidate.size,
        candidate.sha256,
        index,
        package_index.hint(candidate.where, candidate.filename) if candidate.place is WheelSource.INDEX else None,
        candidate.where if candidate.place is WheelSource.CATALOGUE else None,
    )
    name, version, _, _ = parse_wheel_filename(candidate.filename)
    why = f"{candidate.place}: {candidate.reason}"
    return LockedWheel(name, str(version), file, via=via, because=component.requirement.because, choice=why)


# The places on this machine that are searched for wheels of compiled components.


def candidate_places(
    catalogue: Catalogue,
    index: WheelListing | None,
    settings: Settings,
    store: Store,
    client: Client,
    progress: Progress,
) -> WheelSources:
    """Return all places in their order; `index` is the listing of the component's own index."""
    # Short timeouts: a host that does not respond is one place of many.
    quick = client.impatient()
    repository = wheelhouse.place(settings)
    team = wheelhouse.RemoteWheelhouse(repository, client, settings) if repository else None
    return WheelSources(
        store=store,
        client=client,
        progress=progress,
        wheelhouse=partial(wheelhouse.known, store),
        team=team.lookup if team else None,
        team_name=str(team) if team else "",
        links=tuple(
            WheelListing(link, _offered(partial(package_index.find_links, quick, link))) for link in settings.find_links
        ),
        index=index,
        catalogue=catalogue.offers,
    )


def index_listing(alias: str, package: str, settings: Settings, client: Client) -> WheelListing | None:
    """Return the files of a package in the alias's index, without a cutoff; None if the alias has no address."""
    url = package_index.url_of(alias, settings)
    if url is None:
        return None
    return WheelListing(alias, _offered(partial(package_index.project, client.impatient(), url, package)))


def version_of(component: Component, specifier: str, recipe: Recipe | None, catalogue: Catalogue) -> str:
    """The newest version that recipe and catalogue know, as a lock takes it, or the one that the specifier pins.

    Raises LockError where there is none.
    """
    versions = {*(recipe.releases if recipe else ()), *catalogue.versions(component.package)}
    if fitting := allowed(specifier, versions):
        return fitting[-1]
    if pinned := _exact(specifier):
        return pinned
    raise LockError(
        f"no version of {component.name}{specifier} is known",
        code="lock-no-version",
        why=f"recipes and catalogue know {', '.join(sorted(versions, key=Version)) or 'none'}",
        fix=f"pin one with == where the cell asks for it, or write a recipe of {component.name} under wheels/",
    )


def need_of(
    component: Component, version: str, cell: Cell, locked: Lock | None, recipe: Recipe | None
) -> WheelRequirement:
    """Return a cell's requirement on a component, from its lock if it has one, else from the matrix's pin.

    Raises LockError where only a lock has the torch version.
    """
    target = WheelTarget.of(cell.platform, cell.base.glibc, locked.interpreter.version if locked else cell.python)
    builds = locked.builds if locked else ()
    key = next((build.key for build in builds if (build.name, build.version) == (component.package, version)), None)
    source = recipe.releases.get(version) if recipe else None
    obstacle = _obstacle(component, version, cell, recipe) if recipe and source and not key else None
    return WheelRequirement(
        package=component.package,
        version=version,
        python=cell.python,
        platform=target.uv_platform,
        ranks=target.ranks,
        torch=_torch(cell, locked),
        cuda=cell.cuda_version,
        key=key,
        source=_named(source) if source and not obstacle else None,
        obstacle=obstacle,
        from_source=any(
            requirement.from_source for requirement in cell.requirements if requirement.component.name == component.name
        ),
    )


def _obstacle(component: Component, version: str, cell: Cell, recipe: Recipe) -> str | None:
    """Why the recipe cannot serve the cell, as far as that is known without a lock."""
    source = recipe.releases[version]
    if isinstance(source, LocalSource) and not source.path.exists():
        return f"{source.path} is not there"
    try:
        environment(Compiled(Asked(component, "", "", package_index.DEFAULT), recipe.of(version), version), cell)
    except BuildError as error:
        return error.summary
    return None


def _torch(cell: Cell, locked: Lock | None) -> str | None:
    if locked:
        return next((wheel.version for wheel in locked.wheels if wheel.name == "torch"), None)
    requested = next(
        (requirement for requirement in cell.requirements if requirement.component.package == "torch"), None
    )
    if requested is None:
        return None
    if pinned := _exact(str(Requirement(pep508(requested)).specifier)):
        return pinned
    raise LockError(
        f"which torch {cell.id} has is not known yet",
        code="lock-torch-undecided",
        why=f"the matrix asks for torch{requested.specifier}, and the cell is not locked",
        fix=f"`imagegen lock {cell.id}`",
    )


def uncatalogued(lock: Lock, cell: Cell, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the file names of the lock's direct downloads that the catalogue does not list for this cell.

    If another lock file describes the cell, there are none.
    """
    if cell.is_prelocked:
        return ()
    filenames = []
    components = {requirement.component.package: requirement.component for requirement in cell.requirements}
    addressed = {requirement.component.package for requirement in cell.requirements if requirement.address}
    for wheel in lock.wheels:
        if wheel.file.index != URL or wheel.name in addressed:
            continue
        need = need_of(components[wheel.name], Version(wheel.version).public, cell, lock, cell.recipes.get(wheel.name))
        offers = [offer for offer in catalogue.offers(need) if isinstance(offer, Offer) and offer.url == wheel.file.url]
        if not any(offer.sha256 in (None, wheel.file.sha256) for offer in offers):
            filenames.append(wheel.file.filename)
    return tuple(filenames)


def _exact(specifier: str) -> str | None:
    """The one version that a specifier allows."""
    exact = [
        part.version for part in SpecifierSet(specifier) if part.operator == "==" and not part.version.endswith("*")
    ]
    return exact[0] if len(exact) == 1 else None


def _named(source: SdistFile | Commit | LocalSource) -> str:
    """A release's source, as users know it."""
    match source:
        case SdistFile():
            return source.filename
        case Commit():
            return f"{source.url} at {source.commit[:12]}"
        case LocalSource():
            return str(source.path)


def _offered(read: Callable[[], Iterable[IndexLink]]) -> Callable[[], list[Offer]]:
    return lambda: [Offer(link.filename, link.url, link.sha256) for link in read() if not link.yanked]
