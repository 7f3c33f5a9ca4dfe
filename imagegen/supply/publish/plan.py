"""The plan of a publish, and what cannot be known before: pure, and rendered for `--dry-run`.

A recorded lock has the layers and the digest of its image, so nothing has to be built; a lock without a record has
neither the layers' sizes nor the image's digest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from imagegen.core.progress import human
from imagegen.core.text import counted
from imagegen.supply.publish.tags import Tags

Where = Literal["registry", "beside", "store", "nowhere"]
_SHORT = len("sha256:") + 12


@dataclass(frozen=True)
class RequiredLayer:
    """A layer that the image needs. `digest` and `size` (bytes) are None until the layer is built."""

    name: str
    digest: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class RegistryState:
    """The state of a registry: layers there, layers in sibling repositories, and the digest of each tag."""

    blobs: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    tags: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedLayer:
    """A layer and where it is: in the repository, in one beside it, in the store, or nowhere that is known."""

    name: str
    digest: str | None
    size: int | None
    where: Where


@dataclass(frozen=True)
class PublishPlan:
    """The plan. `digest` is the image's; None if only a build gives it. `unknown` lists what is not known, in
    sentences.
    """

    cell: str
    repository: str
    digest: str | None
    parts: tuple[PlannedLayer, ...]
    tags: Tags
    seen: RegistryState | None  # None: the registry was not asked
    moves: bool  # whether the moving tags shall move
    steps: tuple[str, ...]  # what else is done, in sentences
    unknown: tuple[str, ...]

    @property
    def sent(self) -> int:
        """Bytes of layers that must be sent, of those whose size is known."""
        return sum(part.size or 0 for part in self.parts if part.where in ("store", "nowhere"))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        tags = {"fixed": self.tags.fixed, "moving": list(self.tags.moving) if self.moves else []}
        return {
            "cell": self.cell,
            "repository": self.repository,
            "digest": self.digest,
            "layers": [asdict(part) for part in self.parts],
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
    required: Sequence[RequiredLayer],
    tags: Tags,
    *,
    held: Collection[str],
    seen: RegistryState | None,
    moves: bool,
    steps: Sequence[str] = (),
    unknown: Sequence[str] = (),
    anew: str | None = None,
) -> PublishPlan:
    """Return the plan of a publish. `held` are the digests of layers that the store has.

    `anew` is a sentence if the layers are built again, whatever the lock records.
    """
    parts = tuple(PlannedLayer(each.name, each.digest, each.size, _where(each, held, seen)) for each in required)
    return PublishPlan(
        cell,
        repository,
        digest,
        parts,
        tags,
        seen,
        moves,
        tuple(steps),
        (*unknown, *_unknown(digest, parts, seen, repository, anew)),
    )


def _where(layer: RequiredLayer, held: Collection[str], seen: RegistryState | None) -> Where:
    if layer.digest is None:
        return "nowhere"
    if seen and layer.digest in seen.blobs:
        return "registry"
    if seen and layer.digest in seen.beside:
        return "beside"
    return "store" if layer.digest in held else "nowhere"


def _unknown(
    digest: str | None, parts: Sequence[PlannedLayer], seen: RegistryState | None, repository: str, anew: str | None
) -> Iterator[str]:
    if anew:
        yield f"the image's digest, and what its layers will weigh: {anew}"
    elif digest is None:
        yield "the image's digest: the lock records none (`imagegen lock --record`), and nothing was built"
    if not anew and (unsized := sum(part.size is None for part in parts)):
        yield f"the size of {counted(unsized, 'layer')}: not built yet"
    if seen is None:
        yield f"what {repository} has, where its tags stand, and whether you may write there: it was not asked"
    elif any(part.where == "nowhere" and part.digest for part in parts):
        yield "whether what is made will be what the lock records; publishing compares, and stops where it is not"


_WORDS: Mapping[Where, str] = {
    "registry": "there already",
    "beside": "linked from a repository beside it",
    "store": "sent from the store",
    "nowhere": "made, then sent",
}


def lines(plan: PublishPlan) -> Iterator[str]:
    """The plan for human readers."""
    yield f"{plan.cell} -> {plan.repository}"
    yield f"  image     {plan.digest or 'a digest that is not known yet'}"
    for where, action in _WORDS.items():
        parts = [part for part in plan.parts if part.where == where]
        if parts:
            size = sum(part.size or 0 for part in parts)
            more = " and more" if any(part.size is None for part in parts) else ""
            weight = f"{human(size)}{more}" if size else "of a size that is not known yet"
            unless = ", unless the registry has it" if plan.seen is None else ""
            yield f"  {counted(len(parts), 'layer')}, {weight}: {action}{unless}"
            for part in parts:
                weighs = "?" if part.size is None else human(part.size)
                yield f"    {part.name:<28} {weighs:>10}  {(part.digest or '?')[:_SHORT]}"
    yield f"  tag       {plan.tags.fixed}{_stands(plan, plan.tags.fixed, fixed=True)}"
    for tag in plan.tags.moving if plan.moves else ():
        yield f"  moves     {tag}{_stands(plan, tag, fixed=False)}"
    for step in plan.steps:
        yield f"  then      {step}"
    for sentence in plan.unknown:
        yield f"  unknown   {sentence}"


def _stands(plan: PublishPlan, tag: str, *, fixed: bool) -> str:
    if plan.seen is None:
        return ""
    old = plan.seen.tags.get(tag)
    if old is None:
        return " (new)"
    if old == plan.digest:
        return " (there already)"
    if fixed and plan.digest:
        return f" (REFUSED: it is {old[:_SHORT]} already, and never moves)"
    return f" (it is {old[:_SHORT]})"
