"""The tags of a published image. No I/O.

An image has one immutable tag and several mutable ones; each tagger is a row of a table. Source of the syntax: OCI
distribution-spec v1.1, "Pulling manifests".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, takewhile
from typing import Literal, get_args

from imagegen.core.errors import PublishError
from imagegen.core.types import Compression
from imagegen.lock import inputs_hash
from imagegen.lock.main_versions import title
from imagegen.lock.model import Lock
from imagegen.oci.documents import canonical_json, digest_of
from imagegen.spec.model import Cell

Channel = Literal["latest", "nightly"]
CHANNELS: tuple[Channel, ...] = ("latest", "nightly")
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)

MAX_LENGTH = 128  # characters
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_INVALID = re.compile(r"[^A-Za-z0-9._-]")
_HASH_DIGITS = 8
_IMMUTABLE = re.compile(rf"\d{{4}}\.\d\d\.\d\d-(.*)-([0-9a-f]{{{_HASH_DIGITS}}})(?:-gzip)?")
# If an axis had one of these values, a tag could have two meanings.
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
        """Return the input for the index of images that differ only in the platform.

        The tags have the values of the first lock on the default platform, with a hash of the inputs of all locks.
        """
        first = cls.of(locks[0], defaults, channel, compression)
        return replace(first, axes={**first.axes, "platform": defaults["platform"]}, inputs=index_inputs(locks))

    @property
    def differs(self) -> frozenset[str]:
        """The axes on which it is not the image's default cell."""
        return frozenset(axis for axis, value in self.axes.items() if self.defaults.get(axis) != value)


def index_inputs(locks: Iterable[Lock]) -> str:
    """Return the hash of the inputs of an index, which are the inputs of its images by platform."""
    return digest_of(canonical_json({lock.platform: inputs_hash(lock) for lock in locks}))


@dataclass(frozen=True)
class Tags:
    """The tags of an image or index: `immutable` for its inputs, `mutable` for the newest image of a channel."""

    immutable: str
    mutable: tuple[str, ...]


Tagger = Callable[[TagInput], str | None]


def immutable_tag(subject: TagInput) -> str:
    """Return the immutable tag: 2026.11.20-torch2.13.0-cu130-vllm0.31.0-py311-1a2b3c4d.

    A long title is truncated.
    """
    other_axes = sorted(subject.differs - {"cuda", "python"})  # the title has these two
    date = subject.as_of.partition("T")[0].replace("-", ".")
    stem = "-".join([date, subject.title, *(subject.axes[axis] for axis in other_axes)])
    ending = "-" + subject.inputs.removeprefix("sha256:")[:_HASH_DIGITS]
    return _INVALID.sub("-", stem)[: MAX_LENGTH - len(ending) - len(COMPRESSION_SUFFIXES[subject.compression])] + ending


def most_similar(name: str, tags: Iterable[str]) -> str | None:
    """Return the newest immutable tag whose title has the longest common prefix with `name`."""
    candidates = [tag for tag in tags if tag != name and _IMMUTABLE.fullmatch(tag)]
    return max(candidates, key=lambda tag: (_shared_length(_title(name), _title(tag)), tag), default=None)


def _shared_length(name: str, other: str) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False)))


def _title(tag: str) -> str:
    match = _IMMUTABLE.fullmatch(tag)
    return match[1] if match else ""


def _latest(subject: TagInput) -> str | None:
    return "latest" if subject.channel == "latest" and not subject.differs else None


def _cuda(subject: TagInput) -> str | None:
    """Return the tag of the CUDA version for the cell that differs from the default only in it; None for others."""
    return subject.axes["cuda"] if subject.channel == "latest" and subject.differs <= {"cuda"} else None


def _cell_suffix(subject: TagInput) -> str | None:
    return subject.suffix if subject.channel == "latest" else None


def _nightly(subject: TagInput) -> str | None:
    if subject.channel != "nightly":
        return None
    return f"nightly-{subject.suffix}" if subject.differs else "nightly"


MUTABLE_TAGGERS: tuple[Tagger, ...] = (_latest, _cuda, _cell_suffix, _nightly)


def tags(subject: TagInput) -> Tags:
    """Return all tags of an image. Another compression has other tags, since its bytes differ for the same inputs.

    Raises PublishError for a mutable tag that registries reject, or that would have two meanings.
    """
    if words := _RESERVED & set(re.split("[-./]", subject.suffix)):
        why = f'"{min(words)}" is reserved for tags, and one of the cell\'s axes has it as a value'
        raise PublishError(
            f"{subject.cell} cannot have tags", code="publish-no-tags", why=why, fix="rename that value in the matrix"
        )
    mutable = _mutable(subject)
    for tag in mutable:
        if not _TAG.fullmatch(tag):
            why = f"{tag} has {len(tag)} characters, and a tag has at most {MAX_LENGTH}"
            raise PublishError(
                f"{subject.cell} cannot have tags",
                code="publish-no-tags",
                why=why,
                fix="shorten the values of its axes",
            )
    return Tags(immutable_tag(subject) + COMPRESSION_SUFFIXES[subject.compression], mutable)


def contradiction(tag: str, locks: Sequence[Lock], cells: Iterable[Cell], default: Cell) -> str | None:
    """Return why `tag` cannot be a tag of the image of a lock, or of an index of the images of several locks.

    Return None if it can, as for a tag that imagegen does not give. `cells` are the image's cells, `default` is the
    cell that `latest` names.
    """
    if match := _IMMUTABLE.fullmatch(tag):
        inputs = inputs_hash(locks[0]) if len(locks) == 1 else index_inputs(locks)
        lock_digits = inputs.removeprefix("sha256:")[:_HASH_DIGITS]
        return None if match[2] == lock_digits else f"the tag names the inputs {match[2]}, the lock's are {lock_digits}"
    owners = [cell.id for cell in cells if tag in _tags_of(cell, default)]
    first = min(locks, key=lambda lock: lock.platform != default.platform)  # an index has the tags of this lock
    return f"the tag belongs to {owners[0]}" if owners and first.cell not in owners else None


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
    names = [tag for tagger in MUTABLE_TAGGERS if (tag := tagger(subject)) is not None]
    return tuple(dict.fromkeys(_INVALID.sub("-", tag) + COMPRESSION_SUFFIXES[subject.compression] for tag in names))
