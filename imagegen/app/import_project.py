"""An image of the packages that a project's file declares: its entry, what it lacks, and what rules say of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from packaging.pylock import is_valid_pylock_path
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import TypeAdapter, ValidationError

from imagegen.app.entries import entry_path, trial, write_entry
from imagegen.app.session import Session
from imagegen.core import types as t
from imagegen.core.data import MAX_SOURCE_FILE, project_of
from imagegen.core.errors import Location, MatrixErrors, OptionConflictError, ProjectFileError, UsageError
from imagegen.core.text import did_you_mean, redact
from imagegen.core.types import parse_requirement
from imagegen.image.layers.plan import ROOT
from imagegen.image.layers.wheel import PREFIX
from imagegen.plan.matrix.model import NO_CUDA, Cell, StackFile, cuda_version
from imagegen.plan.projects import conda, dockerfile, entry, locks, requirements
from imagegen.plan.projects.entry import TORCH, CudaFacts, ImagePlatform
from imagegen.plan.projects.model import (
    OWN_PACKAGE,
    DeclaringFile,
    MarkerTarget,
    Omission,
    PackagePin,
    Recovered,
    malformed,
    read_text,
)
from imagegen.plan.projects.names import BaseConfig, KnownImage
from imagegen.plan.rules import CellAnswer

# The files that `imagegen init` looks for: what is locked before what is declared.
FILES = (
    "uv.lock",
    "pylock.toml",
    "requirements.txt",
    "environment.yml",
    "environment.yaml",
    "pyproject.toml",
    "Dockerfile",
)
_KINDS = "uv.lock, pylock.toml, pyproject.toml, environment.yml, a Dockerfile or a file of requirements (.txt, .in)"
BASE_SYSTEM = "debian12"  # of the bases that an imported image may have


@dataclass(frozen=True)
class Selection:
    """The extras and dependency groups of a project that its image has, or the stage of its Dockerfile; its CUDA."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    stage: str = ""  # as in Dockerfile
    cuda: str = ""  # the value of the axis cuda; "" for the one that the file states

    def require(self, source: str, *, extras: bool = False, stages: bool = False) -> None:
        """Raise OptionConflictError where something is chosen that `source` does not have."""
        if (self.extras or self.groups) and not extras:
            fix = "leave out --extra and --group"
            raise OptionConflictError(f"{source} has no extras and groups to choose from", fix=fix)
        if self.stage and not stages:
            raise OptionConflictError(f"{source} has no stages to choose from", fix="leave out --target")


@dataclass(frozen=True)
class Imported:
    """A written entry: its file, its cell, what it holds and lacks, and the answer of rules and metadata."""

    path: Path
    source: str  # the file, from the project's directory, or the image
    cell: Cell
    platform: ImagePlatform
    found: Recovered
    omissions: tuple[Omission, ...]
    answer: CellAnswer

    @property
    def missing(self) -> int:
        """The number of packages that the file requires and the entry lacks."""
        return sum(omission.is_package for omission in self.omissions)


def import_project(session: Session, source: Path, name: str | None, selection: Selection) -> Imported:
    """Write matrices/<name>.yaml with an image of the packages of `source`; nothing is written after an error.

    Without a name, the image has that of the file's directory. Raises ProjectFileError, LockError, UsageError.
    """
    project = project_of(source, session.project)
    file = _read(session, source, project, selection)
    image = name or _directory_name(source)
    python = choose_python(session, _asked_python(source, project, file), Location(source))
    found = file.recover(MarkerTarget(_versions(session).get(python.value, python.value)))
    if isinstance(file, requirements.RequirementsFile | conda.CondaFile):
        found = _with_project_itself(found, source.parent, project)
    found = found.with_names(lambda each: _relative(each, session.project, source))
    found = _with_copies(_with_own_packages(found, session.project), session.project)
    found = _without_missing_extras(session, _without_replaced_torch(session, found))
    stack = _stack(session, source, file) if isinstance(file, locks.UvLockFile | locks.PylockFile) else None
    label = _relative(source, session.project, source)
    return write_imported(session, image, found, python, label, Location(source), stack, selection.cuda)


def write_imported(
    session: Session,
    image: str,
    found: Recovered,
    python: entry.Choice,
    name: str,
    source: Location,
    stack: StackFile | None = None,
    cuda: str = "",
) -> Imported:
    """Write matrices/<image>.yaml with what was recovered of `source`, which the entry calls `name`.

    Nothing is written after an error. With `stack`, the image takes that lock file as it stands. `cuda` is as in
    Selection. Raises ProjectFileError, UsageError.
    """
    path = entry_path(session, image, entry.MARK)
    found = found.as_stack() if stack else found
    entry.require_supported(found)
    if not (found.pins or found.debian):
        raise _empty(source, found)
    if cuda and cuda not in (values := session.matrix.axes["cuda"]):
        fix = did_you_mean(cuda, values) or f"known are {', '.join(values)}"
        raise UsageError(f"the axis `cuda` has no value {cuda}", code="usage-unknown-cuda", fix=fix)
    platform = entry.platform(found, python, known_facts(session), is_locked=bool(stack), cuda_value=cuda)
    omissions = (*found.omissions, *_of_platform(session, found, platform))
    whole = found if stack else _with_torch(session, found, platform)
    by_package = {component.package: component for component in session.matrix.components.values()}

    def text(*, override: bool) -> str:
        family = session.matrix.builds.family()
        return entry.render(image, name, whole, platform, by_package, family, stack=stack, override=override)

    trial_text = text(override=path.exists())
    if len(trial_text.encode()) > MAX_SOURCE_FILE:
        why = f"its entry would be longer than {MAX_SOURCE_FILE >> 20} MiB"
        raise malformed("this is too much for an image", source, why, "import a part of it")
    with _tried(session, path, trial_text, source) as tried:
        cell = tried.matrix.select_one(image)
        answer = tried.cell_answers([cell])[cell.id]
    write_entry(path, text(override=False))
    return Imported(path, name, cell, platform, found, omissions, answer)


@contextlib.contextmanager
def _tried(session: Session, path: Path, text: str, source: Location) -> Iterator[Session]:
    """Give a session with the entry. Raises ProjectFileError where no image can be made of it."""
    with trial(session, path, text) as tried:
        try:
            _ = tried.matrix
        except MatrixErrors as error:
            raise _unfit(source, error) from error
        yield tried


def _stack(session: Session, source: Path, file: locks.UvLockFile | locks.PylockFile) -> StackFile | None:
    """Return a lock file as the stack of an image; None where it lies outside of the project's directory."""
    root, whole = os.path.realpath(session.project), os.path.realpath(source)
    path = os.path.relpath(whole, root)
    try:
        TypeAdapter(t.ProjectFile).validate_python(path)
    except ValidationError:
        return None
    kind: Literal["uv", "pylock"] = "uv" if source.name == "uv.lock" else "pylock"
    return StackFile(kind, path, tuple(sorted(file.extras)), tuple(sorted(file.groups)), Location(source))


def find_file(directory: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the first of FILES in a directory, and the names of the others there that are not read.

    Raises UsageError where there is none.
    """
    there = [name for name in FILES if (directory / name).is_file()]
    if not there:
        raise UsageError(
            f"{directory} has no file that declares packages",
            code="usage-nothing-to-import",
            fix=f"known are {', '.join(FILES)}; `imagegen import FILE` takes any path",
        )
    return directory / there[0], tuple(name for name in there if name != there[0])


def _read(session: Session, source: Path, project: Path, selection: Selection) -> DeclaringFile:
    extras, groups = selection.extras, selection.groups
    is_dockerfile = source.name.startswith("Dockerfile") or source.suffix.lower() == ".dockerfile"
    has_extras = source.name in ("uv.lock", "pyproject.toml") or is_valid_pylock_path(source)
    selection.require(source.name, extras=has_extras, stages=is_dockerfile)
    if source.name == "uv.lock":
        return locks.read_uv_lock(source, extras, groups, project)
    if is_valid_pylock_path(source):
        return locks.read_pylock(source, extras, groups, project)
    if source.name == "pyproject.toml":
        return locks.read_pyproject(source, extras, groups, project)
    if is_dockerfile:
        return dockerfile.read(source, _ngc_images(session), selection.stage, project)
    if source.suffix in (".yml", ".yaml"):
        return conda.read(source, project)
    if source.suffix in (".txt", ".in"):
        return requirements.read(source, project)
    raise UsageError(
        f"{source} is not a file that can be imported", code="usage-unknown-file", fix=f"known are {_KINDS}"
    )


def _directory_name(source: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", canonicalize_name(source.resolve().parent.name)).strip("-")
    if not name:
        raise UsageError("the image needs a name", code="usage-name-missing", fix="add --name IMAGE")
    return name


def _relative(file: Path, project: Path, source: Path) -> str:
    """Return the path of a file below the project, else relative to the imported file: an entry names no machine."""
    whole, root = os.path.realpath(file), os.path.realpath(project)
    inside = Path(whole).is_relative_to(root)
    return os.path.relpath(whole, root if inside else os.path.realpath(source.parent))


def _with_project_itself(found: Recovered, directory: Path, project: Path) -> Recovered:
    """Return the packages with the directory at the requirement of the project itself: an index has another's."""
    name = requirements.project_name(directory, project)
    pins = (replace(pin, directory=directory) if pin.package == name else pin for pin in found.pins)
    return replace(found, pins=tuple(pins))


def _with_own_packages(found: Recovered, project: Path) -> Recovered:
    """Return the packages with directories relative to the project; one that an entry cannot name is an omission."""
    pins, omissions = [], list(found.omissions)
    for pin in found.pins:
        if pin.directory is None:
            pins.append(pin)
            continue
        relative = os.path.relpath(os.path.realpath(pin.directory), os.path.realpath(project))
        try:
            TypeAdapter(t.ProjectPath).validate_python(relative)
            is_there = (pin.directory / "pyproject.toml").is_file()
        except ValidationError:
            is_there = False
        if not is_there:
            what, why = f"{pin.package} in {relative}", "the project has no such directory with a pyproject.toml"
            omissions.append(Omission(pin.places[0], what, why, OWN_PACKAGE, is_package=True))
        else:
            pins.append(replace(pin, directory=Path(relative)))
    return replace(found, pins=tuple(pins), omissions=tuple(omissions))


def _with_copies(found: Recovered, project: Path) -> Recovered:
    """Return the copied files relative to the project; one that an entry cannot name is an omission."""
    files, omissions = {}, list(found.omissions)
    for path, (source, place) in found.files.items():
        relative = os.path.relpath(os.path.realpath(source), os.path.realpath(project))
        reserved = next((each for each in (PREFIX, ROOT) if f"{path}/".startswith(f"{each}/")), None)
        if reserved:
            why = f"only imagegen writes below {reserved}"
            omissions.append(Omission(place, f"the copy to {path}", why, "name it under `files` with another path"))
            continue
        try:
            TypeAdapter(t.RelativePath).validate_python(relative)
            files[path] = (Path(relative), place)
        except ValidationError:
            why = "an entry copies files and directories whose names are plain, and no link that leads elsewhere"
            omissions.append(Omission(place, f"the copy of {relative}", why, "rename it, and name it under `files`"))
    return replace(found, files=files, omissions=tuple(omissions))


def _ngc_images(session: Session) -> dict[str, KnownImage]:
    """Return NVIDIA's images by name: their torch is a build of their own, so the release of it takes its place.

    Of its builds, the one for the image's CUDA counts, else the newest one for an older CUDA.
    """
    releases = session.metadata.of(TORCH)
    found = {}
    for ngc_image in session.matrix.ngc_images.values():
        version = Version(ngc_image.torch).base_version
        release = releases.package.releases.get(version) if releases else None
        what = f"NVIDIA's torch {ngc_image.torch} for CUDA {ngc_image.cuda}, and the other packages of {ngc_image.tag}"
        cuda = _older_build(session, version, ngc_image.cuda) if release else ngc_image.cuda
        why = "no index has them" + (f"; the entry has the release, torch {version} for CUDA {cuda}" if release else "")
        fix = "name as components what the image needs of them, as transformer-engine, flash-attn or apex"
        found[f"nvcr.io/nvidia/pytorch:{ngc_image.tag}-py3"] = KnownImage(
            {TORCH: version} if release else {},
            cuda,
            BaseConfig("/workspace", runs_command=True),
            (what, why, fix),
        )
    return found


def _older_build(session: Session, version: str, newest: str) -> str:
    """Return the newest CUDA release, up to `newest`, for which there is a build of a release of torch."""
    labels = session.matrix.builds.labels(TORCH, version)
    releases = [cuda for label in labels if label in session.matrix.axes["cuda"] and (cuda := cuda_version(label))]
    return next((release for release in releases if Version(release) <= Version(newest)), newest)


def _versions(session: Session) -> dict[str, str]:
    """Value of the axis python -> full version of its interpreter, where it is known."""
    own = _own_python(session)
    standalone = [interpreter for interpreter in session.matrix.interpreters.values() if not interpreter.systems]
    return {each.python: each.version for each in standalone if each.version and each.python != own}


def _own_python(session: Session) -> str:
    interpreters = session.matrix.interpreters.values()
    return next(interpreter.python for interpreter in interpreters if BASE_SYSTEM in interpreter.systems)


def _asked_python(source: Path, project: Path, file: DeclaringFile) -> list[tuple[str, str]]:
    """Return the specifiers of Python of the file, .python-version and pyproject.toml beside it, with their sources."""
    asked = [(file.python, source.name)]
    if (pin := source.parent / ".python-version").is_file():
        lines = (line.strip() for line in read_text(pin, project).splitlines())
        text = next((line for line in lines if line[:1] not in ("", "#")), "")
        version = re.fullmatch(r"(?:cpython-?|python-?)?(\d+\.\d+)(?:\.\d+)?", text)
        if not version:
            raise malformed(f"{text!r} is no version of Python", Location(pin, 1), fix="as in 3.12")
        asked.append((f"=={version[1]}.*", pin.name))
    pyproject = source.parent / "pyproject.toml"
    if source.name != pyproject.name and not file.python and pyproject.is_file():
        asked.append((locks.read_pyproject(pyproject, project=project).python, pyproject.name))
    for text, name in asked:
        try:
            SpecifierSet(text)
        except ValueError as error:
            where = Location(source.parent / name)
            raise malformed(f"{text!r} is no specifier of Python", where, str(error)) from error
    return asked


def choose_python(session: Session, asked: Sequence[tuple[str, str]], where: Location) -> entry.Choice:
    """Return the value of the axis python that all specifiers of `asked` admit, each with its source in words.

    Raises ProjectFileError where there is none.
    """
    made = {interpreter.python for interpreter in session.matrix.interpreters.values()}
    values = [axis for axis in session.matrix.axes["python"] if axis in made]
    return entry.choose_python(asked, values, _versions(session), _own_python(session), where)


def known_facts(session: Session) -> CudaFacts:
    """Return the facts of the matrix that decide on CUDA."""
    torch = session.matrix.components[TORCH]
    aliases = {alias: label for label, alias in torch.index.items()}
    addresses = {index.url.rstrip("/"): index.alias for index in session.matrix.indexes.values() if index.url}
    labels = {address: aliases[alias] for address, alias in addresses.items() if alias in aliases}
    return CudaFacts(session.matrix.axes["cuda"], labels, lambda pin: _torch_cuda(session, pin))


def _torch_cuda(session: Session, pin: PackagePin) -> str | None:
    """Return the CUDA release of PyPI's build of the torch that an exact pin is, or requires exactly."""
    version = entry.exact_version(pin.specifier)
    known = session.metadata.of(pin.package)
    release = known.package.releases.get(version.public) if known and version else None
    if release is None:
        return None
    if pin.package == TORCH:
        return release.cuda
    exact = _required_torch(session, pin)
    return _torch_cuda(session, PackagePin(TORCH, exact, ())) if exact else None


def _required_torch(session: Session, pin: PackagePin) -> str | None:
    """Return the specifier of torch that the release of an exact pin requires; None where there is none, or several."""
    version, known = entry.exact_version(pin.specifier), session.metadata.of(pin.package)
    release = known.package.releases.get(version.public) if known and version else None
    texts = itertools.chain(release.requires or (), *release.extras.values()) if release else ()
    exact = {str(each.specifier) for each in map(parse_requirement, texts) if each.name == TORCH}
    return exact.pop() if len(exact) == 1 else None


def _without_replaced_torch(session: Session, found: Recovered) -> Recovered:
    """Return the packages without a base image's torch that another one excludes: pip replaces it and its CUDA."""
    torch = next((pin for pin in found.pins if pin.package == TORCH and pin.is_replaceable), None)
    version = entry.exact_version(torch.specifier) if torch else None
    required = [text for pin in found.pins if pin is not torch and (text := _required_torch(session, pin))]
    if torch is None or version is None or all(SpecifierSet(text).contains(version) for text in required):
        return found
    is_named_by_it = found.cuda is not None and found.cuda[1] in torch.places
    pins = tuple(pin for pin in found.pins if pin is not torch)
    return replace(found, pins=pins, cuda=None if is_named_by_it else found.cuda)


def _without_missing_extras(session: Session, found: Recovered) -> Recovered:
    """Return the packages without the extras that no admitted release has; each is an omission."""
    pins, omissions = [], list(found.omissions)
    for pin in found.pins:
        missing = _missing_extras(session, pin)
        pins.append(replace(pin, extras=tuple(extra for extra in pin.extras if extra not in missing)))
        for extra in missing:
            why = f"no release that {pin.specifier} admits has this extra: what it would bring is not installed"
            what, fix = f"{pin.package}[{extra}]", f"require a release of {pin.package} that has it"
            omissions.append(Omission(pin.places[0], what, why, fix, is_package=True))
    return replace(found, pins=tuple(pins), omissions=tuple(omissions))


def _missing_extras(session: Session, pin: PackagePin) -> list[str]:
    """Return the extras of a pin that no harvested release has of those that the pin admits."""
    harvested = session.metadata.of(pin.package) if pin.extras and pin.specifier and not pin.directory else None
    if harvested is None:
        return []
    allowed = SpecifierSet(pin.specifier, prereleases=True)
    admitted = [
        release for release in harvested.package.releases.values() if allowed.contains(Version(release.version).public)
    ]
    known_extras = harvested.package.extras  # of other extras nothing is harvested
    return [
        extra
        for extra in pin.extras
        if admitted and extra in known_extras and not any(extra in release.extras for release in admitted)
    ]


def _with_torch(session: Session, found: Recovered, platform: ImagePlatform) -> Recovered:
    """Return the packages with torch, where another one brings it into an image without CUDA: PyPI's build has CUDA."""
    if platform.cuda.value != NO_CUDA or any(pin.package == TORCH for pin in found.pins):
        return found
    asking = next((pin for pin in found.pins if _requires_torch(session, pin)), None)
    if asking is None:
        return found
    reason = f"{asking.package} ({asking.places[0]}) requires it; named here, it is the build without CUDA."
    torch = PackagePin(TORCH, "", asking.places, because=reason)
    return replace(found, pins=tuple(sorted((*found.pins, torch), key=lambda pin: pin.package)))


def _requires_torch(session: Session, pin: PackagePin) -> bool:
    """Return whether the package brings torch, by the newest harvested release that is admitted of each package."""
    seen, left = {pin.package}, [(pin.package, SpecifierSet(pin.specifier))]
    while left:
        package, allowed = left.pop()
        known = session.metadata.of(package)
        releases = known.package.releases.values() if known else ()
        newest = next((release for release in releases if allowed.contains(release.version)), None)
        for required in map(parse_requirement, (newest.requires or ()) if newest else ()):
            name = canonicalize_name(required.name)
            if name in seen or (required.marker and "extra" in str(required.marker)):
                continue
            if name == TORCH:
                return True
            seen.add(name)
            left.append((name, required.specifier))
    return False


def _of_platform(session: Session, found: Recovered, platform: ImagePlatform) -> list[Omission]:
    """Return what base and CUDA leave out: a CUDA that the matrix lacks, and indexes that are not PyTorch's."""
    import pypi_simple  # late: it brings an HTML parser

    known = {index.url.rstrip("/") for index in session.matrix.indexes.values() if index.url}
    known.add(pypi_simple.PYPI_SIMPLE_ENDPOINT.rstrip("/"))
    omissions = [platform.cuda.omission] if platform.cuda.omission else []
    for address, place in found.indexes.items():
        if address.rstrip("/") not in known:
            why = "an entry names an index by its alias, and for each package that comes from it"
            fix = "declare it, and name it at its packages: docs/how-to/indexes.md"
            omissions.append(Omission(place, f"the index {redact(address)}", why, fix))
    return omissions


def _empty(source: Location, found: Recovered) -> ProjectFileError:
    """Return the error of a file of which no package was recovered."""
    first = next((omission for omission in found.omissions if omission.is_package), None)
    why = f"{first.what}: {first.why}" if first else "it lists no package for Linux and this Python"
    stages = ", ".join(f"--target {stage}" for stage in found.other_stages)
    other = f"choose another stage: {stages}" if stages else None
    fix = first.fix if first else other or "import another file"
    return malformed("it has no package for an image", source, why, fix)


def _unfit(source: Location, errors: MatrixErrors) -> ProjectFileError:
    """Return the error of packages of which no entry can be made."""
    return ProjectFileError(
        "no image can be made of it",
        code="project-mismatch",
        where=source,
        why="; ".join(error.what for error in errors.errors),
        fix=errors.errors[0].fix,
    )
