"""The inputs of a lock, as one hash per input, so that a stale lock can name the input that changed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from imagegen import checks
from imagegen.spec.model import Cell, Component, Requirement
from imagegen.spec.recipe import Architectures, Commit, LocalSource, Recipe, SdistFile


def inputs(cell: Cell, sdists: Mapping[str, str]) -> Cell:
    """Return the cell with its `inputs` filled in; `sdists` are the `sdist_inputs` of its CUDA version.

    Descriptions and purposes are not inputs, because no lock has them: a corrected typo makes no lock stale. Reasons of
    pins and variables are inputs, because the lock repeats them. Rules are not inputs, because they judge a lock each
    time that it is used.
    """
    requirements = [_requested_fields(requirement) for requirement in cell.requirements]
    base = dataclasses.asdict(cell.base)
    del base["libstdcxx"]  # it judges a lock, as rules do, and selects no files
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
