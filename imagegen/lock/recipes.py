"""The compiled components of a cell before anything is compiled: their releases, and whether they can be built there.

Also files of a commit's archive, and the check of a matrix's metadata of a commit against its pyproject.toml.
"""

from __future__ import annotations

import posixpath
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.compat import Fact, Facts, evaluate_on_gpus
from imagegen.compat.rule import Rule, cuda_version
from imagegen.core import data, git, toml
from imagegen.core.errors import BuildError, Location, LockError
from imagegen.core.layer_tar import Bounded, members
from imagegen.core.store import Store
from imagegen.core.types import Gpu, parse_requirement
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.foundation import LockedBase, LockedDeb
from imagegen.lock.model import LockedWheel
from imagegen.lock.uv_resolve import Pinned
from imagegen.spec.model import Cell, Component, Requirement, Sdist
from imagegen.spec.recipe import Recipe

_LARGEST = 64 << 20  # bytes of a file that is read whole; a uv.lock of 1,000 packages takes 2 MB


def member(store: Store, archive: git.PackedTree, name: str) -> bytes:
    """Return a file of an archive. Raises KeyError where it holds no such file, or one too large to read whole."""
    with tarfile.open(store.path(archive.digest), "r:*", tarinfo=Bounded) as tar:
        info = next((info for info in members(tar) if info.name == name), None)
        file = tar.extractfile(info) if info and info.isreg() and info.size <= _LARGEST else None
        if file is None:
            raise KeyError(f"{name} is not a file, or too large")
        return file.read()


def pyproject(store: Store, archive: git.PackedTree, folder: str, subdirectory: str) -> dict[str, Any]:
    """Return the pyproject.toml of a project in an archive, {} where it has none. Raises LockError."""
    path = posixpath.join(folder, subdirectory, "pyproject.toml")
    try:
        return toml.loads(member(store, archive, path).decode(), data.MAX_SOURCE_FILE)
    except KeyError:
        return {}
    except ValueError as error:
        where = Location(path, error.line) if isinstance(error, toml.TomlError) else path
        raise LockError(
            "pyproject.toml is malformed", code="lock-pyproject-malformed", where=where, why=str(error)
        ) from error


def require_metadata(requirement: Requirement, archive: git.PackedTree, store: Store) -> None:
    """Raise LockError unless a commit's static metadata in the matrix equals its pyproject.toml (PEP 621).

    Fields that pyproject.toml leaves to the build backend are not compared; nor are requirements by address, which no
    matrix can hold.
    """
    source = requirement.git
    assert source  # noqa: S101 - the caller passes only requirements of commits
    package = requirement.component.package
    project = pyproject(store, archive, f"{package}-{source.metadata.version}", source.subdirectory).get("project", {})
    dynamic = project.get("dynamic", [])
    wrong = []
    if "version" in project and Version(project["version"]) != Version(source.metadata.version):
        wrong.append(f"version is {project['version']}, and the matrix has {source.metadata.version}")
    if "dependencies" in project and "dependencies" not in dynamic:
        stated, declared = _plain(project["dependencies"]), _plain(source.metadata.requires)
        if lacking := sorted(stated - declared):
            wrong.append(f"it requires {', '.join(lacking)}, which the matrix lacks")
        if odd := sorted(declared - stated):
            wrong.append(f"it does not require {', '.join(odd)}, which the matrix has")
    if wrong:
        raise LockError(
            f"the metadata of {requirement.component.name} differs from {source.url} at {source.commit}",
            code="lock-metadata-stale",
            why="\n".join(wrong),
            fix=f"correct `version` and `requires` of git entry {source.name!r}",
        )


def _plain(requirements: Iterable[str]) -> set[str]:
    """Return the requirements without extras and addresses, each in one spelling."""
    parsed = [parse_requirement(requirement) for requirement in requirements]
    normalised = set()
    for plain in parsed:
        if not plain.url and "extra" not in str(plain.marker or ""):
            extras = f"[{','.join(sorted(map(canonicalize_name, plain.extras)))}]" if plain.extras else ""
            marker = f"; {plain.marker}" if plain.marker else ""
            normalised.add(f"{canonicalize_name(plain.name)}{extras}{plain.specifier}{marker}")
    return normalised


# A cell's compiled components before anything is compiled: which release each is, and whether it can be built there.
#
# Faults that show without a compiler are reported here, because a compiler takes hours to report them.

# NVIDIA's wheels that make a toolkit. The wheels of CUDA 12 have no nvcc, so that a base must have the toolkit.
TOOLKIT = ("nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-nvvm")
_IMAGE = re.compile(r":([0-9]+\.[0-9]++)[^:/]*$")  # of a toolkit's own image: "nvidia/cuda:13.0.2-devel-ubuntu24.04"


@dataclass(frozen=True)
class Compiled:
    """A component of the cell that has a recipe, and the release that was chosen of it."""

    requirement: Requirement
    recipe: Recipe  # of that release
    version: str

    @property
    def package(self) -> str:
        return self.requirement.component.package

    @property
    def described(self) -> Component:
        """The component with static metadata, so that a resolution needs none of its code."""
        return Component(self.package, self.package, "", (), sdist=Sdist(self.version, self.recipe.requires, ()))

    @property
    def pep508(self) -> str:
        extras = f"[{','.join(self.requirement.extras)}]" if self.requirement.extras else ""
        return f"{self.package}{extras}=={self.version}"


def choose_release(
    requirement: Requirement, recipe: Recipe, catalogued: Iterable[str], retained: str | None
) -> Compiled:
    """Return the component in the release `retained` if it can stay, else in the newest that fits.

    Releases are those with a recipe or a wheel in the catalogue; for a component that must be built from source, only
    those with a recipe. Raises LockError if none fits.
    """
    fitting = allowed(requirement.specifier, (*recipe.releases, *(() if requirement.from_source else catalogued)))
    if not fitting:
        raise _no_release(f"{requirement.component.package} {requirement.specifier}", recipe)
    public = Version(retained).public if retained else None
    version = public if public in fitting else fitting[-1]
    return Compiled(requirement, recipe.of(version), version)


def allowed(specifier: str, versions: Iterable[str]) -> list[str]:
    """Return the known releases that satisfy the specifier, the newest last; pre-releases as in PEP 440."""
    return list(SpecifierSet(specifier).filter(sorted(set(versions), key=Version)))


def require_release(component: Compiled, cell: Cell) -> None:
    """Raise LockError for a release of which only wheels are known."""
    if component.version not in component.recipe.releases:
        raise _no_release(f"{component.package} {component.version}", cell.recipes[component.package])


def no_recipe(release: str, why: str, fix: str | None = None) -> LockError:
    """Return the error for a release without a recipe."""
    return LockError(
        f"{release} has to be compiled, and no recipe says how",
        code="lock-no-recipe",
        why=why,
        fix=fix or "write a recipe of it, under `recipes:` in a file below wheels/ of your project, or ask for another",
    )


def _no_release(release: str, recipe: Recipe) -> LockError:
    """Return the error for a release that the recipe lacks. A second recipe of its name replaces the whole recipe."""
    why = f"there are recipes for {', '.join(sorted(recipe.releases, key=Version))}"
    location = f" at {recipe.where}" if recipe.where else ""
    fix = f"add that release to the recipe{location}, or ask for another"
    if recipe.where and Path(recipe.where.file).is_relative_to(data.shipped("wheels")):
        fix = (
            f"copy the whole recipe{location}, with its patches, under `recipes:` in a file below wheels/ of your "
            "project, and add `override: true` and that release there; or ask for another"
        )
    return no_recipe(release, why, fix)


def environment(component: Compiled, cell: Cell) -> dict[str, str]:
    """Return the build's own variables. Raises BuildError for a GPU that the recipe does not know."""
    env = {variable.name: variable.value for variable in component.recipe.env}
    if names := component.recipe.architectures:
        unknown = [gpu.capability for gpu in cell.gpus if gpu.capability not in names.names]
        if unknown or not cell.gpus:
            gpus = ", ".join(unknown) or "a cell without a GPU"
            raise BuildError(
                f"{component.package} {component.version} cannot be compiled for {gpus}",
                code="source-build-unsupported",
                why=f"its recipe knows the compute capabilities {', '.join(sorted(names.names, key=Version))}",
                fix=f"choose a cell without {component.package}, or add the GPU to its recipe if its sources know it",
            )
        env[names.variable] = names.separator.join(_names(component, cell))
    return env


def architectures(component: Compiled, cell: Cell) -> tuple[str, ...]:
    """Return the compute capabilities that it is compiled for; none if it has no code for GPUs."""
    return tuple(gpu.capability for gpu in cell.gpus) if component.recipe.architectures else ()


def _names(component: Compiled, cell: Cell) -> list[str]:
    """Return the recipe's names of the cell's GPUs, each once, in the order of their capabilities."""
    names = component.recipe.architectures
    return list(dict.fromkeys(names.names[gpu.capability] for gpu in cell.gpus)) if names else []


def against(component: Compiled, cell: Cell, wheels: Iterable[LockedWheel]) -> tuple[str, ...]:
    """Return the wheels that are installed while it is compiled. Raises BuildError for a missing one."""
    wheels = tuple(wheels)
    names = {wheel.name for wheel in wheels}
    for name in component.recipe.against:
        if name not in names:
            why = "it is compiled itself" if name in cell.recipes else "the stack does not hold it"
            message = (
                f"{component.package} {component.version} is compiled against {name}, which {cell.id} cannot give it"
            )
            raise BuildError(message, why=why, fix=f"add {name} to the cell, or take it out of the recipe's `against`")
    return closure(component.recipe.against, wheels)


def closure(names: Iterable[str], wheels: Iterable[LockedWheel]) -> tuple[str, ...]:
    """Return these wheels and all that they require, sorted; the toolkit's wheels are always among them."""
    needed_by = {wheel.name: frozenset(wheel.via) for wheel in wheels}
    selected = {*names, *TOOLKIT} & needed_by.keys()
    while added := {name for name, asking in needed_by.items() if not asking.isdisjoint(selected)} - selected:
        selected |= added
    return tuple(sorted(selected))


def require_tools(
    component: Compiled,
    cell: Cell,
    base: LockedBase,
    debs: Iterable[LockedDeb],
    wheels: Iterable[LockedWheel],
    rules: Iterable[Rule],
) -> None:
    """Raise BuildError where base and packages have no compiler, or the toolkit is none that this build can use.

    `debs` are all Debian packages that the lock names.
    """
    _require_compiler(component, cell, base, debs)
    if component.recipe.architectures is None and not component.recipe.toolkit:
        return
    versions = {wheel.name: wheel.version for wheel in wheels}
    toolkit = _toolkit(base, versions)
    message = f"{component.package} {component.version} cannot be compiled in {cell.id}"
    if toolkit is None and base.content:
        return  # an image that does not state its toolkit
    if toolkit is None:
        fix = "add nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-cuda-cccl and nvidia-nvvm to the cell"
        if cell.axes.get("cuda", "").startswith("cu12"):
            fix = "choose a cell with CUDA 13, or with a base that has nvcc; PyPI has nvcc only for CUDA 13"
        raise BuildError(message, why="neither its wheels nor its base hold a CUDA toolkit", fix=fix)
    if not SpecifierSet(component.recipe.toolkit).contains(toolkit):
        fix = "choose a cell with another CUDA"
        raise BuildError(
            message, why=f"it takes a CUDA toolkit {component.recipe.toolkit}, and this is {toolkit}", fix=fix
        )
    if "torch" in component.recipe.against and (torch := _torch_cuda(cell, versions["torch"])) != toolkit:
        built = f"built with CUDA {torch}" if torch else "built without CUDA"
        why = f"its toolkit is CUDA {toolkit}, and torch {versions['torch']} is {built}"
        raise BuildError(message, why=why, fix=f"hold the toolkit's wheels at {torch or 'that of torch'}.*")
    _require_new_enough(message, toolkit, _names(component, cell), rules)


def _require_compiler(component: Compiled, cell: Cell, base: LockedBase, debs: Iterable[LockedDeb]) -> None:
    if base.content:
        return  # the lock has no list of the image's packages
    names = {deb.name for deb in debs}
    headers = (
        [] if cell.interpreter.files else [f"python{cell.python}-dev"]
    )  # a standalone interpreter has its own headers
    needed = (
        ("g++", *headers) if component.recipe.modules else ("gcc",)
    )  # a library that is not a Python package may be plain C
    if lacking := [name for name in needed if name not in names]:
        raise BuildError(
            f"{component.package} {component.version} cannot be compiled on {base.name}",
            code="source-build-unsupported",
            why=f"the base has no {' and no '.join(lacking)}",
            fix=f"add {', '.join(lacking)} to the image's `packages`, or use a base such as debian12-gpu",
        )


def _toolkit(base: LockedBase, versions: Mapping[str, str]) -> str | None:
    """Return the toolkit's major and minor version, "13.0": of nvcc's wheel, else as the base's image states it; None
    if neither does.
    """
    if nvcc := versions.get("nvidia-cuda-nvcc"):
        return _minor(nvcc)
    env = dict(variable.partition("=")[::2] for variable in base.content.config.env) if base.content else {}
    match = _IMAGE.search(base.image or "")
    version = env.get("CUDA_VERSION") or (match[1] if match and "cuda" in str(base.image) else "")
    return _minor(version) if re.match(r"[0-9]+\.[0-9]", version) else None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _torch_cuda(cell: Cell, version: str) -> str | None:
    """Return the CUDA version of torch's label, else of the cell: PyPI's wheels carry no label."""
    label = Version(version).local or ""
    return None if label == "cpu" else cuda_version(label) or cell.cuda_version


def _require_new_enough(message: str, toolkit: str, names: Iterable[str], rules: Iterable[Rule]) -> None:
    """Raise BuildError if rules of the matrix require a newer CUDA for a GPU. Warnings count too for a compiler."""
    about = [rule for rule in rules if {*rule.when, *rule.then, *rule.conflict} <= {"cuda", "gpu"}]
    gpus = tuple(Gpu(f"sm_{name}", _capability(name), "", ()) for name in names)
    facts = Facts({}, {"cuda": Fact.exactly(toolkit)}, {}, closed=False, gpus=gpus)
    verdict = evaluate_on_gpus(about, facts)
    if verdict.conflicts:
        raise BuildError(
            message,
            why="\n".join(str(conflict) for conflict in verdict.conflicts),
            fix="use a cell whose CUDA is new enough for its GPUs, or leave the GPU out",
        )


def _capability(name: str) -> str:
    """The compute capability behind a name as compilers have it: "90a", "9.0", "120"."""
    number = re.sub(r"[^0-9.]", "", name)
    return number if "." in number else f"{number[:-1]}.{number[-1]}"


def no_wheel(pinned: Pinned, target: WheelTarget, cell: Cell) -> LockError:
    """Return the error for a release of which no wheel fits the target, and whose sdist is not declared."""
    compiled = {requirement.component.package for requirement in cell.requirements if requirement.component.compiled}
    if pinned.sdist and pinned.name in compiled:
        return no_recipe(f"{pinned.name} {pinned.version}", f"its index has only {pinned.sdist.filename}")
    wheels = ", ".join(remote.filename for remote in pinned.wheels[:4])
    offered = wheels or ("only an sdist" if pinned.sdist else "nothing")
    return LockError(
        f"{pinned.name} {pinned.version} has no wheel for Python {target.python} on {target.uv_platform}",
        code="lock-no-wheel",
        why=f"its index offers {offered}; {', '.join(pinned.via) or 'the cell'} asks for it",
        fix=f"if it is pure Python, declare {pinned.name} as a component with `sdist:`; else exclude this version",
    )
