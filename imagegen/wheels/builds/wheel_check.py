"""Check the sources of a build before its toolchain is fetched, and a wheel before it enters the wheelhouse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagegen.audit.capability import arch, runs
from imagegen.audit.check import audit
from imagegen.audit.lists import few
from imagegen.audit.model import CodeTarget, Package, Severity
from imagegen.audit.readers import loose_wheels
from imagegen.compat import metadata
from imagegen.core import data, toml
from imagegen.core.config import Settings
from imagegen.core.errors import BuildError, WheelError
from imagegen.core.gpu import Gpu
from imagegen.core.store import Store
from imagegen.core.types import parse_requirement
from imagegen.lock.build_sources import patched_sources
from imagegen.lock.model import Lock, LockedBuild
from imagegen.oci.documents import MACHINES

_SHOWN = 5  # errors of an audit in one message

RECIPE = "correct its recipe under wheels/ and lock again"


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
            f"the sources of {build} are another release",
            code="source-build-wrong-release",
            where="pyproject.toml",
            why=f"they call themselves {name} {version}",
            fix=f"name the release as its sources do: {RECIPE}",
        )


def _stated(pyproject: Path) -> tuple[str, Version] | None:
    """Return name and version; None where the build decides, or where only the build's backend can report the fault."""
    if pyproject.is_symlink() or not pyproject.is_file():
        return None
    try:
        project: Any = toml.loads(data.read(pyproject, longest=data.MAX_SOURCE_FILE).decode()).get("project", {})
        return str(project["name"]), Version(project["version"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def built_wheel(folder: Path, build: LockedBuild) -> Path:
    """Return the one wheel of a build's output. Raises BuildError for none, for several, and for another release."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(path.name for path in wheels) or "none"
        raise BuildError(
            f"{build} gave {len(wheels)} wheels",
            code="source-build-wheel-count",
            why=f"one was requested; there are: {names}",
        )
    (path,) = wheels
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except ValueError as error:
        raise BuildError(
            f"{build} gave a file that is not a wheel",
            code="source-build-wheel-invalid",
            where=path.name,
            why=str(error),
        ) from error
    if (name, version) != (canonicalize_name(build.name), Version(build.version)):
        raise BuildError(
            f"{build} gave a wheel of another release",
            code="source-build-wrong-release",
            where=path.name,
            why=f"{build} was requested, and this is {name} {version}",
            fix="set in its recipe's env what its build takes the version from, or correct the release's name",
        )
    return path


def check_wheel(
    path: Path, build: LockedBuild, lock: Lock, gpus: Sequence[Gpu], audited_gpus: Sequence[Gpu]
) -> list[str]:
    """Return remarks about an acceptable wheel. `gpus` are the cell's; an audit reports on `audited_gpus`.

    Raises BuildError for a wheel that is not acceptable.
    """
    torch = next((wheel.version for wheel in lock.wheels if wheel.name == "torch"), None)
    try:
        subject = replace(loose_wheels.wheels_subject([path], tuple(gpus), torch), python=lock.python)
    except WheelError as error:
        raise BuildError(
            f"{build} gave a wheel that cannot be used",
            code="source-build-wheel-invalid",
            where=error.what,
            why=error.why,
        ) from error
    (package,) = subject.packages
    _require_modules(package, build)
    _require_requirements(package, build, lock)
    remarks = _architectures(package, build)
    report = audit(subject, audited_gpus)
    if errors := [finding for finding in report.findings if finding.severity is Severity.ERROR]:
        lines = few([f"{error.id}: {error.path or path.name}: {error.evidence}" for error in errors], _SHOWN)
        raise BuildError(
            f"the audit refuses the wheel of {build}",
            code="source-build-audit",
            where=path.name,
            why="\n       ".join(lines),
            fix=f"`imagegen audit --explain {errors[0].id}` says what that means",
        )
    return remarks


def _require_modules(package: Package, build: LockedBuild) -> None:
    extensions = {_module(path) for path, file in package.files.items() if path.endswith(".so") and file.elf}
    lacking = [name for name in build.modules if name not in extensions]
    if not build.modules and any(file.elf for file in package.files.values()):
        return  # installed below a prefix: libraries and programs, which no Python imports
    if not extensions:
        raise BuildError(
            f"{build} was built, and holds no extension",
            code="source-build-no-extension",
            why="nothing in it was compiled: its build left that out and did not say so"
            + (f"; asked for was {', '.join(build.modules)}" if build.modules else ""),
            fix="its recipe must set the variables with which it compiles (FORCE_BUILD, CUDA_EXT and their like)",
        )
    if lacking:
        raise BuildError(
            f"{build} lacks {', '.join(lacking)}",
            code="source-build-incomplete",
            why=f"it holds {', '.join(sorted(extensions))}",
            fix=f"its recipe must switch that part on, or not ask for it; {RECIPE}",
        )


def _module(path: str) -> str:
    """The dotted name of a module: a/b.cpython-311-x86_64-linux-gnu.so is a.b."""
    pure = PurePosixPath(path)
    return ".".join([*pure.parent.parts, pure.name.partition(".")[0]])


def _require_requirements(package: Package, build: LockedBuild, lock: Lock) -> None:
    """Raise BuildError for a requirement of the wheel that the lock does not satisfy."""
    counted_on = {_parsed(require, build).name for require in build.requires}
    versions = {locked.name: locked.version for locked in lock.packages}
    for needed in _needed(package, build, lock):
        name = canonicalize_name(needed.name)
        if name not in {canonicalize_name(expected) for expected in counted_on}:
            raise BuildError(
                f"{build} asks for {needed}, which the lock does not hold",
                code="source-build-requirement-missing",
                why=f"its recipe says that it requires {', '.join(build.requires) or 'nothing'}",
                fix=f"add it to `requires`: {RECIPE}",
            )
        if name in versions and not needed.specifier.contains(versions[name], prereleases=True):
            raise BuildError(
                f"{build} asks for {needed}, and the lock has {name} {versions[name]}",
                code="source-build-requirement-conflict",
                fix=f"correct `requires` in its recipe: {RECIPE}",
            )


def _needed(package: Package, build: LockedBuild, lock: Lock) -> Iterator[Requirement]:
    """Yield the wheel's requirements in this image, also with an undecidable marker, but without its extras'."""
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
            f"{build} has an invalid requirement", code="source-build-requirement-invalid", why=str(error)
        ) from error


def _architectures(package: Package, build: LockedBuild) -> list[str]:
    """Return remarks on unrequested GPU code. Raises BuildError if requested GPU code is missing."""
    if not build.architectures:
        return []
    targets = {target for file in package.files.values() for group in file.code for target in group.targets}
    lacking = [architecture for architecture in build.architectures if runs(targets, architecture) != "sass"]
    compiled_for = ", ".join(str(compiled_target) for compiled_target in sorted(targets)) or "none at all"
    if lacking:
        raise BuildError(
            f"{build} has no GPU code for compute capability {', '.join(lacking)}",
            code="source-build-no-gpu-code",
            why=f"it was compiled for {compiled_for}",
            fix=f"the variable of its recipe's `architectures` may not be the one that it reads: {RECIPE}",
        )
    useless = sorted(
        compiled_target
        for compiled_target in targets
        if compiled_target.kind == "sass" and not _serves(compiled_target, build)
    )
    return [f"compiled for {', '.join(map(str, useless))} too, which was not requested"] if useless else []


def _serves(target: CodeTarget, build: LockedBuild) -> bool:
    return any(
        runs([target], architecture) == "sass" or arch(architecture) == target.arch
        for architecture in build.architectures
    )
