"""Check that a build's sources match its recipe, before its toolchain is fetched."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagegen.audit.check import audit
from imagegen.audit.gpu import arch, runs
from imagegen.audit.model import CodeTarget, Package, Severity
from imagegen.core.config import Settings
from imagegen.core.errors import BuildError, WheelError
from imagegen.core.store import Store
from imagegen.core.types import Gpu, parse_requirement
from imagegen.image.inventory import subjects
from imagegen.plan.lock.builds import patched_sources
from imagegen.plan.lock.indexes import MACHINES
from imagegen.plan.lock.model import Lock, LockedBuild
from imagegen.plan.matrix import metadata

_RECIPE = "correct its recipe under wheels/ and lock again"


def require_sources(build: LockedBuild, store: Store, settings: Settings) -> None:
    """Raise BuildError where the sources cannot be unpacked, a patch does not apply, or they are another release.

    Reads the store only, with the worker's own code.
    """
    with patched_sources(build, store, settings) as (sources, _):
        _require_release(build, sources / "pyproject.toml")


def _require_release(build: LockedBuild, pyproject: Path) -> None:
    """Raise BuildError where pyproject.toml states another version (PEP 621: no backend may change it)."""
    stated = _stated(pyproject)
    if stated is None:
        return
    name, version = stated
    if (canonicalize_name(name), Version(version.public)) != (build.name, Version(Version(build.version).public)):
        raise BuildError(
            f"the sources of {_name(build)} are another release",
            code="source-build-wrong-release",
            where="pyproject.toml",
            why=f"they call themselves {name} {version}",
            fix=f"name the release as its sources do: {_RECIPE}",
        )


def _stated(pyproject: Path) -> tuple[str, Version] | None:
    """Return name and version; None where the build decides, or where only the build's backend can report the fault."""
    if pyproject.is_symlink() or not pyproject.is_file():
        return None
    try:
        project: Any = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
        return str(project["name"]), Version(project["version"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


# Check a compiled wheel before it enters the wheelhouse.

_SHOWN = 5  # errors of an audit in one message


def made(folder: Path, build: LockedBuild) -> Path:
    """The one wheel in what a build left. Raises BuildError for none, for several, and for one of another release."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(path.name for path in wheels) or "none"
        raise BuildError(
            f"{_name(build)} gave {len(wheels)} wheels",
            code="source-build-wheel-count",
            why=f"one was requested; there are: {names}",
        )
    (path,) = wheels
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except ValueError as error:
        raise BuildError(
            f"{_name(build)} gave something that is no wheel",
            code="source-build-wheel-invalid",
            where=path.name,
            why=str(error),
        ) from error
    if (name, version) != (canonicalize_name(build.name), Version(build.version)):
        raise BuildError(
            f"{_name(build)} gave a wheel of another release",
            code="source-build-wrong-release",
            where=path.name,
            why=f"{build.name} {build.version} was requested, and this is {name} {version}",
            fix="set in its recipe's env what its build takes the version from, or correct the release's name",
        )
    return path


def check(path: Path, build: LockedBuild, lock: Lock, gpus: Sequence[Gpu], known: Sequence[Gpu]) -> list[str]:
    """Return remarks about an acceptable wheel. `gpus` are those of the cell, `known` those that an audit reports on.

    Raises BuildError for a wheel that is not acceptable.
    """
    torch = next((wheel.version for wheel in lock.wheels if wheel.name == "torch"), None)
    try:
        subject = replace(subjects.wheels_subject([path], tuple(gpus), torch), python=lock.python)
    except WheelError as error:
        raise BuildError(
            f"{_name(build)} gave a wheel that cannot be used",
            code="source-build-wheel-invalid",
            where=error.what,
            why=error.why,
        ) from error
    (package,) = subject.packages
    _require_modules(package, build)
    _require_requirements(package, build, lock)
    remarks = _architectures(package, build)
    report = audit(subject, known)
    if errors := [each for each in report.findings if each.severity is Severity.ERROR]:
        lines = [f"{each.id}: {each.path or path.name}: {each.evidence}" for each in errors[:_SHOWN]]
        lines += [f"and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
        raise BuildError(
            f"the audit refuses the wheel of {_name(build)}",
            code="source-build-audit",
            where=path.name,
            why="\n       ".join(lines),
            fix=f"`imagegen audit --explain {errors[0].id}` says what that means",
        )
    return remarks


def _require_modules(package: Package, build: LockedBuild) -> None:
    extensions = {_module(path) for path, file in package.files.items() if path.endswith(".so") and file.elf}
    lacking = [name for name in build.modules if name not in extensions]
    if not extensions:
        raise BuildError(
            f"{_name(build)} was built, and holds no extension",
            code="source-build-no-extension",
            why="nothing in it was compiled: its build left that out and did not say so"
            + (f"; asked for was {', '.join(build.modules)}" if build.modules else ""),
            fix="its recipe must set the variables with which it compiles (FORCE_BUILD, CUDA_EXT and their like)",
        )
    if lacking:
        raise BuildError(
            f"{_name(build)} lacks {', '.join(lacking)}",
            code="source-build-incomplete",
            why=f"it holds {', '.join(sorted(extensions))}",
            fix=f"its recipe must switch that part on, or not ask for it; {_RECIPE}",
        )


def _module(path: str) -> str:
    """The dotted name of a module: a/b.cpython-311-x86_64-linux-gnu.so is a.b."""
    pure = PurePosixPath(path)
    return ".".join([*pure.parent.parts, pure.name.partition(".")[0]])


def _require_requirements(package: Package, build: LockedBuild, lock: Lock) -> None:
    """Raise BuildError for a requirement of the wheel that the lock does not satisfy."""
    counted_on = {_parsed(each, build).name for each in build.requires}
    versions = {each.name: each.version for each in lock.packages}
    for needed in _needed(package, build, lock):
        name = canonicalize_name(needed.name)
        if name not in {canonicalize_name(each) for each in counted_on}:
            raise BuildError(
                f"{_name(build)} asks for {needed}, which the lock does not hold",
                code="source-build-requirement-missing",
                why=f"its recipe says that it requires {', '.join(build.requires) or 'nothing'}",
                fix=f"add it to `requires`: {_RECIPE}",
            )
        if name in versions and not needed.specifier.contains(versions[name], prereleases=True):
            raise BuildError(
                f"{_name(build)} asks for {needed}, and the lock has {name} {versions[name]}",
                code="source-build-requirement-conflict",
                fix=f"write in `requires` what it really asks for: {_RECIPE}",
            )


def _needed(package: Package, build: LockedBuild, lock: Lock) -> Iterator[Requirement]:
    """Yield the wheel's requirements in this image, without those of extras; those with an undecidable marker count."""
    for text in package.requires:
        requirement = _parsed(text, build)
        marker, machine = requirement.marker, MACHINES[lock.platform]
        if marker is None or metadata.holds(str(marker), f"{lock.python}.0", machine, "") is not False:
            yield requirement


def _parsed(text: str, build: LockedBuild) -> Requirement:
    try:
        return parse_requirement(text)
    except ValueError as error:
        raise BuildError(
            f"{_name(build)} asks for what is no requirement", code="source-build-requirement-invalid", why=str(error)
        ) from error


def _architectures(package: Package, build: LockedBuild) -> list[str]:
    """Return remarks on unrequested GPU code. Raises BuildError if requested GPU code is missing."""
    if not build.architectures:
        return []
    targets = {target for file in package.files.values() for group in file.code for target in group.targets}
    lacking = [each for each in build.architectures if runs(targets, each) != "sass"]
    compiled_for = ", ".join(str(each) for each in sorted(targets)) or "none at all"
    if lacking:
        raise BuildError(
            f"{_name(build)} has no GPU code for compute capability {', '.join(lacking)}",
            code="source-build-no-gpu-code",
            why=f"it was compiled for {compiled_for}",
            fix=f"the variable of its recipe's `architectures` may not be the one that it reads: {_RECIPE}",
        )
    useless = sorted(each for each in targets if each.kind == "sass" and not _serves(each, build))
    return [f"compiled for {', '.join(map(str, useless))} too, which was not requested"] if useless else []


def _serves(target: CodeTarget, build: LockedBuild) -> bool:
    return any(runs([target], each) == "sass" or arch(each) == target.arch for each in build.architectures)


def _name(build: LockedBuild) -> str:
    return f"{build.name} {build.version}"
