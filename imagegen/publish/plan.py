"""Plan a publication, for `--dry-run`. No I/O.

The record of a lock has the layers and the digest of its image. Without a record, the plan lists the sizes and digests
that are not known before a build.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from imagegen.core.progress import human
from imagegen.core.text import counted
from imagegen.publish.tags import Tags

Location = Literal["registry", "sibling", "store", "build"]
_SHORT = len("sha256:") + 12


@dataclass(frozen=True)
class RegistryState:
    """The layers in the repository, the layers in sibling repositories, and the digest of each tag."""

    blobs: frozenset[str] = frozenset()
    siblings: frozenset[str] = frozenset()
    tags: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class LocatedLayer:
    """A layer of the image, in the repository, a sibling repository or the store, or to be built.

    `digest` and `size` (bytes) are None until the layer is built.
    """

    name: str
    digest: str | None = None
    size: int | None = None
    where: Location = "build"


@dataclass(frozen=True)
class PublishPlan:
    """The plan of publishing an image. `digest` is the image's; None if it is not known before a build.

    `unknown` has a sentence for each unknown value. `platforms` are the platforms of the index that the tags name, and
    `index` is its digest if it is known. Without platforms, the tags name the image.
    """

    cell: str
    repository: str
    digest: str | None
    layers: tuple[LocatedLayer, ...]
    tags: Tags
    seen: RegistryState | None  # None if the registry was not queried
    moves: bool  # whether the mutable tags move
    steps: tuple[str, ...]  # further steps, in sentences
    unknown: tuple[str, ...]
    platforms: tuple[str, ...] = ()
    index: str | None = None

    @property
    def tagged(self) -> str | None:
        """The digest that the tags will name."""
        return self.index if self.platforms else self.digest

    @property
    def sent(self) -> int:
        """Bytes of layers that must be sent, without layers of unknown size."""
        return sum(layer.size or 0 for layer in self.layers if layer.where in ("store", "build"))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        tags = {"fixed": self.tags.immutable, "moving": list(self.tags.mutable) if self.moves else []}
        return {
            "cell": self.cell,
            "repository": self.repository,
            "digest": self.digest,
            "index": self.index,
            "layers": [asdict(layer) for layer in self.layers],
            "sent": self.sent,
            "tags": tags,
            "before": dict(self.seen.tags) if self.seen else None,
            "steps": list(self.steps),
            "unknown": list(self.unknown),
        }


def plan(
    cell: str,
    repository: str,
    digest: str | None,
    required: Sequence[LocatedLayer],
    tags: Tags,
    *,
    in_store: Collection[str],
    seen: RegistryState | None,
    moves: bool,
    steps: Sequence[str] = (),
    unknown: Sequence[str] = (),
    rebuild_reason: str | None = None,
) -> PublishPlan:
    """Return the plan of a publish, in which the `required` layers are located.

    `in_store` are the digests of layers in the store. `rebuild_reason` is a sentence if the layers are built again even
    if the lock records them.
    """
    layers = tuple(replace(layer, where=_location(layer, in_store, seen)) for layer in required)
    return PublishPlan(
        cell,
        repository,
        digest,
        layers,
        tags,
        seen,
        moves,
        tuple(steps),
        (*unknown, *_unknown(digest, layers, seen, repository, rebuild_reason)),
    )


def _location(layer: LocatedLayer, in_store: Collection[str], seen: RegistryState | None) -> Location:
    if layer.digest is None:
        return "build"
    if seen and layer.digest in seen.blobs:
        return "registry"
    if seen and layer.digest in seen.siblings:
        return "sibling"
    return "store" if layer.digest in in_store else "build"


def _unknown(
    digest: str | None,
    layers: Sequence[LocatedLayer],
    seen: RegistryState | None,
    repository: str,
    rebuild_reason: str | None,
) -> Iterator[str]:
    if rebuild_reason:
        yield f"the image's digest, and the size of its layers: {rebuild_reason}"
    elif digest is None:
        yield "the image's digest, because the lock does not record it (`imagegen lock --record`)"
    if not rebuild_reason and (unsized := sum(layer.size is None for layer in layers)):
        yield f"the size of {counted(unsized, 'layer')} that must be built"
    if seen is None:
        yield f"the layers and tags of {repository}, and the write access to it, because it was not queried"
    elif any(layer.where == "build" and layer.digest for layer in layers):
        yield "whether the built layers equal the lock's record; publishing fails if they differ"


_WORDS: Mapping[Location, str] = {
    "registry": "already there",
    "sibling": "mounted from a sibling repository",
    "store": "pushed from the store",
    "build": "built, then pushed",
}


def lines(plan: PublishPlan) -> Iterator[str]:
    """Yield the lines of the plan for human readers."""
    yield f"{plan.cell} -> {plan.repository}"
    unknown = "unknown digest"
    yield f"  image     {plan.digest or unknown}"
    if plan.platforms:
        yield f"  index     {plan.index or unknown}, for {' and '.join(plan.platforms)}"
    for where, action in _WORDS.items():
        layers = [layer for layer in plan.layers if layer.where == where]
        if layers:
            size = sum(layer.size or 0 for layer in layers)
            suffix = " and more" if any(layer.size is None for layer in layers) else ""
            total = f"{human(size)}{suffix}" if size else "of unknown size"
            unless = ", unless the registry has it" if plan.seen is None else ""
            yield f"  {counted(len(layers), 'layer')}, {total}: {action}{unless}"
            for layer in layers:
                weight = "?" if layer.size is None else human(layer.size)
                yield f"    {layer.name:<28} {weight:>10}  {(layer.digest or '?')[:_SHORT]}"
    yield f"  tag       {plan.tags.immutable}{_tag_state(plan, plan.tags.immutable, immutable=True)}"
    for tag in plan.tags.mutable if plan.moves else ():
        yield f"  moves     {tag}{_tag_state(plan, tag, immutable=False)}"
    for step in plan.steps:
        yield f"  then      {step}"
    for sentence in plan.unknown:
        yield f"  unknown   {sentence}"


def _tag_state(plan: PublishPlan, tag: str, *, immutable: bool) -> str:
    if plan.seen is None:
        return ""
    old = plan.seen.tags.get(tag)
    if old is None:
        return " (new)"
    if old == plan.tagged:
        return " (already there)"
    if immutable and plan.tagged:
        return f" (REJECTED: it names {old[:_SHORT]}, and an immutable tag does not move)"
    return f" (was {old[:_SHORT]})"
