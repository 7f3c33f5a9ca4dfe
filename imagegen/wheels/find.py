"""Finding the wheel of a component that needs a compiler: places in order, each candidate with the reason.

A name is only a first filter: of what is left, the file itself is hashed and examined, in the order of the places,
until one fits. What comes after it is told, and not fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag

from imagegen.audit.model import Finding
from imagegen.net import Client
from imagegen.progress import Progress
from imagegen.store import Store
from imagegen.wheels.model import BuiltWheel, Candidate

Examine = Callable[[Path], Sequence[Finding]]  # of a wheel's file, under its own name; an error disqualifies it


@dataclass(frozen=True)
class Need:
    """What a cell needs of a component."""

    package: str  # normalised (PEP 503)
    version: str  # as the resolution chose it: "2.8.3"
    python: str  # "3.11"
    platform: str  # as uv calls it: "x86_64-manylinux_2_36"
    ranks: Mapping[Tag, int]  # every tag that fits -> its rank, 0 for the most specific: `lock.target.Target.ranks`
    torch: str | None  # the cell's release: "2.11.0", "2.8.0+cu128"; None: it has none
    cuda: str | None  # the CUDA of torch's build: "13.0"; None: it has none
    key: str | None = None  # of the source build, "sha256:..."; None: not known, so that no wheelhouse is asked
    source: str | None = None  # what a source build is made of: "flash_attn-2.8.3.tar.gz"; None: there is no recipe


@dataclass(frozen=True)
class Offer:
    """A wheel that a place has, as far as the place tells it."""

    filename: str
    url: str
    sha256: str | None = None
    size: int | None = None  # bytes


@dataclass(frozen=True)
class Listing:
    """A find-links place, or an index: `read` gives its files of the package and may raise FetchError or OSError."""

    where: str  # as the user named it: a directory, an address, or an index's alias
    read: Callable[[], Sequence[Offer]]


@dataclass(frozen=True)
class Places:
    """Where candidates come from, as callables, so that whoever asks decides what is read."""

    store: Store  # what is fetched goes there
    client: Client
    progress: Progress
    wheelhouse: Callable[[str], BuiltWheel | None]  # by key
    team: Callable[[str], BuiltWheel | None] | None = None  # by key, may raise FetchError; None: nobody has named one
    team_name: str = ""  # "registry.example/wheels"
    links: tuple[Listing, ...] = ()
    index: Listing | None = None
    catalogue: Callable[[Need], Sequence[Offer | Candidate]] = lambda need: ()  # candidates: refused without a look


def find(need: Need, places: Places, examine: Examine | None) -> tuple[Candidate, ...]:
    """All candidates, in the order in which they are asked. What cannot be had is one that does not fit."""
    raise NotImplementedError


def choice(candidates: Sequence[Candidate]) -> Candidate:
    """The first that fits. Raises LockError where none does."""
    raise NotImplementedError
