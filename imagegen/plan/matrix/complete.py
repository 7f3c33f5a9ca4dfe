"""Validated entries -> the frozen dataclasses that the rest of imagegen sees, with every reference resolved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from packaging.version import Version

from imagegen.core.config import mirror_name
from imagegen.core.errors import ErrorList, Location, MatrixError
from imagegen.plan.matrix import metadata
from imagegen.plan.matrix.builds import LEADER, Builds
from imagegen.plan.matrix.cells import Matrix, cell_id, inputs, sdist_inputs
from imagegen.plan.matrix.compose import (
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
from imagegen.plan.matrix.environments import combined_cell
from imagegen.plan.matrix.interpreters import Interpreters
from imagegen.plan.matrix.metadata import AmbiguousBuildError, PackageReleases, is_pypi_build
from imagegen.plan.matrix.model import (
    NO_CUDA,
    SURROUNDINGS,
    Base,
    Cell,
    Component,
    ConfigField,
    CopySource,
    EnvVar,
    ExposedPort,
    FileConflictRule,
    GitSource,
    Index,
    Label,
    LibraryDirectory,
    Override,
    OwnSource,
    PatchSource,
    PinOverride,
    Requirement,
    Rule,
    Sdist,
    StackFile,
    WheelAddress,
    cuda_version,
)
from imagegen.plan.matrix.recipe import Recipe
from imagegen.plan.matrix.recipe_file import join_env, recipe
from imagegen.plan.matrix.references import Entries, PlacedEntry, check_references
from imagegen.plan.matrix.schema import AxisEntry, ComponentUse, GitEntry, ImageEntry, SdistEntry, StackFileEntry

CELL_AXES = ("cuda", "python", "platform")  # what every cell must have
_UNEXPLAINED = "The image names it, and gives no reason."
_OWN = "It is the project's own package."
_MAX_CELLS = 10_000  # of one image; the largest of the shipped ones has 24
_LONGEST_TAG = 115  # characters: 128 (OCI distribution-spec v1.1), less a dash and 12 digits of the inputs' hash
SHAPES = {"python": ("3.", "3.11"), "platform": ("linux/", "linux/amd64")}  # axis -> prefix of its values, example


def complete(entries: Entries, directories: Sequence[Path], errors: ErrorList[MatrixError]) -> Matrix:
    """Resolve every reference; what is wrong is appended to `errors`, and the result is then partial.

    `directories` are those of the entries' layers, each below its project's own.
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
        self._ambiguous: set[tuple[tuple[str, str], str]] = set()  # what is refused already, by image
        self.unresolved = unresolved  # entries that name what does not exist
        self.axes: dict[str, AxisEntry] = {found.name: found.entry for found in self._sound("axes")}
        self.systems = {found.name: found.entry.system(found.name) for found in self._sound("systems")}
        self.gpus = {found.name: found.entry.gpu(found.name) for found in self._sound("gpus")}
        self.accelerators = {found.entry.maker: tuple(found.entry.names) for found in self._sound("accelerators")}
        self.bases = {
            found.name: self._base(found) for found in self._sound("bases") if found.entry.system in self.systems
        }
        resolved = [found for found in self._sound("interpreters") if self._resolved(found)]
        whole = len(resolved) == len(self.entries["interpreters"])
        self.interpreters = Interpreters(resolved, errors, whole=whole)
        self.stacks = {found.name: found.entry for found in self._sound("stacks") if self._resolved(found)}
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
        self.builds = Builds(tuple(found.entry.build(found.name) for found in self._sound("builds")), led)
        written = [self._rule(found) for found in self._sound("rules")]
        self.rules = tuple(sorted([*written, *self.builds.rules()], key=lambda rule: rule.id))
        self.file_conflicts = tuple(_file_conflict(found) for found in self._sound("file_conflicts"))
        self.record_exceptions = {found.entry.sha256: found.entry.because for found in self._sound("record_exceptions")}

    def matrix(self) -> Matrix:
        cells: dict[str, Cell] = {}
        defaults: dict[str, str] = {}
        images = self._sound("images")
        for image in sorted(images, key=lambda found: bool(found.entry.environments)):  # sorted: those come last
            made = self._combined(image, cells) if image.entry.environments else self._cells(image)
            for cell in made:
                if cell.id in cells:
                    self._fail(image, f'the cell id "{cell.id}" is taken by image "{cells[cell.id].image}"')
                if len(cell.id) - len(cell.image) - 1 > _LONGEST_TAG:
                    self._fail(image, f'the cell id "{cell.id}" is too long for an image\'s tag')
                cells[cell.id] = cell
            if made:
                defaults[image.name] = made[0].id
        for name in sorted(set(defaults) & set(cells)):
            self._fail(self.entries["images"][name], f'"{name}" is also the id of a cell of "{cells[name].image}"')
        return Matrix(
            tuple(cells[each] for each in sorted(cells)),
            self.rules,
            defaults,
            {name: each for name, each in self.components.items() if each.declared},
            self.gpus,
            self.systems,
            {name: tuple(axis.values) for name, axis in self.axes.items()},
            {found.name: found.where() for found in self._sound("rules")},
            self.recipes,
            self.interpreters.known,
            tuple(
                PinOverride(**found.entry.model_dump(exclude={"override"})) for found in self._sound("pin_overrides")
            ),
            self.accelerators,
            {found.name: found.entry.image(found.name) for found in self._sound("ngc_images")},
            self.builds,
            self.indexes,
        )

    def _sound(self, section: str) -> list[PlacedEntry]:
        return [found for _, found in sorted(self.entries[section].items()) if found.entry is not None]

    def _resolved(self, found: PlacedEntry) -> bool:
        return found.path not in self.unresolved

    def _fail(self, found: PlacedEntry, what: str, *inside: str | int, key: bool = True) -> None:
        self.errors.append(found.error(what, *inside, key=key))

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
                what = f'"{value}" is no value of the cuda axis; one looks like "cu130" or is "{NO_CUDA}"'
                self._fail(self.entries["axes"]["cuda"], what, "values", position, key=False)
        for axis, (prefix, example) in SHAPES.items():
            for position, value in enumerate(self._values(axis)):
                if not value.startswith(prefix):
                    what = f'"{value}" is no value of the {axis} axis; one looks like "{example}"'
                    self._fail(self.entries["axes"][axis], what, "values", position, key=False)

    def _indexes(self) -> dict[str, Index]:
        if "pypi" not in self.entries["indexes"]:
            self.errors.append(
                MatrixError(
                    'no file defines the index "pypi"', code="matrix-missing-definition", fix="every matrix needs it"
                )
            )
        result = {}
        for found in self._sound("indexes"):
            alias, url = found.name, found.entry.url
            if url and alias == "pypi":
                self._fail(found, "pypi's url comes from the environment")
            elif not url and alias != "pypi":
                variable = f"IMAGEGEN_INDEX_{mirror_name(alias)}"
                fix = f"write its address as `url: https://...`; {variable} only gives it another one on a machine"
                self.errors.append(found.error(f'the index "{alias}" needs a url', fix=fix))
            result[alias] = Index(alias, url, found.entry.description)
        return result

    def _components(self) -> dict[str, Component]:
        result: dict[str, Component] = {}
        for found in self._sound("components"):
            name, entry = found.name, found.entry
            if name in SURROUNDINGS:
                self._fail(found, f'"{name}" cannot be a component: rules call the surroundings so')
            package = entry.package or name
            if package in self._owners:
                self._fail(found, f'the package "{package}" already belongs to the component "{self._owners[package]}"')
            self._owners[package] = name
            if entry.compiled and (entry.git or entry.sdist):
                key = "git" if entry.git else "sdist"
                self._fail(found, "the sources of a compiled component stand in its recipe, under `recipes`", key)
            result[name] = Component(
                name=name,
                package=package,
                description=entry.description,
                imports=tuple(entry.imports),
                sdist=entry.sdist and _metadata(entry.sdist),
                source=entry.source,
                index=dict(entry.index),
                local=dict(entry.local),
                pypi_build=entry.pypi_build,
                aliases=tuple(entry.aliases),
                git={each: _git_source(each, one) for each, one in entry.git.items()},
                compiled=entry.compiled,
                entry_points=tuple(entry.entry_points),
            )
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
        for found in self._sound("recipes"):
            if found.name in self.components:
                directory = directories[found.layer]
                made, errors = recipe(found, self.components[found.name], self.gpus, directory)
                result[found.name] = made
                self.errors += errors
        return result

    def _rule(self, found: PlacedEntry) -> Rule:
        entry = found.entry
        when, then, conflict, unless = map(self._by_package, (entry.when, entry.then, entry.conflict, entry.unless))
        same = tuple(self._by_package(dict.fromkeys(entry.same, "")))
        rest = entry.model_dump(exclude={"when", "then", "conflict", "same", "unless", "override"})
        return Rule(found.name, when, then, conflict, same=same, unless=unless, **rest)

    def _by_package(self, side: Mapping[str, str]) -> dict[str, str]:
        return {self.components[name].package if name in self.components else name: text for name, text in side.items()}

    def _cells(self, found: PlacedEntry) -> list[Cell]:
        """The image's cells, its default cell first; none when something it names is missing."""
        images = self.entries["images"]
        if error := cycle_error(found, images):
            self.errors.append(error)
        chain = ancestry(found, images)
        stacks = [name for each in chain for name in each.entry.stacks]
        if not (chain and set(CELL_AXES) <= set(self.axes) and set(stacks) <= set(self.stacks)):
            return []
        if not all(self._resolved(each) for each in chain) or self._extends_environments(found, chain):
            return []
        if twice := {name for name in stacks if stacks.count(name) > 1} & set(found.entry.stacks):
            self._fail(found, f"it names a stack twice, or one of an image that it extends: {min(twice)}", "stacks")
        entry = inherit(chain)
        if not entry.gpus and set(self._offered(entry, "cuda")) != {NO_CUDA}:
            self._fail(found, "an image with CUDA says for which GPUs it is: `gpus` is missing")
        axes = sorted(self.axes)
        offered = [self._offered(entry, axis) for axis in axes]
        if math.prod(map(len, offered)) > _MAX_CELLS:
            self._fail(found, f"the image has more than {_MAX_CELLS} cells", "axes")
            return []
        choices = [dict(zip(axes, values, strict=True)) for values in itertools.product(*offered)]
        for position, excluded in enumerate(found.entry.exclude):
            if not any(applies(excluded, choice) for choice in choices):
                self._fail(found, "it excludes none of the image's cells", "exclude", position, key=False)
        choices = [each for each in choices if not any(applies(excluded, each) for excluded in entry.exclude)]
        if not choices:
            self._fail(found, "it excludes every cell of the image", "exclude")
        generations = [Generation(e.entry, tuple(self.stacks[name] for name in e.entry.stacks)) for e in chain]
        self.errors += removal_errors(found, generations, choices)
        placed = [(*(self.entries["stacks"][name] for name in each.entry.stacks), each) for each in chain]
        cells = [self._cell(found, entry, chain, choice, compose(generations, choice), placed) for choice in choices]
        return [cell for cell in cells if cell]

    def _extends_environments(self, found: PlacedEntry, chain: Sequence[PlacedEntry]) -> bool:
        if extends := any(each.entry.environments for each in chain):
            self._fail(found, "it extends an image of several environments: extend the image of one of them", "extends")
        return extends

    def _combined(self, found: PlacedEntry, cells: Mapping[str, Cell]) -> list[Cell]:
        """The only cell of an image with several environments; none after an error."""
        if not self._resolved(found) or (
            self.errors and not {e.cell for e in found.entry.environments.values()} <= cells.keys()
        ):
            return []  # what it names may have an error of its own
        cell, errors = combined_cell(found, cells, {name: axis.default for name, axis in self.axes.items()})
        self.errors += errors
        return [cell] if cell else []

    def _base(self, found: PlacedEntry) -> Base:
        system = self.systems[found.entry.system]
        return Base(name=found.name, glibc=system.glibc, **found.entry.model_dump(exclude={"override", "env"}))

    def _values(self, axis: str) -> list[str]:
        return self.axes[axis].values if axis in self.axes else []

    def _offered(self, entry: ImageEntry, axis: str) -> list[str]:
        """The image's values on the axis, the axis's default first where it is among them."""
        default = self.axes[axis].default
        return sorted(dict.fromkeys(entry.axes.get(axis, [default])), key=lambda value: value != default)

    def _index(self, found: PlacedEntry, uses: Mapping[str, ComponentUse], component: Component, cuda: str) -> str:
        """Return the alias of the index that gives `component` to a cell whose components are `uses`."""
        own, version = component.index.get(cuda, "pypi"), cuda_version(cuda)
        leader = uses.get(component.pypi_build or "")
        named = uses[component.name].index or (leader and leader.index and (own if leader.index != "pypi" else "pypi"))
        if named or not (component.pypi_build and version):
            return named or own
        specifier = leader.version if leader else ""
        try:
            return "pypi" if self._is_pypi_build(component.pypi_build, specifier, version) else own
        except AmbiguousBuildError as error:
            what = f'"{component.pypi_build}{specifier}" admits builds for CUDA {version} and others'
            fix = f"pin {component.pypi_build}, bound its version on both sides, or name its `index:`"
            if (found.path, what) not in self._ambiguous:  # once for all cells of an image
                self._ambiguous.add((found.path, what))
                self.errors.append(MatrixError(what, where=found.where(), why=str(error), fix=fix))
            return own

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
        found: PlacedEntry,
        entry: ImageEntry,
        chain: Sequence[PlacedEntry],
        axes: Mapping[str, str],
        made: Composition,
        placed: Sequence[Sequence[PlacedEntry]],
    ) -> Cell | None:
        sound = made.base in self.bases and all(self._component(found, name) for name in made.components)
        if not (sound and set(made.gpus) <= set(self.gpus)):
            return None  # what it names has an error of its own
        base, base_env = self.bases[made.base], self.entries["bases"][made.base].entry.env
        gpus = [] if axes["cuda"] == NO_CUDA else [self.gpus[name] for name in made.gpus]
        locked = [name for name, use in made.components.items() if use.uv_lock]
        if len(locked) > 1:
            self._fail(found, f"{' and '.join(locked)} each have a uv_lock: a cell takes one")
            return None
        if locked and entry.stack:
            self._fail(found, f"{locked[0]} has a uv_lock, and the image a `stack`: a cell takes one")
            return None
        if unknown := sorted(set(made.accepts) - {rule.id for rule in self.rules}):
            self._fail(found, f"it accepts {', '.join(unknown)}, and no rule has that id")
            return None
        interpreter = self.interpreters.choose(found, made.interpreter, base.system, axes)
        if interpreter is None:
            return None
        named = definitions(placed, axes, "components")
        requirements = tuple(
            Requirement(
                replace(component, entry_points=tuple(use.entry_points)) if use.entry_points else component,
                use.version,
                use.because or (_OWN if use.path or use.wheel else _UNEXPLAINED),
                "pypi" if entry.stack else self._index(found, made.components, component, axes["cuda"]),
                component.git[use.git] if use.git else None,
                tuple(sorted(set(use.extras))),
                use.from_source,
                use.uv_lock,
                tuple(sorted(set(use.groups))),
                _own_source(use, named[name].where),
                WheelAddress(use.url, use.sha256) if use.url and use.sha256 else None,
            )
            for name, component, use in ((n, self.components[n], use) for n, use in sorted(made.components.items()))
        )
        requirements = tuple(map(self._shared, requirements))
        env = sorted(join_env(base_env, made.env).items())
        variables = (EnvVar(name, each.value, each.because) for name, each in env)
        aliases = {"pypi", *(requirement.index for requirement in requirements)} & set(self.indexes)
        draft = Cell(
            id=cell_id(found.name, axes, {name: axis.default for name, axis in self.axes.items()}),
            image=found.name,
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
            recipes={
                self.components[name].package: self.recipes[name]
                for name, use in sorted(made.components.items())
                if name in self.recipes and not (use.path or use.wheel)
            },
            omits=dict(sorted(made.omits.items())),
            packages=dict(sorted({**(base.packages if base.kind == "registry" else {}), **made.packages}.items())),
            overrides=tuple(
                Override(name, None if each.omit else each.version, because=each.because, source=each.source)
                for name, each in sorted(made.overrides.items())
            ),
            config=tuple(
                ConfigField(name, tuple([each.value] if isinstance(each.value, str) else each.value), each.because)
                for name, each in sorted(made.config.items())
            ),
            labels=tuple(Label(name, each.value, each.because) for name, each in sorted(made.labels.items())),
            ports=tuple(itertools.starmap(ExposedPort, sorted(made.ports.items()))),
            copies=tuple(self._copies(made, definitions(placed, axes, "files"))),
            patches=tuple(self._patches(made, definitions(placed, axes, "patches"))),
            ldconfig=tuple(itertools.starmap(LibraryDirectory, sorted(made.ldconfig.items()))),
            ldconfig_places={path: each.where for path, each in definitions(placed, axes, "ldconfig").items()},
            extra_places={
                self.components[name].package: named[name].where for name, use in made.components.items() if use.extras
            },
            override_places={name: each.where for name, each in definitions(placed, axes, "overrides").items()},
            accepts=dict(sorted(made.accepts.items())),
            extends=entry.extends,
            stack=_stack_file(entry.stack, chain) if entry.stack else None,
        )
        if draft.cuda not in self._sdist_inputs:
            self._sdist_inputs[draft.cuda] = sdist_inputs(self.sdists, draft.cuda)
        return inputs(draft, self._sdist_inputs[draft.cuda])

    def _shared(self, made: Requirement) -> Requirement:
        """Return the equal requirement of a cell before, if any: a result that is kept has each object once."""
        known = self._requirements.setdefault(made.component.name, [])
        if made not in known:
            known.append(made)
        return known[known.index(made)]

    def _copies(self, made: Composition, places: Mapping[str, Definition]) -> Iterator[CopySource]:
        for path, each in sorted(made.files.items()):
            place = places[path]
            project = self.directories[place.found.layer].parent
            top = project.joinpath(*[".."] * each.source.count("../"))
            yield CopySource(path, each.source, each.because, project / each.source, top, place.where)

    def _patches(self, made: Composition, places: Mapping[str, Definition]) -> Iterator[PatchSource]:
        for path, each in sorted(made.patches.items()):
            place = places[path]
            project = self.directories[place.found.layer].parent
            top = project.joinpath(*[".."] * path.count("../"))
            yield PatchSource(each.package, path, each.because, each.source, project / path, top, place.where)


def _own_source(use: ComponentUse, where: Location) -> OwnSource | None:
    """Return the project's own source of a component that the line `where` requires; None where it has none."""
    if use.path:
        return OwnSource("path", use.path, where)
    return OwnSource("wheel", use.wheel, where) if use.wheel else None


def _stack_file(entry: StackFileEntry, chain: Sequence[PlacedEntry]) -> StackFile:
    """Return the lock file that the last image of `chain` to name one names."""
    kind: Literal["uv", "pylock"] = "uv" if entry.uv else "pylock"
    path = (entry.uv or entry.pylock or "").removeprefix("./")
    found = next(each for each in reversed(chain) if each.entry.stack)
    where = found.where("stack", kind, key=False)
    return StackFile(kind, path, tuple(sorted(set(entry.extras))), tuple(sorted(set(entry.groups))), where)


def _metadata(entry: SdistEntry) -> Sdist:
    return Sdist(entry.version, tuple(entry.requires), tuple(entry.build_requires))


def _git_source(name: str, entry: GitEntry) -> GitSource:
    return GitSource(
        name,
        entry.url,
        entry.commit,
        entry.tree,
        _metadata(entry),
        entry.subdirectory or "",
        tuple(sorted(set(entry.exclude))),
    )


def _file_conflict(found: PlacedEntry) -> FileConflictRule:
    fields = found.entry.model_dump(exclude={"override"})
    return FileConflictRule(id=found.name, **fields | {"over": tuple(sorted(set(fields["over"])))})
