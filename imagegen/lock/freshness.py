"""Check whether a lock still matches its cell: matrix inputs that changed since, and manual edits of the lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.compat import Facts, minimum_version
from imagegen.compat.rule import Rule
from imagegen.core.errors import BuildError, LockError
from imagegen.core.net.package_index import DEFAULT
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.build_sources import commit_of, patches_of
from imagegen.lock.builds import BUILDER, builder
from imagegen.lock.components import Compiled, architectures, environment
from imagegen.lock.interpreter import resolve_interpreter
from imagegen.lock.model import (
    GIT,
    LINKS,
    LOCAL,
    URL,
    Lock,
    LockedBuild,
    LockedGit,
    LockedGpus,
    LockedWheel,
    file_conflicts_among,
)
from imagegen.spec.model import Cell, Requirement
from imagegen.spec.recipe import SdistFile

_RULES = "rules"  # an input of earlier locks
BASE = ("name", "kind", "suite", "image")  # fields of a locked base that repeat the matrix


def stale(lock: Lock, cell: Cell) -> tuple[str, ...]:
    """Return the sorted names of the inputs that changed since the lock was made: changed, new or removed.

    The matrix has sdists that this stack never required: only those that the lock was made with count. Rules do not
    count: a lock that they reject is not stale but in conflict with them, whenever they came.
    """
    now = {**cell.inputs, BUILDER: builder()} if lock.builds else cell.inputs
    names = (lock.inputs.keys() - {_RULES}) | {name for name in now if not name.startswith("sdist ")}
    moved = {name for name in names if lock.inputs.get(name) != now.get(name)}
    if lock.file_conflicts != file_conflicts_among(cell.file_conflicts, lock.packages):
        moved.add("file-conflicts")
    if any(wheel.record_exception != cell.record_exceptions.get(wheel.fetched.sha256) for wheel in lock.wheels):
        moved.add("record-exceptions")
    return tuple(sorted(moved))


def gpus_of(cell: Cell, rules: Iterable[Rule], facts: Facts) -> LockedGpus | None:
    """Return the requirements of the cell's image on a host's GPUs; None for the CPU."""
    if cell.cuda_version is None:
        return None
    return LockedGpus(tuple(gpu.capability for gpu in cell.gpus), minimum_version(rules, facts, "driver"))


def contradictions(lock: Lock, cell: Cell) -> tuple[str, ...]:
    """Return the fields in which a lock that is not stale contradicts its cell: only an edit can have done that.

    Packages, versions and hashes stand only in the lock, so only a review or another resolution finds an edit of
    these. Raises LockError for a platform that wheels have no name for.
    """
    return tuple(name for name, _, _ in _contradictions(lock, cell))


# Keys of an image in the matrix, by the names of contradictions; others have their own name.
_KEYS = {"wheel": "components", "build": "components", "override": "overrides", "label": "labels", "port": "ports"}
_KEYS |= {"copy": "files", "patch": "patches", "gpu.capabilities": "gpus"}


def moved_values(lock: Lock, cell: Cell) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the differences of a stale lock from its cell, each with the path of the image's key and with both values.

    A lock has no requirements, only versions: a requirement that its version satisfies is not among them.
    """
    required = {requirement.component.package for requirement in cell.requirements}
    gone = [wheel for wheel in lock.wheels if wheel.because and wheel.name not in required and not cell.is_prelocked]
    removed = [(f"wheel {wheel.name}", wheel.version, None) for wheel in gone if _is_ordinary(wheel)]
    for name, locked, expected in (*_contradictions(lock, cell), *removed):
        kind, *names = name.split()
        old, new = _rows(locked), _rows(expected)
        for key in sorted(old.keys() | new.keys()):
            before, after = old.get(key, ("none",)), new.get(key, ("none",))
            pairs = zip(before, after, strict=False)
            values = ", ".join(f"{value} -> {other}" for value, other in pairs if value != other)
            if values:
                yield (_KEYS.get(kind, kind), *names, *filter(None, [key])), values


def _rows(value: object) -> dict[str, tuple[str, ...]]:
    """Return the fields of each member of a value by the member's name; "" is the name of a plain value."""
    if isinstance(value, Mapping):
        return {str(key): (str(member),) for key, member in value.items()}
    members = value if isinstance(value, tuple | list) else ()
    rows = [
        tuple(asdict(member).values()) if is_dataclass(member) and not isinstance(member, type) else member
        for member in members
    ]
    if rows and all(isinstance(row, tuple) for row in rows):
        return {str(name): tuple(map(str, fields)) for name, *fields in rows}
    return {"": (str(value),)} if value else {}


def outdated(
    cell: Cell, moved: Sequence[str], wrong: Sequence[str], where: str, values: Sequence[str] = ()
) -> LockError:
    """Return the error about a lock at the path `where`: its `stale` inputs, or else its `contradictions`."""
    fix = f"`imagegen lock {cell.id}`"
    if moved:
        why = "\n".join([f"since then these inputs moved: {', '.join(moved)}", *values])
        return LockError(f"the lock of {cell.id} is stale", code="lock-stale", where=where, why=why, fix=fix)
    why = f"it was edited, or is another's; the matrix says otherwise about {', '.join(wrong)}"
    return LockError(
        f"the lock of {cell.id} contradicts the matrix", code="lock-contradicts-matrix", where=where, why=why, fix=fix
    )


def _contradictions(lock: Lock, cell: Cell) -> Iterator[tuple[str, object, object]]:
    """Yield the name of each field, and its values in the lock and in the matrix."""
    capabilities = tuple(gpu.capability for gpu in cell.gpus) if cell.cuda_version else None
    repeated = (
        ("cell", lock.cell, cell.id),
        ("image", lock.image, cell.image),
        ("axes", dict(lock.axes), dict(cell.axes)),
        *((f"base.{name}", getattr(lock.base, name), getattr(cell.base, name)) for name in BASE),
        *_interpreter_fields(lock, cell),
        ("packages", dict(lock.added.requested) if lock.added else {}, dict(cell.packages)),
        ("gpu.capabilities", lock.gpu and lock.gpu.capabilities, capabilities),
        ("env", lock.env, cell.env),
        ("config", lock.config, cell.config),
        ("label", lock.labels, cell.labels),
        ("port", lock.ports, cell.ports),
        ("ldconfig", lock.ldconfig, cell.ldconfig),
        ("copy", [(copy.path, copy.source, copy.because) for copy in lock.copies], _copies(cell)),
        ("override", lock.overrides, cell.overrides),
        (
            "patch",
            _patches(lock),
            [(patch.package, patch.source, patch.because, patch.origin) for patch in cell.patches],
        ),
    )
    yield from (field for field in repeated if field[1] != field[2])
    wheels = {wheel.name: wheel for wheel in lock.wheels}
    builds = {build.name: build for build in lock.builds}
    for requirement in cell.requirements:
        package = requirement.component.package
        if build := builds.pop(package, None):
            if not _compiles(build, requirement, cell):
                yield f"build {package}", build.version, requirement.pep508
        elif not _satisfies(wheels.get(package), requirement, cell):
            yield f"wheel {package}", *_wheel_values(wheels.get(package), requirement)
    yield from ((f"build {name}", build.version, None) for name, build in builds.items())
    required = {requirement.component.package for requirement in cell.requirements}
    if not cell.is_prelocked:  # else another lock file names the others, and is compared when it is read again
        unrequired = [wheel for name, wheel in wheels.items() if name not in required and not _is_ordinary(wheel)]
        yield from ((f"wheel {wheel.name}", wheel.version, None) for wheel in unrequired)
    own_packages = {requirement.component.package for requirement in cell.requirements if requirement.own}
    built_wheels = [wheel for wheel in lock.wheels if wheel.sdist and wheel.name not in own_packages]
    built_wheels = [wheel for wheel in built_wheels if not (cell.from_uv_lock and wheel.sdist and wheel.sdist.git)]
    built_wheels = [] if cell.stack else built_wheels  # the project's file names the sdists and commits
    faults = [f"sdist {wheel.name}" for wheel in built_wheels if not _is_declared(wheel, cell)]
    if lock.uv.name != "uv" or lock.uv.sdist or not _is_ordinary(lock.uv):
        faults.append("uv")
    for build in lock.builds:
        faults += [f"build {build.name}: {require.name}" for require in build.build_requires if not _is_plain(require)]
    target = WheelTarget.of(cell.platform, cell.base.glibc, lock.interpreter.version)
    faults += [wheel.file.filename for wheel in lock.wheels if target.best([(wheel.file.filename, wheel)]) is None]
    yield from ((fault, None, None) for fault in faults)


def _wheel_values(wheel: LockedWheel | None, requirement: Requirement) -> tuple[str | None, str]:
    """Return the values of a wheel and of a requirement that differ: versions, else reasons, else indexes."""
    if wheel is None or not SpecifierSet(requirement.specifier).contains(wheel.version, prereleases=True):
        return (wheel.version if wheel else None), requirement.pep508
    if wheel.because != requirement.because:
        return wheel.because, requirement.because
    return wheel.fetched.index, requirement.index


def _interpreter_fields(lock: Lock, cell: Cell) -> Iterator[tuple[str, object, object]]:
    expected = resolve_interpreter(cell.interpreter, cell.platform, lock.debs)
    for field in fields(expected):
        yield f"interpreter.{field.name}", getattr(lock.interpreter, field.name), getattr(expected, field.name)


def _copies(cell: Cell) -> list[tuple[str, str, str]]:
    return [(copy.path, copy.source, copy.because) for copy in cell.copies]


def _patches(lock: Lock) -> list[tuple[str, str, str, str | None]]:
    rows = ((wheel.name, patch.path, patch.because, patch.source) for wheel in lock.wheels for patch in wheel.patches)
    return sorted(rows, key=lambda row: row[1])


def _source(wheel: LockedWheel) -> LockedGit | None:
    return wheel.sdist.git if wheel.sdist else None


def _is_ordinary(wheel: LockedWheel) -> bool:
    """Return whether the wheel comes from the default index, as all do that the cell does not require by name."""
    return wheel.fetched.index == DEFAULT and wheel.choice is None


def _is_plain(wheel: LockedWheel) -> bool:
    return _is_ordinary(wheel) and wheel.sdist is None


def _is_declared(wheel: LockedWheel, cell: Cell) -> bool:
    """Return whether the matrix has this release built from source, with the build requirements that it pins."""
    assert wheel.sdist  # noqa: S101 - the caller passes only such wheels
    source = wheel.sdist
    if source.git:
        asked = next(
            (requirement.git for requirement in cell.requirements if requirement.component.package == wheel.name), None
        )
        declared = asked.metadata if asked else None
    else:
        declared = next(
            (
                component.sdist
                for component in cell.sdists
                if component.package == wheel.name and component.sdist and component.sdist.version == wheel.version
            ),
            None,
        )
        if declared is None:  # an sdist of the default index, as a wheel of it
            return _is_ordinary(wheel) and source.file.index == DEFAULT and all(map(_is_plain, source.build_requires))
    locked = {(require.name, Version(require.version)) for require in source.build_requires}
    return (
        declared is not None
        and Version(declared.version) == Version(wheel.version)
        and {_pin(require) for require in declared.build_requires} <= locked
        and all(map(_is_plain, source.build_requires))
        and (source.git is not None or source.file.index == wheel.file.index)
    )


def _pin(requirement: str) -> tuple[str, Version]:
    """Return name and version of a requirement as the matrix pins build requirements: "setuptools==84.2.1"."""
    name, _, version = requirement.partition("==")
    return canonicalize_name(name), Version(version)


def _has_allowed_source(wheel: LockedWheel, requirement: Requirement, cell: Cell) -> bool:
    """Return whether the file comes from an allowed source; a chosen wheel may come from any."""
    if cell.is_prelocked:
        return True
    if requirement.address:
        return (wheel.fetched.url, wheel.fetched.sha256) == (requirement.address.url, requirement.address.sha256)
    has_recipe = requirement.component.package in cell.recipes
    chosen = wheel.choice is not None and has_recipe and not requirement.from_source
    if requirement.own:
        return wheel.file.index == LOCAL and bool(wheel.sdist) == (requirement.own.kind == "path")
    index = GIT if requirement.git else requirement.index
    return wheel.fetched.index == index or (chosen and wheel.fetched.index in (URL, LINKS))


def _compiles(build: LockedBuild, requirement: Requirement, cell: Cell) -> bool:
    """Return whether the build matches the recipe, for a release that satisfies the requirement."""
    recipe = cell.recipes.get(build.name)
    release = recipe.releases.get(build.version) if recipe else None
    if recipe is None or release is None:
        return False
    recipe = recipe.of(build.version)
    component = Compiled(requirement, recipe, build.version)
    try:
        env = environment(component, cell)
    except BuildError:
        return False
    file = build.source
    return (
        build.because == requirement.because
        and SpecifierSet(requirement.specifier).contains(build.version, prereleases=True)
        and (not isinstance(release, SdistFile) or (file.filename, file.sha256) == (release.filename, release.sha256))
        and (build.git, build.submodules) == commit_of(component)
        and (build.patches, build.requires, build.modules) == (patches_of(recipe), recipe.requires, recipe.modules)
        and build.env == env
        and build.architectures == architectures(component, cell)
    )


def _satisfies(wheel: LockedWheel | None, requirement: Requirement, cell: Cell) -> bool:
    return (
        wheel is not None
        and wheel.because == requirement.because
        and _has_allowed_source(wheel, requirement, cell)
        and (_source(wheel) == (requirement.git and LockedGit.of(requirement.git)) or _is_prelocked(requirement, cell))
        and SpecifierSet(requirement.specifier).contains(wheel.version, prereleases=True)
    )


def _is_prelocked(requirement: Requirement, cell: Cell) -> bool:
    """Return whether another lock file names the requirement's source, and not the matrix."""
    return cell.is_prelocked and requirement.git is None
