"""Validated entries -> the frozen dataclasses that the rest of imagegen sees, with every reference resolved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from packaging.version import Version

from imagegen.compat import metadata
from imagegen.compat.metadata import PackageReleases
from imagegen.compat.published_builds import LEADER, AmbiguousBuildError, Builds, is_pypi_build
from imagegen.compat.rule import NO_CUDA, SURROUNDINGS, Override, Rule, cuda_version
from imagegen.core.config import mirror_name
from imagegen.core.errors import ErrorList, Location, MatrixError
from imagegen.spec.cell_inputs import inputs, sdist_inputs
from imagegen.spec.cells import Matrix, cell_id
from imagegen.spec.compose import (
    Composition,
    Definition,
    Generation,
    ancestry,
    applies,
    compose,
    cycle_error,
    definitions,
    inherit,
    removal_errors,
)
from imagegen.spec.environments import combined_cell
from imagegen.spec.foundation import Base, Interpreters
from imagegen.spec.model import (
    Cell,
    Component,
    ConfigField,
    CopySource,
    EnvVar,
    ExposedPort,
    Index,
    Label,
    LibraryDirectory,
    OwnSource,
    PatchSource,
    Requirement,
    StackFile,
    WheelAddress,
)
from imagegen.spec.recipe import Recipe
from imagegen.spec.recipe_entries import recipe
from imagegen.spec.recipe_file import join_env
from imagegen.spec.references import Entries, PlacedEntry, check_references
from imagegen.spec.schema import AxisEntry, ComponentUse, ImageEntry, StackFileEntry

CELL_AXES = ("cuda", "python", "platform")  # of every cell
_UNEXPLAINED = "The image names it, and gives no reason."
_OWN = "It is the project's own package."
_MAX_CELLS = 10_000  # of one image; the largest of the shipped ones has 24
_LONGEST_TAG = 115  # characters: 128 (OCI distribution-spec v1.1), less a dash and 12 digits of the inputs' hash
SHAPES = {"python": ("3.", "3.11"), "platform": ("linux/", "linux/amd64")}  # axis -> prefix of its values, example


def complete(entries: Entries, directories: Sequence[Path], errors: ErrorList[MatrixError]) -> Matrix:
    """Resolve every reference; errors are appended to `errors`, and the result is then partial.

    `directories` has one directory for each layer of the entries, each below its project's directory.
    """
    return _Completion(entries, directories, errors, check_references(entries, errors)).matrix()


class _Completion:
    def __init__(
        self,
        entries: Entries,
        directories: Sequence[Path],
        errors: ErrorList[MatrixError],
        unresolved: set[tuple[str, str]],
    ) -> None:
        self.entries = entries
        self.errors = errors
        self.directories = directories
        self._metadata: dict[str, PackageReleases | None] = {}
        self._pypi_builds: dict[tuple[str, str, str], bool] = {}  # by package, its specifier and the version of CUDA
        self._sdist_inputs: dict[str, dict[str, str]] = {}  # by value of the cuda axis
        self._requirements: dict[str, list[Requirement]] = {}  # different ones, by component
        self._variables: dict[EnvVar, EnvVar] = {}
        self._ambiguous: set[tuple[tuple[str, str], str]] = set()  # messages that are already reported, by image
        self.unresolved = unresolved  # entries that name a missing entry
        self.axes: dict[str, AxisEntry] = {axis.name: axis.entry for axis in self._sound("axes")}
        self.systems = {system.name: system.entry for system in self._sound("systems")}
        self.gpus = {gpu.name: gpu.entry for gpu in self._sound("gpus")}
        self.accelerators = {
            accelerator.entry.maker: tuple(accelerator.entry.names) for accelerator in self._sound("accelerators")
        }
        self.bases = {base.name: self._base(base) for base in self._sound("bases") if base.entry.system in self.systems}
        resolved = [interpreter for interpreter in self._sound("interpreters") if self._is_resolved(interpreter)]
        whole = len(resolved) == len(self.entries["interpreters"])
        self.interpreters = Interpreters(resolved, errors, whole=whole)
        self.stacks = {stack.name: stack.entry for stack in self._sound("stacks") if self._is_resolved(stack)}
        self._check_axes()
        self.indexes = self._indexes()
        self._owners: dict[str, str] = {}  # package -> its component
        self.components = self._components()
        self.sdists = tuple(component for component in self.components.values() if component.sdist)
        self.recipes = self._recipes(directories)
        led = sorted(
            component.package
            for component in self.components.values()
            if component.pypi_build and component.package != LEADER
        )
        self.builds = Builds(tuple(build.entry for build in self._sound("builds")), led)
        written = [self._rule(placed) for placed in self._sound("rules")]
        self.rules = tuple(sorted([*written, *self.builds.rules()], key=lambda rule: rule.id))
        self.file_conflicts = tuple(conflict.entry for conflict in self._sound("file_conflicts"))
        self.record_exceptions = {
            exception.entry.sha256: exception.entry.because for exception in self._sound("record_exceptions")
        }

    def matrix(self) -> Matrix:
        cells: dict[str, Cell] = {}
        defaults: dict[str, str] = {}
        images = self._sound("images")
        for image in sorted(images, key=lambda placed: bool(placed.entry.environments)):  # sorted: those come last
            image_cells = self._combined(image, cells) if image.entry.environments else self._cells(image)
            for cell in image_cells:
                if cell.id in cells:
                    self._fail(image, f'the cell id "{cell.id}" is taken by image "{cells[cell.id].image}"')
                if len(cell.id) - len(cell.image) - 1 > _LONGEST_TAG:
                    self._fail(image, f'the cell id "{cell.id}" is too long for an image\'s tag')
                cells[cell.id] = cell
            if image_cells:
                defaults[image.name] = image_cells[0].id
        for name in sorted(set(defaults) & set(cells)):
            self._fail(self.entries["images"][name], f'"{name}" is also the id of a cell of "{cells[name].image}"')
        return Matrix(
            tuple(cells[identifier] for identifier in sorted(cells)),
            self.rules,
            defaults,
            {name: component for name, component in self.components.items() if component.declared},
            self.gpus,
            self.systems,
            {name: tuple(axis.values) for name, axis in self.axes.items()},
            {rule.name: rule.where() for rule in self._sound("rules")},
            self.recipes,
            self.interpreters.by_name,
            tuple(override.entry for override in self._sound("pin_overrides")),
            self.accelerators,
            {ngc_image.name: ngc_image.entry for ngc_image in self._sound("ngc_images")},
            self.builds,
            self.indexes,
            {image.name: image.where() for image in images},
        )

    def _sound(self, section: str) -> list[PlacedEntry]:
        return [placed for _, placed in sorted(self.entries[section].items()) if placed.entry is not None]

    def _is_resolved(self, placed: PlacedEntry) -> bool:
        return placed.path not in self.unresolved

    def _fail(self, placed: PlacedEntry, message: str, *inside: str | int, key: bool = True) -> None:
        self.errors.append(placed.error(message, *inside, key=key))

    def _check_axes(self) -> None:
        for axis in CELL_AXES:
            if axis not in self.entries["axes"]:
                self.errors.append(
                    MatrixError(
                        f'no file defines the axis "{axis}"',
                        code="matrix-missing-definition",
                        fix="every matrix needs it",
                    )
                )
        for position, value in enumerate(self._values("cuda")):
            if value != NO_CUDA and cuda_version(value) is None:
                message = f'"{value}" is not a value of the cuda axis; one looks like "cu130" or is "{NO_CUDA}"'
                self._fail(self.entries["axes"]["cuda"], message, "values", position, key=False)
        for axis, (prefix, example) in SHAPES.items():
            for position, value in enumerate(self._values(axis)):
                if not value.startswith(prefix):
                    message = f'"{value}" is not a value of the {axis} axis; one looks like "{example}"'
                    self._fail(self.entries["axes"][axis], message, "values", position, key=False)

    def _indexes(self) -> dict[str, Index]:
        if "pypi" not in self.entries["indexes"]:
            self.errors.append(
                MatrixError(
                    'no file defines the index "pypi"', code="matrix-missing-definition", fix="every matrix needs it"
                )
            )
        result = {}
        for placed in self._sound("indexes"):
            alias, url = placed.name, placed.entry.url
            if url and alias == "pypi":
                self._fail(placed, "pypi's url comes from the environment")
            elif not url and alias != "pypi":
                variable = f"IMAGEGEN_INDEX_{mirror_name(alias)}"
                fix = f"write its address as `url: https://...`; {variable} only gives it another one on a machine"
                self.errors.append(placed.error(f'the index "{alias}" needs a url', fix=fix))
            result[alias] = placed.entry
        return result

    def _components(self) -> dict[str, Component]:
        result: dict[str, Component] = {}
        for placed in self._sound("components"):
            name, entry = placed.name, placed.entry
            if name in SURROUNDINGS:
                self._fail(placed, f'"{name}" cannot be a component: rules call the surroundings so')
            if owner := self._owners.get(entry.package):
                self._fail(placed, f'the package "{entry.package}" already belongs to the component "{owner}"')
            self._owners[entry.package] = name
            if entry.compiled and (entry.git or entry.sdist):
                key = "git" if entry.git else "sdist"
                self._fail(placed, "the sources of a compiled component stand in its recipe, under `recipes`", key)
            result[name] = entry
        return result

    def _component(self, image: PlacedEntry, name: str) -> Component | None:
        """Return the component; an ordinary package of an index where no entry has this name; None after an error."""
        if name not in self.components and name not in self.entries["components"]:
            if other := self._owners.get(name):
                if (image.path, name) not in self._ambiguous:
                    self._ambiguous.add((image.path, name))
                    self._fail(image, f'the package "{name}" is the component "{other}"', "components", name)
                return None
            self.components[name] = Component(name, name, "", (), declared=False)
        return self.components.get(name)

    def _recipes(self, directories: Sequence[Path]) -> dict[str, Recipe]:
        result = {}
        for placed in self._sound("recipes"):
            if placed.name in self.components:
                directory = directories[placed.layer]
                completed, errors = recipe(placed, self.components[placed.name], self.gpus, directory)
                result[placed.name] = completed
                self.errors += errors
        return result

    def _rule(self, placed: PlacedEntry) -> Rule:
        rule: Rule = placed.entry
        when, then, conflict, unless = map(self._by_package, (rule.when, rule.then, rule.conflict, rule.unless))
        same, warns_with = self._by_package(dict.fromkeys(rule.same, "")), self._by_package(rule.warns_with)
        return replace(
            rule, when=when, then=then, conflict=conflict, unless=unless, same=tuple(same), warns_with=warns_with
        )

    def _by_package(self, side: Mapping[str, str]) -> dict[str, str]:
        return {self.components[name].package if name in self.components else name: text for name, text in side.items()}

    def _cells(self, image: PlacedEntry) -> list[Cell]:
        """The image's cells, its default cell first; none when something it names is missing."""
        images = self.entries["images"]
        if error := cycle_error(image, images):
            self.errors.append(error)
        chain = ancestry(image, images)
        stacks = [name for ancestor in chain for name in ancestor.entry.stacks]
        if not (chain and set(CELL_AXES) <= set(self.axes) and set(stacks) <= set(self.stacks)):
            return []
        if not all(self._is_resolved(ancestor) for ancestor in chain) or self._extends_environments(image, chain):
            return []
        if twice := {name for name in stacks if stacks.count(name) > 1} & set(image.entry.stacks):
            self._fail(image, f"it names a stack twice, or one of an image that it extends: {min(twice)}", "stacks")
        entry = inherit(chain)
        if not entry.gpus and set(self._offered(entry, "cuda")) != {NO_CUDA}:
            self._fail(image, "an image with CUDA says for which GPUs it is: `gpus` is missing")
        axes = sorted(self.axes)
        offered = [self._offered(entry, axis) for axis in axes]
        if math.prod(map(len, offered)) > _MAX_CELLS:
            self._fail(image, f"the image has more than {_MAX_CELLS} cells", "axes")
            return []
        choices = [dict(zip(axes, values, strict=True)) for values in itertools.product(*offered)]
        for position, excluded in enumerate(image.entry.exclude):
            if not any(applies(excluded, choice) for choice in choices):
                self._fail(image, "it excludes none of the image's cells", "exclude", position, key=False)
        choices = [
            candidate for candidate in choices if not any(applies(excluded, candidate) for excluded in entry.exclude)
        ]
        if not choices:
            self._fail(image, "it excludes every cell of the image", "exclude")
        generations = [Generation(e.entry, tuple(self.stacks[name] for name in e.entry.stacks)) for e in chain]
        self.errors += removal_errors(image, generations, choices)
        placed = [(*(self.entries["stacks"][name] for name in ancestor.entry.stacks), ancestor) for ancestor in chain]
        cells = [self._cell(image, entry, chain, choice, compose(generations, choice), placed) for choice in choices]
        return [cell for cell in cells if cell]

    def _extends_environments(self, image: PlacedEntry, chain: Sequence[PlacedEntry]) -> bool:
        if extends := any(ancestor.entry.environments for ancestor in chain):
            self._fail(image, "it extends an image of several environments: extend the image of one of them", "extends")
        return extends

    def _combined(self, image: PlacedEntry, cells: Mapping[str, Cell]) -> list[Cell]:
        """The only cell of an image with several environments; none after an error."""
        if not self._is_resolved(image) or (
            self.errors and not {e.cell for e in image.entry.environments.values()} <= cells.keys()
        ):
            return []  # a cell that it names may have an error of its own
        cell, errors = combined_cell(image, cells, {name: axis.default for name, axis in self.axes.items()})
        self.errors += errors
        return [cell] if cell else []

    def _base(self, placed: PlacedEntry) -> Base:
        system = self.systems[placed.entry.system]
        libraries = {"glibc": system.glibc, "libstdcxx": system.libstdcxx}
        return Base(name=placed.name, **libraries, **placed.entry.model_dump(exclude={"override", "env"}))

    def _values(self, axis: str) -> list[str]:
        return self.axes[axis].values if axis in self.axes else []

    def _offered(self, entry: ImageEntry, axis: str) -> list[str]:
        """The image's values on the axis, the axis's default first where it is among them."""
        default = self.axes[axis].default
        return sorted(dict.fromkeys(entry.axes.get(axis, [default])), key=lambda value: value != default)

    def _index(self, image: PlacedEntry, uses: Mapping[str, ComponentUse], component: Component, cuda: str) -> str:
        """Return the alias of the index that gives `component` to a cell whose components are `uses`."""
        default_alias, version = component.index.get(cuda, "pypi"), cuda_version(cuda)
        leader = uses.get(component.pypi_build or "")
        named_alias = uses[component.name].index or (
            leader and leader.index and (default_alias if leader.index != "pypi" else "pypi")
        )
        if named_alias or not (component.pypi_build and version):
            return named_alias or default_alias
        specifier = leader.version if leader else ""
        try:
            return "pypi" if self._is_pypi_build(component.pypi_build, specifier, version) else default_alias
        except AmbiguousBuildError as error:
            message = f'"{component.pypi_build}{specifier}" admits builds for CUDA {version} and others'
            fix = f"pin {component.pypi_build}, bound its version on both sides, or name its `index:`"
            if (image.path, message) not in self._ambiguous:  # once for all cells of an image
                self._ambiguous.add((image.path, message))
                self.errors.append(MatrixError(message, where=image.where(), why=str(error), fix=fix))
            return default_alias

    def _is_pypi_build(self, package: str, specifier: str, cuda: str) -> bool:
        """Return `is_pypi_build` of a package, which is asked once for all cells. Raises AmbiguousBuildError."""
        key = (package, specifier, cuda)
        if key not in self._pypi_builds:
            self._pypi_builds[key] = is_pypi_build(specifier, cuda, self._harvested(package))
        return self._pypi_builds[key]

    def _harvested(self, package: str) -> PackageReleases | None:
        if package not in self._metadata:
            self._metadata[package] = metadata.load(self.directories, package)
        return self._metadata[package]

    def _cell(
        self,
        image: PlacedEntry,
        entry: ImageEntry,
        chain: Sequence[PlacedEntry],
        axes: Mapping[str, str],
        composition: Composition,
        placed: Sequence[Sequence[PlacedEntry]],
    ) -> Cell | None:
        if not self._is_sound(image, entry, composition):
            return None
        base, base_env = self.bases[composition.base], self.entries["bases"][composition.base].entry.env
        base_packages = dict(base.packages) if base.kind == "registry" else {}
        gpus = [] if axes["cuda"] == NO_CUDA else [self.gpus[name] for name in composition.gpus]
        interpreter = self.interpreters.choose(image, composition.interpreter, base.system, axes)
        if interpreter is None:
            return None
        places = _places(definitions(placed, axes, "components"))
        requirements = tuple(map(self._share, self._requirements_of(image, entry, axes, composition, places)))
        env = sorted(join_env(base_env, composition.env).items())
        variables = (EnvVar(name, setting.value, setting.because) for name, setting in env)
        aliases = {"pypi", *(requirement.index for requirement in requirements)} & set(self.indexes)
        draft = Cell(
            id=cell_id(image.name, axes, {name: axis.default for name, axis in self.axes.items()}),
            image=image.name,
            description=entry.description or "",
            purpose=entry.purpose or "",
            flagship=entry.flagship,
            axes=axes,
            base=base,
            interpreter=interpreter,
            requirements=requirements,
            sdists=self.sdists,
            indexes={alias: self.indexes[alias] for alias in sorted(aliases)},
            env=tuple(self._variables.setdefault(variable, variable) for variable in variables),
            gpus=tuple(sorted(gpus, key=lambda gpu: Version(gpu.capability))),
            inputs={},
            record_exceptions=self.record_exceptions,
            file_conflicts=self.file_conflicts,
            recipes=self._recipes_of(composition),
            omits=dict(sorted(composition.omits.items())),
            packages=dict(sorted((base_packages | composition.packages).items())),
            overrides=tuple(_overrides(composition)),
            config=tuple(_config_fields(composition)),
            labels=tuple(Label(name, label.value, label.because) for name, label in sorted(composition.labels.items())),
            ports=tuple(itertools.starmap(ExposedPort, sorted(composition.ports.items()))),
            copies=tuple(self._copies(composition, definitions(placed, axes, "files"))),
            patches=tuple(self._patches(composition, definitions(placed, axes, "patches"))),
            ldconfig=tuple(itertools.starmap(LibraryDirectory, sorted(composition.ldconfig.items()))),
            ldconfig_places=_places(definitions(placed, axes, "ldconfig")),
            extra_places={use.component.package: places[use.component.name] for use in requirements if use.extras},
            override_places=_places(definitions(placed, axes, "overrides")),
            accepts=dict(sorted(composition.accepts.items())),
            extends=entry.extends,
            stack=_stack_file(entry.stack, chain) if entry.stack else None,
        )
        if draft.cuda not in self._sdist_inputs:
            self._sdist_inputs[draft.cuda] = sdist_inputs(self.sdists, draft.cuda)
        return inputs(draft, self._sdist_inputs[draft.cuda])

    def _is_sound(self, image: PlacedEntry, entry: ImageEntry, composition: Composition) -> bool:
        """Return whether the composition can be a cell; else report its error."""
        sound = composition.base in self.bases and all(self._component(image, name) for name in composition.components)
        if not (sound and set(composition.gpus) <= set(self.gpus)):
            return False  # an entry that it names has an error of its own
        locked = [name for name, use in composition.components.items() if use.uv_lock]
        unknown = sorted(set(composition.accepts) - {rule.id for rule in self.rules})
        if len(locked) > 1:
            self._fail(image, f"{' and '.join(locked)} each have a uv_lock: a cell takes one")
        elif locked and entry.stack:
            self._fail(image, f"{locked[0]} has a uv_lock, and the image a `stack`: a cell takes one")
        elif unknown:
            self._fail(image, f"it accepts {', '.join(unknown)}, and no rule has that id")
        else:
            return True
        return False

    def _requirements_of(
        self,
        image: PlacedEntry,
        entry: ImageEntry,
        axes: Mapping[str, str],
        composition: Composition,
        places: Mapping[str, Location],
    ) -> Iterator[Requirement]:
        """Yield the requirements by name; `places` has where the image names each component."""
        for name, use in sorted(composition.components.items()):
            component = self.components[name]
            yield Requirement(
                replace(component, entry_points=tuple(use.entry_points)) if use.entry_points else component,
                use.version,
                use.because or (_OWN if use.path or use.wheel else _UNEXPLAINED),
                "pypi" if entry.stack else self._index(image, composition.components, component, axes["cuda"]),
                component.git[use.git] if use.git else None,
                tuple(sorted(set(use.extras))),
                use.from_source,
                use.uv_lock,
                tuple(sorted(set(use.groups))),
                _own_source(use, places[name]),
                WheelAddress(use.url, use.sha256) if use.url and use.sha256 else None,
            )

    def _recipes_of(self, composition: Composition) -> dict[str, Recipe]:
        return {
            self.components[name].package: self.recipes[name]
            for name, use in sorted(composition.components.items())
            if name in self.recipes and not (use.path or use.wheel)
        }

    def _share(self, requirement: Requirement) -> Requirement:
        """Return the equal requirement of a cell before, if any: a result that is kept has each object once."""
        requirements = self._requirements.setdefault(requirement.component.name, [])
        if requirement not in requirements:
            requirements.append(requirement)
        return requirements[requirements.index(requirement)]

    def _copies(self, composition: Composition, definition_of: Mapping[str, Definition]) -> Iterator[CopySource]:
        for path, copy in sorted(composition.files.items()):
            definition = definition_of[path]
            project = self.directories[definition.placed.layer].parent
            top = project.joinpath(*[".."] * copy.source.count("../"))
            yield CopySource(path, copy.source, copy.because, project / copy.source, top, definition.where)

    def _patches(self, composition: Composition, definition_of: Mapping[str, Definition]) -> Iterator[PatchSource]:
        for path, patch in sorted(composition.patches.items()):
            definition = definition_of[path]
            project = self.directories[definition.placed.layer].parent
            top = project.joinpath(*[".."] * path.count("../"))
            yield PatchSource(patch.package, path, patch.because, patch.source, project / path, top, definition.where)


def _places(definition_of: Mapping[str, Definition]) -> dict[str, Location]:
    return {name: definition.where for name, definition in definition_of.items()}


def _overrides(composition: Composition) -> Iterator[Override]:
    for name, override in sorted(composition.overrides.items()):
        specifier = None if override.omit else override.version
        yield Override(name, specifier, because=override.because, source=override.source)


def _config_fields(composition: Composition) -> Iterator[ConfigField]:
    for name, field in sorted(composition.config.items()):
        yield ConfigField(name, (field.value,) if isinstance(field.value, str) else tuple(field.value), field.because)


def _own_source(use: ComponentUse, where: Location) -> OwnSource | None:
    """Return the project's own source of a component that the line `where` requires; None where it has none."""
    if use.path:
        return OwnSource("path", use.path, where)
    return OwnSource("wheel", use.wheel, where) if use.wheel else None


def _stack_file(entry: StackFileEntry, chain: Sequence[PlacedEntry]) -> StackFile:
    """Return the lock file named by the last image of `chain` that names one."""
    kind: Literal["uv", "pylock"] = "uv" if entry.uv else "pylock"
    path = (entry.uv or entry.pylock or "").removeprefix("./")
    owner = next(image for image in reversed(chain) if image.entry.stack)
    where = owner.where("stack", kind, key=False)
    return StackFile(kind, path, tuple(sorted(set(entry.extras))), tuple(sorted(set(entry.groups))), where)
