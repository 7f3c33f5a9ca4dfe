"""Choose the wheel of a compiled component from the places of this machine, and lock it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from packaging.utils import parse_wheel_filename

from imagegen.audit.readers.loose_wheels import audit_wheel
from imagegen.core.context import Context
from imagegen.core.gpu import Gpu
from imagegen.core.net import Client, package_index
from imagegen.lock.components import Compiled
from imagegen.lock.model import LINKS, URL, LockedFile, LockedWheel
from imagegen.wheels.catalogue import Catalogue
from imagegen.wheels.find import WheelRequirement, find
from imagegen.wheels.offers import Candidate, WheelSource
from imagegen.wheels.search import candidate_places, index_listing

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
    """The selector of this machine's wheels, which are audited for the cell's GPUs."""

    catalogue: Catalogue
    gpus: tuple[Gpu, ...]
    context: Context

    def versions(self, package: str) -> Iterable[str]:
        return self.catalogue.versions(package)

    def choose(self, need: WheelRequirement, index: str) -> Candidate | None:
        with Client(self.context.settings) as client:
            listing = index_listing(index, need.package, self.context.settings, client)
            sources = candidate_places(
                self.catalogue, listing, self.context.settings, self.context.store, client, self.context.progress
            )
            candidates = find(need, sources, partial(audit_wheel, gpus=self.gpus, torch=need.torch))
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
