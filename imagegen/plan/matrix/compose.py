"""An image's entry, its stacks and variants, for one choice of axis values: what that cell is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from imagegen.plan.matrix.recipe_schema import EnvEntry
from imagegen.plan.matrix.schema import ComponentUse, ImageEntry, OverrideEntry, StackEntry, VariantEntry


@dataclass
class Composition:
    """Names only; complete.py resolves them."""

    base: str
    gpus: list[str]
    interpreter: str | None = None  # None: the one that base and Python give
    components: dict[str, ComponentUse] = field(default_factory=dict)
    env: dict[str, EnvEntry] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)  # Debian package -> reason
    omits: dict[str, str] = field(default_factory=dict)  # distribution -> why it is left out
    overrides: dict[str, OverrideEntry] = field(default_factory=dict)  # by distribution
    accepts: dict[str, str] = field(default_factory=dict)  # rule -> why it only warns


def compose(image: ImageEntry, stacks: Sequence[StackEntry], axes: Mapping[str, str]) -> Composition:
    """Stacks in their order, then the image, then the variants that apply, in the same order; what comes later wins."""
    made = Composition(image.base, image.gpus, image.interpreter)
    parts: tuple[StackEntry | ImageEntry, ...] = (*stacks, image)
    for part in parts:
        made.components |= part.components
        made.env |= part.env
        made.packages |= part.packages
        made.omits |= part.omits
        made.overrides |= part.overrides
        made.accepts |= part.accepts
    for variant in _applying(parts, axes):
        made.base = variant.base or made.base
        made.gpus = variant.gpus or made.gpus
        made.interpreter = variant.interpreter or made.interpreter
        made.components |= variant.components
        made.env |= variant.env
        made.packages |= variant.packages
        made.omits |= variant.omits
        made.overrides |= variant.overrides
        made.accepts |= variant.accepts
        for name in variant.without:
            made.components.pop(name, None)
    return made


def _applying(parts: Sequence[StackEntry | ImageEntry], axes: Mapping[str, str]) -> Iterator[VariantEntry]:
    for part in parts:
        for variant in part.variants:
            if applies(variant.when, axes):
                yield variant


def applies(choice: Mapping[str, Sequence[str]], axes: Mapping[str, str]) -> bool:
    """Return whether each axis that `choice` names has one of its values in a cell of these `axes`."""
    return all(axes[axis] in values for axis, values in choice.items())
