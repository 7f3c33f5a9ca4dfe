"""Find the wheel of a component that needs a compiler: places in order, each candidate with the reason.

The file name is only a first filter: each remaining file is fetched, hashed and audited, in the order of the places,
until one fits. Later candidates are listed and not fetched. A file that cannot be fetched is a candidate that does not
fit, not an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from imagegen.audit.model import Finding, Severity
from imagegen.core.errors import FetchError, WheelError
from imagegen.core.net import Client, NotFoundError, UnreachableError, file_path, is_file
from imagegen.core.progress import Meter, Progress
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache, StoredBlob
from imagegen.core.text import counted, redact
from imagegen.lock.builds import BuiltWheel
from imagegen.oci.documents import digest_of
from imagegen.wheels import naming
from imagegen.wheels.naming import ParsedWheelName, WheelRequirement
from imagegen.wheels.offers import Candidate, Offer, WheelSource

__all__ = ["Candidate", "Examine", "Offer", "WheelListing", "WheelRequirement", "WheelSources", "find", "unreachable"]

Examine = Callable[[Path], Sequence[Finding]]  # of a wheel's file, under its own name; an error disqualifies it

_OTHER_MINOR = "torch-other-minor"  # of an environment a warning, since it may be meant; a wheel is still to be chosen
_AWAY = "cannot be reached"
_ADDRESSES = BlobCache("address")


@dataclass(frozen=True)
class WheelListing:
    """A find-links place, or an index: `read` gives its files of the package and may raise FetchError or OSError."""

    where: str  # as the user named it: a directory, an address, or an index's alias
    read: Callable[[], Sequence[Offer]]


def _nothing(_: WheelRequirement) -> Sequence[Offer | Candidate]:
    return ()


@dataclass(frozen=True)
class WheelSources:
    """The sources of candidates, as callables, so that the caller decides what is read."""

    store: Store  # fetched files are written there
    client: Client
    progress: Progress
    wheelhouse: Callable[[str], BuiltWheel | None]  # by key
    team: Callable[[str], BuiltWheel | None] | None = None  # by key, may raise FetchError; None: not configured
    team_name: str = ""  # "registry.example/wheels"
    links: tuple[WheelListing, ...] = ()
    index: WheelListing | None = None
    catalogue: Callable[[WheelRequirement], Sequence[Offer | Candidate]] = _nothing  # candidates are refused already


def find(need: WheelRequirement, sources: WheelSources, examine: Examine | None) -> tuple[Candidate, ...]:
    """Return all candidates, in the order of the places; within one place, those with a fitting name first.

    Without `examine` a name that fits is enough. Raises StoreError where the store cannot store a file.
    """
    search = _Search(need, sources, examine)
    for candidate in search.candidates():
        search.found.append(candidate)
    return tuple(search.found)


class _Search:
    """A search for the wheel of one component through the places."""

    def __init__(self, need: WheelRequirement, sources: WheelSources, examine: Examine | None) -> None:
        self.need, self.places, self.examine = need, sources, examine
        self.found: list[Candidate] = []
        self._quick = sources.client.impatient()  # one for all, since it does not ask a dead host twice

    def candidates(self) -> Iterator[Candidate]:
        yield self._kept(WheelSource.WHEELHOUSE, "this machine's store", self.places.wheelhouse)
        if self.places.team:
            yield self._kept(WheelSource.TEAM, self.places.team_name, self.places.team)
        for listing in self.places.links:
            yield from self._listed(WheelSource.LINKS, listing)
        if self.places.index:
            yield from self._listed(WheelSource.INDEX, self.places.index)
        offers = self.places.catalogue(self.need)
        refused = [offer for offer in offers if isinstance(offer, Candidate)]
        yield from self._judged(WheelSource.CATALOGUE, [offer for offer in offers if isinstance(offer, Offer)])
        yield from refused
        yield self._source()

    def _kept(self, source: WheelSource, where: str, ask: Callable[[str], BuiltWheel | None]) -> Candidate:
        if self.need.key is None:
            why = "a build that cannot be has no key" if self.need.obstacle else "only a lock tells the build's key"
            return Candidate(source, "", where, fits=False, reason=f"not asked: {why}")
        try:
            wheel = ask(self.need.key)
        except FetchError as error:
            return Candidate(source, "", where, fits=False, reason=_failure(error))
        if wheel is None:
            return Candidate(source, "", where, fits=False, reason=f"has nothing under {self.need.key[:19]}…")
        reason = "compiled from the same sources, for the same torch, Python and GPUs"
        return Candidate(source, wheel.filename, where, fits=True, reason=reason, sha256=wheel.sha256, size=wheel.size)

    def _listed(self, source: WheelSource, listing: WheelListing) -> Iterator[Candidate]:
        """Yield the package's wheels: of a find-links place all versions, of an index the requested one."""
        try:
            offers = listing.read()
        except (FetchError, OSError) as error:
            yield Candidate(source, "", redact(listing.where), fits=False, reason=_failure(error))
            return
        package_offers = [
            offer for offer in offers if (parsed := naming.read(offer.filename)) and parsed.package == self.need.package
        ]
        required = [
            package_offer
            for package_offer in package_offers
            if source is WheelSource.LINKS or self._has_version(naming.read(package_offer.filename))
        ]
        if not required:
            reason = f"has no wheel of {self.need.package} {self.need.version}"
            yield Candidate(source, "", redact(listing.where), fits=False, reason=reason)
        yield from self._judged(source, required)

    def _has_version(self, parsed: ParsedWheelName | None) -> bool:
        return parsed is not None and parsed.version == Version(Version(self.need.version).public)

    def _judged(self, source: WheelSource, offers: Sequence[Offer]) -> Iterator[Candidate]:
        """Yield the place's candidates: those with a fitting name first, better tags before others."""
        judged = [
            (self._refusal(parsed), parsed, candidate_offer)
            for candidate_offer in offers
            if (parsed := naming.read(candidate_offer.filename))
        ]

        def order(item: tuple[str | None, ParsedWheelName, Offer]) -> tuple[bool, bool, str, int, int, str, str]:
            why, parsed, offer = item
            rank, build = parsed.rank(self.need), parsed.build[0] if parsed.build else 0
            return why is not None, rank is None, why or "", rank or 0, -build, offer.filename, offer.url

        for why, parsed, offer in sorted(judged, key=order):
            where = redact(offer.url)
            refused = Candidate(source, parsed.filename, where, False, why or "", offer.sha256, offer.size)
            yield refused if why else self._examined(refused, parsed, offer)

    def _refusal(self, parsed: ParsedWheelName) -> str | None:
        if not self._has_version(parsed):
            return f"it is {parsed.version}, the cell has {self.need.version}"
        compiled = "the matrix asks for one that is compiled here (from_source)" if self.need.from_source else None
        return naming.mismatch(parsed, self.need) or compiled

    def _examined(self, candidate: Candidate, parsed: ParsedWheelName, offer: Offer) -> Candidate:
        """Return the candidate judged by its file; unfetched if an earlier candidate fits."""
        if earlier := next((earlier for earlier in self.found if earlier.fits), None):
            return replace(candidate, reason=f"not looked at: {earlier.filename} ({earlier.place}) comes first")
        says = naming.sayings(parsed)
        statement = f"its name says {says}" if says else "its name says nothing of torch or CUDA"
        try:
            path, sha256, size = self._obtained(offer)
        except (FetchError, OSError) as error:
            return replace(candidate, reason=_failure(error))
        candidate = replace(candidate, sha256=sha256, size=size)
        if self.examine is None:
            return replace(candidate, fits=True, reason=statement)
        try:
            with self.places.store.temporary_directory("wheel") as work_dir:
                link = work_dir / candidate.filename
                link.symlink_to(path)
                errors = [finding for finding in self.examine(link) if _disqualifies(finding)]
        except WheelError as error:
            return replace(candidate, reason=error.summary)
        if errors:
            suffix = f", and {counted(len(errors) - 1, 'more error')}" if len(errors) > 1 else ""
            return replace(candidate, reason=f"the audit: {errors[0].evidence}{suffix}")
        return replace(candidate, fits=True, reason=f"{statement}, and the audit finds no error")

    def _obtained(self, offer: Offer) -> tuple[Path, str, int]:
        """The file of an offer, its sha256 and its size. Raises FetchError, also for other bytes than are known."""
        if is_file(offer.url):
            return _hashed(file_path(offer.url), offer)
        store = self.places.store
        if offer.sha256 and offer.size and store.intact(f"sha256:{offer.sha256}", offer.size):
            return store.path(f"sha256:{offer.sha256}"), offer.sha256, offer.size
        size = self._quick.size(offer.url)  # with a short timeout: an unreachable host is reported within seconds
        sha256 = offer.sha256 or self._remembered(offer.url, size)
        with self.places.progress.meter(f"fetching {offer.filename}", size) as meter:
            if sha256:
                download_size = offer.size or size
                self.places.client.download(offer.url, store, sha256=sha256, size=download_size, meter=meter)
            else:
                with store.writer() as writer:
                    self.places.client.stream(offer.url, _Counting(writer.write, meter), size=size)
                    sha256 = writer.commit().removeprefix("sha256:")
                _ADDRESSES.put(store, digest_of(offer.url.encode()), StoredBlob(f"sha256:{sha256}", size))
        return store.path(f"sha256:{sha256}"), sha256, size

    def _remembered(self, url: str, size: int) -> str | None:
        """Return the digest that this address gave before, if it still has as many bytes and the store has them."""
        blob = _ADDRESSES.get(self.places.store, digest_of(url.encode()))
        if blob and blob.size == size and self.places.store.intact(blob.digest, size):
            return blob.digest.removeprefix("sha256:")
        return None

    def _source(self) -> Candidate:
        if self.need.source is None:
            no_recipe = f"no recipe under wheels/ compiles {self.need.package} {self.need.version}"
            obstacle = self.need.obstacle or no_recipe
            return Candidate(WheelSource.SOURCE, "", "", fits=False, reason=obstacle)
        away = len(unreachable(self.found))
        missed = f"; {away} whose {'name does' if away == 1 else 'names do'} cannot be reached" if away else ""
        reason = f"compiled for this cell, since no wheel fits{missed}"
        if self.need.from_source:
            reason = "compiled for this cell, as the matrix asks (from_source)"
        elif any(candidate.fits for candidate in self.found):
            reason = "could be compiled for this cell"
        return Candidate(WheelSource.SOURCE, self.need.source, f"recipe {self.need.package}", fits=True, reason=reason)


def unreachable(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates whose names fit and whose files cannot be reached: whether one serves is not known."""
    return [candidate for candidate in candidates if candidate.filename and candidate.reason.startswith(_AWAY)]


def _disqualifies(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR or finding.id == _OTHER_MINOR


class _Counting:
    """A stream into the store that counts its bytes on a meter."""

    def __init__(self, write: Callable[[bytes], int], meter: Meter) -> None:
        self._write, self._meter = write, meter
        self.size = 0

    def write(self, data: bytes, /) -> None:
        self._write(data)
        self.size += len(data)
        self._meter.advance(len(data))


def _hashed(path: Path, offer: Offer) -> tuple[Path, str, int]:
    """A file of this machine where it lies."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    if offer.sha256 not in (None, sha256):
        raise FetchError(
            f"{path.name} is not the expected file",
            code="fetch-digest-mismatch",
            why=f"expected sha256 {offer.sha256}, got {sha256}",
        )
    return path.resolve(), sha256, size


def _failure(error: FetchError | OSError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    if isinstance(error, NotFoundError):
        return "is not there"
    if isinstance(error, UnreachableError):
        return f"{_AWAY}: {error.why}"
    return redact(error.summary)
