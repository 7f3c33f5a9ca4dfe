"""The loaded matrix: its cells, their ids, and how a user chooses among them."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from imagegen.core.errors import Location, UsageError
from imagegen.core.gpu import Gpu
from imagegen.core.text import did_you_mean
from imagegen.plan.matrix.model import Cell, Component, Interpreter, System
from imagegen.plan.matrix.recipe import Recipe
from imagegen.plan.matrix.rule import Rule


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
