"""Validated entries -> the frozen dataclasses that the rest of imagegen sees: references resolved, cells spelled out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from imagegen.errors import Location, MatrixError
from imagegen.matrix.cells import Matrix, cell_id, did_you_mean
from imagegen.matrix.document import Document
from imagegen.matrix.hashes import inputs
from imagegen.matrix.model import Base, Cell, Component, EnvVar, Index, Requirement, Sdist
from imagegen.matrix.rule import Rule
from imagegen.matrix.schema import SURROUNDINGS, AxisEntry, ImageEntry, RuleEntry, condition_error

CELL_AXES = ("cuda", "python", "platform")  # what every cell must have


@dataclass(frozen=True)
class Found:
    """An entry and the place where it stands; `entry` is None when it has an error of its own."""

    name: str
    entry: Any
    document: Document
    path: tuple[str, str]
    layer: int  # which of the directories
    replaces: Found | None = None

    def where(self, *inside: str | int, key: bool = True) -> Location:
        return self.document.where((*self.path, *inside), key=key)


Entries = dict[str, dict[str, Found]]  # section -> name -> entry


def complete(entries: Entries, errors: list[MatrixError]) -> Matrix:
    """Resolve every reference; what does not resolve is appended to `errors`, and the result is then partial."""
    return _Completion(entries, errors).matrix()


class _Completion:
    def __init__(self, entries: Entries, errors: list[MatrixError]) -> None:
        self.entries = entries
        self.errors = errors
        self.axes: dict[str, AxisEntry] = {name: found.entry for name, found in self._sound("axes")}

    def matrix(self) -> Matrix:
        self._check_axes()
        self.indexes = self._indexes()
        self.components = self._components()
        self.rules = tuple(self._rule(found) for _, found in self._sound("rules"))
        cells: dict[str, Cell] = {}
        defaults: dict[str, str] = {}
        for name, found in self._sound("images"):
            made = self._cells(found)
            for cell in made:
                if other := cells.get(cell.id):
                    self._fail(found, f'the cell id "{cell.id}" is taken by image "{other.image}"')
                cells[cell.id] = cell
            if made:
                defaults[name] = made[0].id
        for name in sorted(set(defaults) & set(cells)):
            self._fail(self.entries["images"][name], f'"{name}" is also the id of a cell of "{cells[name].image}"')
        return Matrix(tuple(cells[each] for each in sorted(cells)), self.rules, defaults)

    def _sound(self, section: str) -> list[tuple[str, Found]]:
        return [(name, found) for name, found in sorted(self.entries[section].items()) if found.entry is not None]

    def _fail(self, found: Found, what: str, *inside: str | int, fix: str | None = None, key: bool = True) -> None:
        self.errors.append(MatrixError(what, where=found.where(*inside, key=key), fix=fix))

    def _known(self, found: Found, kind: str, name: str, known: Iterable[str], *inside: str | int) -> bool:
        known = sorted(known)
        if name in known:
            return True
        fix = did_you_mean(name, known) or f"known here: {', '.join(known) or 'none'}"
        self._fail(found, f'there is no {kind} "{name}"', *inside, fix=fix, key=name == inside[-1])
        return False

    def _check_axes(self) -> None:
        for axis in CELL_AXES:
            if axis not in self.entries["axes"]:
                self.errors.append(MatrixError(f'no file defines the axis "{axis}"', fix="every matrix needs it"))
        shapes = {"python": ("3.", "3.11"), "platform": ("linux/", "linux/amd64")}
        for axis, (prefix, example) in shapes.items():
            values = self.axes[axis].values if axis in self.axes else []
            for position, value in enumerate(values):
                if not value.startswith(prefix):
                    what = f'"{value}" is no value of the {axis} axis; one looks like "{example}"'
                    self._fail(self.entries["axes"][axis], what, "values", position, key=False)

    def _indexes(self) -> dict[str, Index]:
        if "pypi" not in self.entries["indexes"]:
            self.errors.append(MatrixError('no file defines the index "pypi"', fix="every matrix needs it"))
        result = {}
        for alias, found in self._sound("indexes"):
            if (found.entry.url is None) != (alias == "pypi"):
                what = (
                    "pypi's url comes from the environment" if alias == "pypi" else f'the index "{alias}" needs a url'
                )
                self._fail(found, what)
            result[alias] = Index(alias, found.entry.url, found.entry.description)
        return result

    def _components(self) -> dict[str, Component]:
        result: dict[str, Component] = {}
        owner: dict[str, str] = {}
        for name, found in self._sound("components"):
            entry = found.entry
            if name in SURROUNDINGS:
                self._fail(found, f'"{name}" cannot be a component: rules call the surroundings so')
            package = entry.package or name
            if package in owner:
                self._fail(found, f'the package "{package}" already belongs to the component "{owner[package]}"')
            owner[package] = name
            for key in ("index", "local"):
                for value in getattr(entry, key):
                    self._known(found, "value of the cuda axis", value, self._values("cuda"), key, value)
            for value, alias in entry.index.items():
                self._known(found, "index", alias, self.entries["indexes"], "index", value)
            sdist = entry.sdist and Sdist(
                entry.sdist.version, tuple(entry.sdist.requires), tuple(entry.sdist.build_requires)
            )
            result[name] = Component(
                name=name,
                package=package,
                description=entry.description,
                imports=tuple(entry.imports),
                sdist=sdist,
                source=entry.source,
                index=dict(entry.index),
                local=dict(entry.local),
            )
        return result

    def _values(self, axis: str) -> list[str]:
        return self.axes[axis].values if axis in self.axes else []

    def _rule(self, found: Found) -> Rule:
        entry: RuleEntry = found.entry
        return Rule(
            id=found.name,
            when=self._conditions(found, "when"),
            then=self._conditions(found, "then"),
            conflict=self._conditions(found, "conflict"),
            because=entry.because,
            source=entry.source,
            date=entry.date,
            severity=entry.severity,
            evidence=entry.evidence,
            fix=entry.fix,
        )

    def _conditions(self, found: Found, side: str) -> dict[str, str]:
        """One side of a rule with packages for components; every name and value checked."""
        closed = {"base": self.entries["bases"], "cuda": self._values("cuda"), "platform": self._values("platform")}
        result = {}
        for name, value in getattr(found.entry, side).items():
            if name in closed:
                self._known(found, "base" if name == "base" else f"{name} value", value, closed[name], side, name)
            elif self._known(found, "component", name, {*self.entries["components"], *SURROUNDINGS}, side, name):
                wrong = condition_error(value, local=name not in SURROUNDINGS)
                if wrong:
                    self._fail(found, f"{side}.{name}: {wrong}", side, name, key=False)
            component = self.components.get(name)
            result[component.package if component else name] = value
        return result

    def _cells(self, found: Found) -> list[Cell]:
        """The image's cells, its default cell first; none when something it names is missing."""
        entry: ImageEntry = found.entry
        before = len(self.errors)
        for axis, values in entry.axes.items():
            if self._known(found, "axis", axis, self.entries["axes"], "axes", axis):
                for position, value in enumerate(values):
                    self._known(found, f"value of the {axis} axis", value, self._values(axis), "axes", axis, position)
        self._known(found, "base", entry.base, self.entries["bases"], "base")
        for name in entry.components:
            self._known(found, "component", name, self.entries["components"], "components", name)
        base = self.entries["bases"].get(entry.base)
        whole = base and base.entry and all(name in self.components for name in entry.components)
        if len(self.errors) > before or not whole or not all(axis in self.axes for axis in CELL_AXES):
            return []
        choices = [self._offered(entry, axis) for axis in sorted(self.axes)]
        return [
            self._cell(found.name, entry, dict(zip(sorted(self.axes), values, strict=True)))
            for values in itertools.product(*choices)
        ]

    def _offered(self, entry: ImageEntry, axis: str) -> list[str]:
        """The image's values on the axis, the axis's default first where it is among them."""
        default = self.axes[axis].default
        values = dict.fromkeys(entry.axes.get(axis, [default]))
        return sorted(values, key=lambda value: value != default)

    def _cell(self, image: str, entry: ImageEntry, axes: Mapping[str, str]) -> Cell:
        base = self.entries["bases"][entry.base].entry
        cuda = axes["cuda"]
        requirements = tuple(
            Requirement(self.components[name], use.version, use.because, self.components[name].index.get(cuda, "pypi"))
            for name, use in sorted(entry.components.items())
        )
        aliases = sorted({"pypi", *(each.index for each in requirements)} & set(self.indexes))
        draft = Cell(
            id=cell_id(image, axes, {name: axis.default for name, axis in self.axes.items()}),
            image=image,
            description=entry.description,
            purpose=entry.purpose,
            axes=axes,
            base=Base(name=entry.base, **base.model_dump(exclude={"override", "env"})),
            requirements=requirements,
            sdists=tuple(each for _, each in sorted(self.components.items()) if each.sdist),
            indexes={alias: self.indexes[alias] for alias in aliases},
            env=tuple(
                EnvVar(name, each.value, each.because) for name, each in sorted({**base.env, **entry.env}.items())
            ),
            inputs={},
        )
        return inputs(draft, self.rules)
