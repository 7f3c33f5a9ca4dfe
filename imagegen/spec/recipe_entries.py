"""Validated recipes -> Recipe: their patches are read here, and must match the recipe's hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename

from imagegen.core import data
from imagegen.core.errors import ErrorList, MatrixError
from imagegen.core.gpu import Gpu
from imagegen.spec.model import Component, EnvVar
from imagegen.spec.prefix import Prefix
from imagegen.spec.recipe import PREFIX_JOBS, Commit, LocalSource, Patch, Recipe, ReleaseOverride, SdistFile

if TYPE_CHECKING:
    from imagegen.spec.references import PlacedEntry
from imagegen.spec.recipe_file import PatchEntry, PrefixEntry, RecipeEntry, ReleaseEntry


def recipe(
    placed: PlacedEntry, component: Component, gpus: Mapping[str, Gpu], directory: Path
) -> tuple[Recipe, ErrorList[MatrixError]]:
    """Return the recipe and what is wrong with it; its file lies below `directory`, a project's wheels/."""
    entry: RecipeEntry = placed.entry
    errors: ErrorList[MatrixError] = ErrorList()
    errors += _contradictions(placed, entry, component)
    errors += _unknown_gpus(placed, entry, gpus)
    errors += _patch_errors(placed, directory, entry.patches)
    for version, release in entry.releases.items():
        errors += _patch_errors(placed, directory, release.patches or (), "releases", version)
        errors += _path_errors(placed, directory.parent, version, release)
    result = Recipe(
        component=component.name,
        releases={
            version: _source(placed, version, release, directory.parent) for version, release in entry.releases.items()
        },
        requires=tuple(entry.requires),
        build_requires=tuple(entry.build_requires),
        against=tuple(sorted(entry.against)),
        patches=_patches(placed, entry.patches),
        env=tuple(EnvVar(name, variable.value, variable.because) for name, variable in sorted(entry.env.items())),
        architectures=entry.architectures,
        modules=tuple(entry.modules or ()),
        jobs=entry.jobs or (PREFIX_JOBS if entry.prefix else None),
        threads=entry.threads,
        toolkit=entry.toolkit,
        cost=entry.cost,
        source=entry.source,
        own={
            version: _own(placed, release_entry)
            for version, release_entry in entry.releases.items()
            if (release_entry.requires is not None or release_entry.patches is not None)
        },
        where=placed.where(),
        prefix=_prefix(entry.prefix, component.package) if entry.prefix else None,
    )
    return result, errors


def _prefix(entry: PrefixEntry, package: str) -> Prefix:
    return Prefix(package, tuple(map(tuple, entry.commands)), tuple(sorted(set(entry.files))))


def _contradictions(placed: PlacedEntry, entry: RecipeEntry, component: Component) -> Iterator[MatrixError]:
    if not component.compiled:
        message = f'the component "{component.name}" needs no compiler'
        yield placed.error(message, fix="say `compiled: true` in its entry under components, or leave the recipe out")
    lists: dict[str, Sequence[str]] = {
        "build_requires": [canonicalize_name(Requirement(require).name) for require in entry.build_requires],
        "requires": entry.requires,
        "against": entry.against,
        "modules": entry.modules or (),
    }
    for key, names in lists.items():
        for position in _repeated(names):
            yield placed.error(f'{key}: "{names[position]}" is listed twice', key, position, key=False)
    against = set(entry.against)
    for position, name in enumerate(lists["build_requires"]):
        if name in against:
            message = f'"{name}" is among `against` too: one build cannot have two of it'
            yield placed.error(message, "build_requires", position, key=False)
    for version, release in entry.releases.items():
        if release.sdist and not is_sdist_of(release.sdist.filename, component.package, version):
            message = f"{release.sdist.filename} is not an sdist of {component.package} {version}"
            yield placed.error(message, "releases", version, "sdist", "file", key=False)


def _repeated(names: Iterable[str]) -> list[int]:
    """The positions of names that stand earlier in the list, too."""
    first: dict[str, int] = {}
    return [position for position, name in enumerate(names) if first.setdefault(name, position) != position]


def is_sdist_of(filename: str, package: str, version: str) -> bool:
    try:
        name, its_version = parse_sdist_filename(filename)
    except ValueError:
        return False
    return (name, str(its_version)) == (package, version)


def _unknown_gpus(placed: PlacedEntry, entry: RecipeEntry, gpus: Mapping[str, Gpu]) -> Iterator[MatrixError]:
    capabilities = {gpu.capability for gpu in gpus.values()}
    for capability in entry.architectures.names if entry.architectures else ():
        if capability not in capabilities:
            fix = f"known here: {', '.join(sorted(capabilities, key=float))}"
            message = f'no GPU has the compute capability "{capability}"'
            yield placed.error(message, "architectures", "names", capability, fix=fix)


def _patches(placed: PlacedEntry, entries: Sequence[PatchEntry]) -> tuple[Patch, ...]:
    return tuple(Patch(placed.document.file.parent / entry.file, entry.sha256, entry.because) for entry in entries)


def _path_errors(placed: PlacedEntry, project: Path, version: str, release: ReleaseEntry) -> Iterator[MatrixError]:
    """Yield an error for a local source that links lead out of the directory that its `../`s name."""
    if release.path:
        top = project.joinpath(*[".."] * release.path.count("../"))
        try:
            data.require_within(project / release.path, top)
        except OSError as error:
            where = placed.where("releases", version, "path", key=False)
            message, fix = f"the source {release.path} cannot be read", "write the path that it leads to"
            yield MatrixError(message, where=where, why=error.strerror, fix=fix)


def _patch_errors(
    placed: PlacedEntry, directory: Path, entries: Sequence[PatchEntry], *inside: str
) -> Iterator[MatrixError]:
    patches = _patches(placed, entries)
    names = [patch.path.name for patch in patches]  # by which the build finds them, all in one folder
    for position in _repeated(names):
        yield placed.error(
            f'patches: "{names[position]}" is listed twice', *inside, "patches", position, "file", key=False
        )
    for position, patch in enumerate(patches):
        inner_path: tuple[str | int, ...] = (*inside, "patches", position)
        try:
            content = data.read(patch.path, data.project_directory(directory))
        except OSError as error:
            where = placed.where(*inner_path, "file", key=False)
            yield MatrixError(
                f"the patch {patch.path} cannot be read", code="matrix-unreadable", where=where, why=error.strerror
            )
            continue
        actual = hashlib.sha256(content).hexdigest()
        if actual != patch.sha256:
            where = placed.where(*inner_path, "sha256", key=False)
            message, why = f"the patch {patch.path} is another than the recipe's", f"its sha256 is {actual}"
            yield MatrixError(message, where=where, why=why, fix=f'if that is wanted, write "{actual}"')


def _own(placed: PlacedEntry, release: ReleaseEntry) -> ReleaseOverride:
    return ReleaseOverride(
        None if release.requires is None else tuple(release.requires),
        None if release.patches is None else _patches(placed, release.patches),
    )


def _source(
    placed: PlacedEntry, version: str, release: ReleaseEntry, project: Path
) -> SdistFile | Commit | LocalSource:
    if source := release.sdist or release.git:
        return source
    assert release.path  # noqa: S101 - the schema wants one of the three
    return LocalSource(project / release.path, placed.where("releases", version, "path", key=False))
