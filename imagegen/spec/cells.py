"""The loaded matrix: its cells, their ids, the choice among them, and the inputs of a cell's lock."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import field

from imagegen.compat.published_builds import Builds
from imagegen.compat.rule import PinOverride, Rule
from imagegen.compat.systems import NgcImage, System
from imagegen.core.deferred import dataclass
from imagegen.core.errors import Location, UsageError
from imagegen.core.gpu import Gpu
from imagegen.core.text import did_you_mean
from imagegen.spec.foundation import Interpreter
from imagegen.spec.model import Cell, Component, Index
from imagegen.spec.recipe import Recipe

_NAMED = 4  # cells in a message


@dataclass(frozen=True)
class Matrix:
    """The loaded matrix. `defaults` maps an image's name to the id of its default cell."""

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
    builds: Builds = field(default_factory=Builds)
    indexes: Mapping[str, Index] = field(default_factory=dict)  # by alias
    image_places: Mapping[str, Location] = field(default_factory=dict, compare=False)  # by image, of its entry

    def cells(self) -> tuple[Cell, ...]:
        """Return the cells with one environment."""
        return tuple(cell for cell in self.all_cells if not cell.environments)

    def select(self, pattern: str, *, single: bool = False) -> tuple[Cell, ...]:
        """An image's name chooses its default cell; anything else is a glob over cell ids, in their order.

        With `single`, cells with several environments are not among them. Raises UsageError when nothing matches, or
        only cells that are left out.
        """
        chosen = self.defaults.get(pattern)
        matching = [
            cell for cell in self.all_cells if (cell.id == chosen if chosen else fnmatch.fnmatchcase(cell.id, pattern))
        ]
        cells = tuple(cell for cell in matching if not (single and cell.environments))
        if matching and not cells:
            _require_one_environment(matching[0])
        if not cells:
            names = [*self.defaults, *(cell.id for cell in self.all_cells)]
            raise UsageError(
                f'no image or cell matches "{pattern}"',
                code="usage-unknown-cell",
                fix=did_you_mean(pattern, names) or "`imagegen list` shows them all",
            )
        return cells

    def select_one(self, pattern: str, *, single: bool = False) -> Cell:
        """Return the one cell that `select` returns. Raises UsageError when nothing matches, or several cells do."""
        cell, *further_cells = self.select(pattern, single=single)
        if further_cells:
            raise UsageError(
                f'"{pattern}" matches {len(further_cells) + 1} cells',
                code="usage-several-cells",
                why=f"among them {', '.join(other.id for other in (cell, *further_cells)[:_NAMED])}",
                fix="name one",
            )
        return cell

    def on_platforms(self, cell: Cell, requested: str) -> tuple[Cell, ...]:
        """Return the cells that differ from `cell` only in the platform; "linux/amd64,linux/arm64", or "all" of them.

        The cell with the platform of the image's default cell comes first, the others in the order of the axis. Raises
        UsageError for a platform without such a cell.
        """
        by_platform = {
            candidate.platform: candidate
            for candidate in self.all_cells
            if _platformless(candidate) == _platformless(cell)
        }
        default = self.select(cell.image)[0].platform
        platforms = sorted(by_platform, key=lambda name: (name != default, self.axes["platform"].index(name)))
        chosen = platforms if requested == "all" else requested.split(",")
        if unknown := [name for name in chosen if name not in by_platform]:
            raise UsageError(
                f'{cell.id} has no counterpart for the platform "{unknown[0]}"',
                code="usage-unknown-platform",
                why=f"the image's cells with these values of the other axes are for {', '.join(platforms)}",
                fix=did_you_mean(unknown[0], platforms) or "`all` takes each of them",
            )
        return tuple(by_platform[platform] for platform in platforms if platform in chosen)


def _require_one_environment(cell: Cell) -> None:
    """Raise UsageError for a cell of several environments."""
    if cell.environments:
        raise UsageError(
            f"not for an image of several environments: {cell.id}",
            code="usage-several-environments",
            why="the command, or an option of it, takes cells with one environment",
            fix=f"name one of its cells: {', '.join(environment.cell.id for environment in cell.environments)}",
        )


def _platformless(cell: Cell) -> tuple[str, dict[str, str]]:
    """Return the identity of a cell without its platform: cells that differ only in the platform share it."""
    return cell.image, {axis: value for axis, value in cell.axes.items() if axis != "platform"}


def cell_id(image: str, axes: Mapping[str, str], defaults: Mapping[str, str]) -> str:
    """Return the id of a cell: image-cuda-python, then each other axis that is not at its default, by the axis's name.

    An axis that is added later stays silent at its default, so it renames no cell.
    """
    suffixes = [
        value.replace("/", "-")
        for axis, value in sorted(axes.items())
        if axis not in {"cuda", "python"} and value != defaults[axis]
    ]
    return "-".join([image, axes["cuda"], "py" + axes["python"].replace(".", ""), *suffixes])
