"""An image's entry, its stacks and variants, for one choice of axis values: what that cell is made of."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from imagegen.core.errors import Location, UsageError
from imagegen.core.text import did_you_mean
from imagegen.core.types import Gpu
from imagegen.plan.matrix.model import Cell, Component, Interpreter, NgcImage, PinOverride, Rule, System
from imagegen.plan.matrix.recipe import EnvEntry, Recipe
from imagegen.plan.matrix.schema import ComponentUse, ImageEntry, OverrideEntry, PartEntry, StackEntry, VariantEntry

_NAMED = 4  # cells in a message


@dataclass
class Composition:
    """Names only; plan/matrix/complete.py resolves them."""

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
        _add(made, part)
    for variant in _applying(parts, axes):
        made.base = variant.base or made.base
        made.gpus = variant.gpus or made.gpus
        made.interpreter = variant.interpreter or made.interpreter
        _add(made, variant)
        for name in variant.without:
            made.components.pop(name, None)
    return made


def _add(made: Composition, part: PartEntry) -> None:
    for name in PartEntry.model_fields:
        getattr(made, name).update(getattr(part, name))


def _applying(parts: Sequence[StackEntry | ImageEntry], axes: Mapping[str, str]) -> Iterator[VariantEntry]:
    for part in parts:
        for variant in part.variants:
            if applies(variant.when, axes):
                yield variant


def applies(choice: Mapping[str, Sequence[str]], axes: Mapping[str, str]) -> bool:
    """Return whether each axis that `choice` names has one of its values in a cell of these `axes`."""
    return all(axes[axis] in values for axis, values in choice.items())


# The loaded matrix: its cells, their ids, and how a user chooses among them.


@dataclass(frozen=True)
class Matrix:
    """Everything that was loaded. `defaults` maps an image's name to the id of its default cell."""

    all_cells: tuple[Cell, ...]  # sorted by id
    rules: tuple[Rule, ...]  # sorted by id
    defaults: Mapping[str, str]
    components: Mapping[str, Component]  # by name
    gpus: Mapping[str, Gpu]  # by name
    systems: Mapping[str, System]  # by name
    axes: Mapping[str, tuple[str, ...]]  # axis -> its values
    places: Mapping[str, Location]  # id of a rule -> where it stands
    recipes: Mapping[str, Recipe] = field(default_factory=dict)  # by component
    interpreters: Mapping[str, Interpreter] = field(default_factory=dict)  # by name
    pin_overrides: tuple[PinOverride, ...] = ()  # by their names
    accelerators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # maker -> globs over plain names
    ngc_images: Mapping[str, NgcImage] = field(default_factory=dict)  # of nvcr.io/nvidia/pytorch, by tag

    def cells(self) -> tuple[Cell, ...]:
        return self.all_cells

    def select(self, pattern: str) -> tuple[Cell, ...]:
        """An image's name chooses its default cell; anything else is a glob over cell ids, in their order.

        Raises UsageError when nothing matches.
        """
        chosen = self.defaults.get(pattern)
        cells = tuple(
            cell for cell in self.all_cells if (cell.id == chosen if chosen else fnmatch.fnmatchcase(cell.id, pattern))
        )
        if not cells:
            names = [*self.defaults, *(cell.id for cell in self.all_cells)]
            raise UsageError(
                f'no image or cell matches "{pattern}"',
                code="usage-unknown-cell",
                fix=did_you_mean(pattern, names) or "`imagegen list` shows them all",
            )
        return cells

    def select_one(self, pattern: str) -> Cell:
        """Return the one cell that `pattern` selects. Raises UsageError when nothing matches, or several cells do."""
        cell, *others = self.select(pattern)
        if others:
            raise UsageError(
                f'"{pattern}" matches {len(others) + 1} cells',
                code="usage-several-cells",
                why=f"among them {', '.join(each.id for each in (cell, *others)[:_NAMED])}",
                fix="name one",
            )
        return cell


def cell_id(image: str, axes: Mapping[str, str], defaults: Mapping[str, str]) -> str:
    """image-cuda-python, then every other axis that is not at its default, by the axis's name.

    An axis that is added later stays silent at its default, so it renames no cell.
    """
    others = [
        value.replace("/", "-")
        for axis, value in sorted(axes.items())
        if axis not in {"cuda", "python"} and value != defaults[axis]
    ]
    return "-".join([image, axes["cuda"], "py" + axes["python"].replace(".", ""), *others])
