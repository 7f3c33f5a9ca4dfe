"""The loaded matrix: its cells, their ids, the choice among them, and the inputs of a cell's lock."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from imagegen import checks
from imagegen.compat.published_builds import Builds
from imagegen.compat.rule import PinOverride, Rule
from imagegen.compat.systems import NgcImage, System
from imagegen.core.deferred import dataclass
from imagegen.core.errors import Location, UsageError
from imagegen.core.text import did_you_mean
from imagegen.core.types import Gpu
from imagegen.spec.foundation import Interpreter
from imagegen.spec.model import Cell, Component, Index, Requirement
from imagegen.spec.recipe import Architectures, Commit, LocalSource, Recipe, SdistFile

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


# The inputs of a lock, as one hash per input, so that a stale lock can name the input that changed.


def inputs(cell: Cell, sdists: Mapping[str, str]) -> Cell:
    """Return the cell with its `inputs` filled in; `sdists` are the `sdist_inputs` of its CUDA version.

    Descriptions and purposes are not inputs, because no lock has them: a corrected typo makes no lock stale. Reasons of
    pins and variables are inputs, because the lock repeats them. Rules are not inputs, because they judge a lock each
    time that it is used.
    """
    requirements = [_requested_fields(requirement) for requirement in cell.requirements]
    base = dataclasses.asdict(cell.base)
    input_values: dict[str, Any] = {
        "axes": dict(cell.axes),
        "preflight": checks.digest(),
        "gpus": [[gpu.name, gpu.capability] for gpu in cell.gpus],
        "base": {**base, "packages": sorted(base["packages"]), "description": None},
        "interpreter": _interpreter(cell),
        "image": [
            cell.image,
            requirements,
            [[variable.name, variable.value, variable.because] for variable in cell.env],
        ],
    }
    if cell.packages:
        input_values["packages"] = dict(cell.packages)
    if cell.overrides:
        input_values["overrides"] = [[override.package, override.specifier] for override in cell.overrides]
    input_values |= {
        name: [dataclasses.asdict(member) for member in fields]
        for name, fields in (
            ("config", cell.config),
            ("labels", cell.labels),
            ("ports", cell.ports),
            ("ldconfig", cell.ldconfig),
        )
        if fields
    }
    if cell.copies:
        input_values["files"] = [[copy.path, copy.source, copy.because] for copy in cell.copies]
    if cell.patches:
        input_values["patches"] = [[patch.package, patch.source, patch.because, patch.origin] for patch in cell.patches]
    if locked := cell.from_uv_lock:
        input_values["uv.lock"] = [locked.uv_lock, locked.extras, locked.groups, locked.git and locked.git.commit]
    if stack := cell.stack:
        input_values["stack"] = [stack.kind, stack.path, stack.extras, stack.groups]
    input_values |= {f"index {alias}": index.url for alias, index in cell.indexes.items()}
    input_values |= {
        f"component {requirement.component.name}": _resolution_inputs(requirement, cell)
        for requirement in cell.requirements
    }
    input_values |= {
        f"recipe {requirement.component.name}": _build(recipe, requirement, cell)
        for requirement in cell.requirements
        if (recipe := cell.recipes.get(requirement.component.package))
    }
    required = {f"sdist {requirement.component.package}" for requirement in cell.requirements}
    hashes = {name: sdist_digest for name, sdist_digest in sdists.items() if name not in required}
    hashes |= {name: sha256(part) for name, part in input_values.items()}
    # Interned, since a result that is kept has each object once: cells have most of their inputs in common.
    interned = {sys.intern(name): sys.intern(digest) for name, digest in sorted(hashes.items())}
    return dataclasses.replace(cell, inputs=interned)


def sdist_inputs(sdists: Iterable[Component], cuda: str) -> dict[str, str]:
    """Return the inputs that components with an Sdist are for the cells of a CUDA version that do not require them."""
    return {f"sdist {sdist.package}": sha256(_essence(sdist, cuda)) for sdist in sdists}


def sha256(value: Any) -> str:
    """Hex sha256 of the value as canonical JSON (sorted keys, no white space, UTF-8)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _requested_fields(requirement: Requirement) -> list[Any]:
    git = requirement.git and {
        name: value for name, value in dataclasses.asdict(requirement.git).items() if value not in ("", ())
    }
    requested: list[Any] = [requirement.component.name, requirement.pep508, requirement.index, requirement.because, git]
    if requirement.own:
        requested.append([requirement.own.kind, requirement.own.path])
    if requirement.address:
        requested.append([requirement.address.url, requirement.address.sha256])
    return [*requested, "from source"] if requirement.from_source else requested


def _resolution_inputs(requirement: Requirement, cell: Cell) -> list[Any]:
    """Return the fields of a required component on which this cell's resolution depends.

    Releases on PyPI have no alias and no label.
    """
    package, _, _, sdist = _essence(requirement.component, cell.cuda)
    return [package, None if requirement.index == "pypi" else requirement.index, requirement.label, sdist]


def _interpreter(cell: Cell) -> list[Any]:
    interpreter, file = cell.interpreter, cell.interpreter.files.get(cell.platform)
    return [
        interpreter.name,
        interpreter.path,
        interpreter.version,
        interpreter.release,
        file and dataclasses.asdict(file),
    ]


def _essence(component: Component, cuda: str) -> list[Any]:
    """Return the fields of the component on which a cell's resolution depends, only for its CUDA version."""
    sdist = component.sdist and dataclasses.asdict(component.sdist)
    return [component.package, component.index.get(cuda), component.local.get(cuda), sdist]


def _build(recipe: Recipe, requirement: Requirement, cell: Cell) -> list[Any]:
    """Return the fields of the recipe that decide the wheels of this cell: releases that it may use, its own GPUs.

    Reasons, costs and the variables for jobs do not change the result.
    """
    from packaging.specifiers import SpecifierSet  # late: a kept matrix has the result

    allowed = SpecifierSet(requirement.specifier)
    releases = [
        recipe.of(release) for release in sorted(recipe.releases) if allowed.contains(release, prereleases=True)
    ]
    return [
        [
            [version, _origin(source), release.requires, [[patch.path.name, patch.sha256] for patch in release.patches]]
            for release in releases
            for version, source in release.releases.items()
        ],
        [recipe.build_requires, recipe.against, recipe.modules, recipe.toolkit],
        [[variable.name, variable.value] for variable in recipe.env],
        recipe.architectures and _names(recipe.architectures, cell),
    ]


def _origin(source: SdistFile | Commit | LocalSource) -> dict[str, Any]:
    """A local path is where its user has it; its contents are the lock's to pin."""
    return {"path": source.path.name} if isinstance(source, LocalSource) else dataclasses.asdict(source)


def _names(architectures: Architectures, cell: Cell) -> list[Any]:
    names = [[gpu.capability, architectures.names.get(gpu.capability)] for gpu in cell.gpus]
    return [architectures.variable, architectures.separator, names]
