"""Choose the wheel of a compiled component from the places of this machine, and lock it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packaging.utils import parse_wheel_filename

from imagegen.audit.model import Finding
from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.plan.lock import indexes
from imagegen.plan.lock.model import LINKS, URL, File, LockedWheel
from imagegen.plan.lock.recipes import Compiled
from imagegen.wheels.catalogue import Catalogue
from imagegen.wheels.find import WheelRequirement, find
from imagegen.wheels.model import Candidate, Place
from imagegen.wheels.resolve import candidates

COMPILED = frozenset({Place.WHEELHOUSE, Place.TEAM, Place.SOURCE})  # whose wheels stand in a lock as builds


class WheelSelector(Protocol):
    """Selects the wheel of a component."""

    def versions(self, package: str) -> Iterable[str]:
        """Return releases that may have a wheel, besides those of a recipe."""

    def choose(self, need: WheelRequirement, index: str) -> Candidate | None:
        """The first that fits, the source build after all others; `index` is the component's own."""


@dataclass(frozen=True)
class LocalWheelSelector:
    """The chooser of this machine. `examine` is the audit of one wheel, for the cell's GPUs and a release of torch."""

    catalogue: Catalogue
    examine: Callable[[Path, str | None], Sequence[Finding]]
    settings: Settings
    store: Store
    progress: Progress

    def versions(self, package: str) -> Iterable[str]:
        return self.catalogue.versions(package)

    def choose(self, need: WheelRequirement, index: str) -> Candidate | None:
        with Client(self.settings) as client:
            listing = candidates.index(index, need.package, self.settings, client)
            places = candidates.places(self.catalogue, listing, self.settings, self.store, client, self.progress)
            found = find(need, places, lambda path: self.examine(path, need.torch))
        chosen = next((each for each in found if each.fits), None)
        self._tell(need, found, chosen)
        return chosen

    def _tell(self, need: WheelRequirement, found: Sequence[Candidate], chosen: Candidate | None) -> None:
        """Report the choice; for a source build, what the best candidate of each place lacks."""
        answer = f"{chosen.place}, {chosen.reason}" if chosen else "no wheel fits, and none can be compiled"
        self.progress.say(f"{need.package} {need.version}: {answer}")
        if chosen is None or chosen.place is Place.SOURCE:
            best = {each.place: each for each in reversed(found) if not each.fits}
            for each in reversed(best.values()):
                self.progress.say(
                    "  " + ": ".join(filter(None, [each.place, each.filename or each.where, each.reason]))
                )


def wheel_of(each: Compiled, found: Candidate, via: tuple[str, ...]) -> LockedWheel:
    """Return the locked form of a wheel that was found."""
    assert found.sha256 and found.size is not None  # noqa: S101 - its file was examined
    index = {Place.CATALOGUE: URL, Place.LINKS: LINKS}.get(found.place, each.requirement.index)
    file = File(
        found.filename,
        found.size,
        found.sha256,
        index,
        indexes.hint(found.where, found.filename) if found.place is Place.INDEX else None,
        found.where if found.place is Place.CATALOGUE else None,
    )
    name, version, _, _ = parse_wheel_filename(found.filename)
    why = f"{found.place}: {found.reason}"
    return LockedWheel(name, str(version), file, via=via, because=each.requirement.because, choice=why)
