"""Plan a publication, for `--dry-run`. No I/O.

The record of a lock has the layers and the digest of its image. Without a record, the plan lists the sizes and digests
that are not known before a build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from imagegen.core.progress import human
from imagegen.core.text import counted
from imagegen.image.layers import LayerSource
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
class PublishPlan:
    """The plan of publishing an image. `digest` is the image's; None if it is not known before a build.

    `uncompiled` has sentences about wheels that must be compiled first, and `rebuild_reason` is a sentence if the
    layers are built again even if the lock records them. `platforms` are the platforms of the index that the tags name,
    and `index` is its digest if it is known. Without platforms, the tags name the image.
    """

    cell: str
    repository: str
    digest: str | None
    layers: tuple[LayerSource, ...]
    tags: Tags
    seen: RegistryState | None  # None if the registry was not queried
    moves: bool  # whether the mutable tags move
    steps: tuple[str, ...]  # further steps, in sentences
    uncompiled: tuple[str, ...] = ()
    rebuild_reason: str | None = None
    platforms: tuple[str, ...] = ()
    index: str | None = None

    @property
    def tagged(self) -> str | None:
        """The digest that the tags will name."""
        return self.index if self.platforms else self.digest

    @property
    def sent(self) -> int:
        """Bytes of layers that must be sent, without layers of unknown size."""
        return sum(_size(source) or 0 for source in self.layers if self.location(source) in ("store", "build"))

    def location(self, source: LayerSource) -> Location:
        """Return where a layer is; one that the registry has is not sent."""
        digest = source.layer.digest if source.layer else None
        if self.seen and digest in self.seen.blobs:
            return "registry"
        if self.seen and digest in self.seen.siblings:
            return "sibling"
        return "build" if source.is_absent else "store"

    def unknown(self) -> Iterator[str]:
        """Yield a sentence for each unknown value."""
        yield from self.uncompiled
        if self.rebuild_reason:
            yield f"the image's digest, and the size of its layers: {self.rebuild_reason}"
        elif self.digest is None:
            yield "the image's digest, because the lock does not record it (`imagegen lock --record`)"
        unsized = sum(source.layer is None for source in self.layers)
        if unsized and not self.rebuild_reason:
            yield f"the size of {counted(unsized, 'layer')} that must be built"
        if self.seen is None:
            yield f"the layers and tags of {self.repository}, and the write access to it, because it was not queried"
        elif any(self.location(source) == "build" and source.layer for source in self.layers):
            yield "whether the built layers equal the lock's record; publishing fails if they differ"

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        tags = {"fixed": self.tags.immutable, "moving": list(self.tags.mutable) if self.moves else []}
        return {
            "cell": self.cell,
            "repository": self.repository,
            "digest": self.digest,
            "index": self.index,
            "layers": [
                {
                    "name": source.plan.name,
                    "digest": source.layer.digest if source.layer else None,
                    "size": _size(source),
                    "where": self.location(source),
                }
                for source in self.layers
            ],
            "sent": self.sent,
            "tags": tags,
            "before": dict(self.seen.tags) if self.seen else None,
            "steps": list(self.steps),
            "unknown": list(self.unknown()),
        }


def _size(source: LayerSource) -> int | None:
    return source.layer.size if source.layer else None


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
        layers = [source for source in plan.layers if plan.location(source) == where]
        if layers:
            size = sum(_size(source) or 0 for source in layers)
            suffix = " and more" if any(source.layer is None for source in layers) else ""
            total = f"{human(size)}{suffix}" if size else "of unknown size"
            unless = ", unless the registry has it" if plan.seen is None else ""
            yield f"  {counted(len(layers), 'layer')}, {total}: {action}{unless}"
            for source in layers:
                weight, digest = (human(layer.size), layer.digest) if (layer := source.layer) else ("?", "?")
                yield f"    {source.plan.name:<28} {weight:>10}  {digest[:_SHORT]}"
    yield f"  tag       {plan.tags.immutable}{_tag_state(plan, plan.tags.immutable, immutable=True)}"
    for tag in plan.tags.mutable if plan.moves else ():
        yield f"  moves     {tag}{_tag_state(plan, tag, immutable=False)}"
    for step in plan.steps:
        yield f"  then      {step}"
    for sentence in plan.unknown():
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
