"""The tags of a published image. No I/O.

An image has one immutable tag and several mutable ones; each tagger is a row of a table. Source of what a tag may be:
OCI distribution-spec v1.1, "Pulling manifests".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, takewhile
from typing import Literal, get_args

from imagegen.core.errors import PublishError
from imagegen.core.oci import canonical_json, digest_of
from imagegen.core.types import Compression
from imagegen.plan.lock import inputs_hash
from imagegen.plan.lock.model import Lock, title
from imagegen.plan.matrix.model import Cell

Channel = Literal["latest", "nightly"]
CHANNELS: tuple[Channel, ...] = ("latest", "nightly")
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)

LONGEST = 128  # characters
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_INVALID = re.compile(r"[^A-Za-z0-9._-]")
_HASH_DIGITS = 8
_IMMUTABLE = re.compile(rf"\d{{4}}\.\d\d\.\d\d-(.*)-([0-9a-f]{{{_HASH_DIGITS}}})(?:-gzip)?")
# An axis's value of this name would make one tag mean two things.
_RESERVED = frozenset({"latest", "nightly", "gzip"})
COMPRESSION_SUFFIXES: Mapping[Compression, str] = {"zstd": "", "gzip": "-gzip"}


@dataclass(frozen=True)
class TagInput:
    """The input of taggers. `defaults` are the axes of the image's default cell."""

    cell: str
    suffix: str  # the cell's id without the image's name: "cu130-py311"
    axes: Mapping[str, str]
    defaults: Mapping[str, str]
    title: str
    as_of: str
    inputs: str  # "sha256:..."
    channel: Channel
    compression: Compression = "zstd"

    @classmethod
    def of(
        cls, lock: Lock, defaults: Mapping[str, str], channel: Channel = "latest", compression: Compression = "zstd"
    ) -> TagInput:
        suffix = lock.cell.removeprefix(f"{lock.image}-")
        return cls(
            lock.cell, suffix, lock.axes, defaults, title(lock), lock.as_of, inputs_hash(lock), channel, compression
        )

    @classmethod
    def of_index(
        cls,
        locks: Sequence[Lock],
        defaults: Mapping[str, str],
        channel: Channel = "latest",
        compression: Compression = "zstd",
    ) -> TagInput:
        """Return the input for the index of images that differ in the platform alone.

        The tags are those of the first lock on the default platform, with a hash of the inputs of all locks.
        """
        first = cls.of(locks[0], defaults, channel, compression)
        return replace(first, axes={**first.axes, "platform": defaults["platform"]}, inputs=index_inputs(locks))

    @property
    def differs(self) -> frozenset[str]:
        """The axes on which it is not the image's default cell."""
        return frozenset(axis for axis, value in self.axes.items() if self.defaults.get(axis) != value)


def index_inputs(locks: Iterable[Lock]) -> str:
    """Return the hash of the inputs of an index: of those of its images, by platform."""
    return digest_of(canonical_json({lock.platform: inputs_hash(lock) for lock in locks}))


@dataclass(frozen=True)
class Tags:
    """The tags of one image or index: `immutable` names its inputs forever, `mutable` the newest one of a channel."""

    immutable: str
    mutable: tuple[str, ...]


Tagger = Callable[[TagInput], str | None]


def immutable_tag(subject: TagInput) -> str:
    """Return the immutable tag: 2026.11.20-torch2.13.0-cu130-vllm0.31.0-py311-1a2b3c4d.

    A long title is cut at its end.
    """
    others = sorted(subject.differs - {"cuda", "python"})  # the title says these two
    date = subject.as_of.partition("T")[0].replace("-", ".")
    named = "-".join([date, subject.title, *(subject.axes[axis] for axis in others)])
    ending = "-" + subject.inputs.removeprefix("sha256:")[:_HASH_DIGITS]
    return _INVALID.sub("-", named)[: LONGEST - len(ending) - len(COMPRESSION_SUFFIXES[subject.compression])] + ending


def most_similar(name: str, tags: Iterable[str]) -> str | None:
    """Return the immutable tag most similar to `name`: the longest common beginning of the title; of those the
    newest.
    """
    others = [tag for tag in tags if tag != name and _IMMUTABLE.fullmatch(tag)]
    return max(others, key=lambda tag: (_common(_title(name), _title(tag)), tag), default=None)


def _common(one: str, other: str) -> int:
    """Characters that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _title(tag: str) -> str:
    match = _IMMUTABLE.fullmatch(tag)
    return match[1] if match else ""


def _latest(subject: TagInput) -> str | None:
    return "latest" if subject.channel == "latest" and not subject.differs else None


def _cuda(subject: TagInput) -> str | None:
    """Return the tag of the CUDA version for the one cell with it that is nearest to the default; None for others."""
    return subject.axes["cuda"] if subject.channel == "latest" and subject.differs <= {"cuda"} else None


def _cell_suffix(subject: TagInput) -> str | None:
    return subject.suffix if subject.channel == "latest" else None


def _nightly(subject: TagInput) -> str | None:
    if subject.channel != "nightly":
        return None
    return f"nightly-{subject.suffix}" if subject.differs else "nightly"


MUTABLE_TAGGERS: tuple[Tagger, ...] = (_latest, _cuda, _cell_suffix, _nightly)


def tags(subject: TagInput) -> Tags:
    """Return all tags of an image. One in another compression has tags of its own: it is other bytes for the same
    inputs.

    Raises PublishError for a mutable tag that no registry takes, or that would have a second meaning.
    """
    if words := _RESERVED & set(re.split("[-./]", subject.suffix)):
        why = f'"{min(words)}" is a word of the tags themselves, and one of the cell\'s axes has it as a value'
        raise PublishError(
            f"{subject.cell} cannot have tags",
            code="publish-no-tags",
            why=why,
            fix="name that value otherwise in the matrix",
        )
    mutable = _mutable(subject)
    for tag in mutable:
        if not _TAG.fullmatch(tag):
            why = f"{tag} has {len(tag)} characters, and a tag has at most {LONGEST}"
            raise PublishError(
                f"{subject.cell} cannot have tags",
                code="publish-no-tags",
                why=why,
                fix="shorten the values of its axes",
            )
    return Tags(immutable_tag(subject) + COMPRESSION_SUFFIXES[subject.compression], mutable)


def contradiction(tag: str, locks: Sequence[Lock], cells: Iterable[Cell], default: Cell) -> str | None:
    """Return why `tag` is not one of the image of a lock, or of an index of the images of several.

    None where nothing contradicts, as for a tag of another origin. `cells` are those of the image, `default` is the one
    that `latest` names.
    """
    if match := _IMMUTABLE.fullmatch(tag):
        inputs = inputs_hash(locks[0]) if len(locks) == 1 else index_inputs(locks)
        own = inputs.removeprefix("sha256:")[:_HASH_DIGITS]
        return None if match[2] == own else f"the tag names the inputs {match[2]}, the lock's are {own}"
    owners = [cell.id for cell in cells if tag in _tags_of(cell, default)]
    first = min(locks, key=lambda lock: lock.platform != default.platform)  # it gives an index its tags
    return f"the tag is that of {owners[0]}" if owners and first.cell not in owners else None


def _tags_of(cell: Cell, default: Cell) -> set[str]:
    """Return the mutable tags of a cell in every channel and compression."""
    suffix = cell.id.removeprefix(f"{cell.image}-")
    subject = TagInput(cell.id, suffix, cell.axes, default.axes, "", "", "", "latest")
    return {
        tag
        for channel, compression in product(CHANNELS, COMPRESSIONS)
        for tag in _mutable(replace(subject, channel=channel, compression=compression))
    }


def _mutable(subject: TagInput) -> tuple[str, ...]:
    found = [tag for tagger in MUTABLE_TAGGERS if (tag := tagger(subject)) is not None]
    return tuple(dict.fromkeys(_INVALID.sub("-", tag) + COMPRESSION_SUFFIXES[subject.compression] for tag in found))
