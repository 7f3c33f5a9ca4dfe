"""Make an image from the packages that a project's file declares: an entry, its omissions, and the answer of rules."""

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
from imagegen.app.matrices import Matrices
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.app.why import answer_by_environment
from imagegen.compat import CellAnswer, cell_answer

# The files that `imagegen init` looks for; lock files come before declarations.
from imagegen.compat.rule import NO_CUDA, cuda_version
from imagegen.compat.vocabulary import plain
from imagegen.core import types as t
from imagegen.core.data import MAX_SOURCE_FILE, project_of
from imagegen.core.errors import Location, MatrixErrors, OptionConflictError, ProjectFileError, UsageError
from imagegen.core.image_format import PREFIX
from imagegen.core.text import did_you_mean, redact
from imagegen.core.types import parse_requirement
from imagegen.image.layers.support import ROOT
from imagegen.projects import conda, dockerfile, entry, locks, requirements
from imagegen.projects.entry import TORCH, CudaFacts, ImagePlatform
from imagegen.projects.model import (
    OWN_PACKAGE,
    DeclaringFile,
    MarkerTarget,
    Omission,
    PackagePin,
    Recovered,
    malformed,
    read_text,
)
from imagegen.projects.names import BaseConfig, KnownImage, export_command
from imagegen.spec.model import Cell, StackFile

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
    """The chosen extras and dependency groups of a project, or the stage of its Dockerfile, and the CUDA and GPU."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    stage: str = ""  # as in Dockerfile
    cuda: str = ""  # the value of the axis cuda; "" for the one that the file states
    gpu: str = ""  # a GPU by its name or architecture; "" for the ones that the file states

    def require(self, source: str, *, extras: bool = False, stages: bool = False) -> None:
        """Raise OptionConflictError where something is chosen that `source` does not have."""
        if (self.extras or self.groups) and not extras:
            fix = "leave out --extra and --group"
            raise OptionConflictError(f"{source} has no extras and groups to choose from", fix=fix)
        if self.stage and not stages:
            raise OptionConflictError(f"{source} has no stages to choose from", fix="leave out --target")


WHOLE = Selection()  # nothing is chosen


@dataclass(frozen=True)
class Imported:
    """A written entry with its file, cell, contents and omissions, and the answer of rules and metadata."""

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

    Without a name, the image gets the name of the file's directory. Raises ProjectFileError, LockError, UsageError.
    """
    file, python, recovered = recover(session, source, selection)
    image = name or _directory_name(source)
    recovered = _with_copies(_with_own_packages(recovered, session.project.directory), session.project.directory)
    recovered = _without_missing_extras(session.matrices, recovered)
    stack = _stack(session.project, source, file) if isinstance(file, locks.UvLockFile | locks.PylockFile) else None
    label = _relative(source, session.project.directory, source)
    return write_imported(session, image, recovered, python, label, Location(source), stack, selection)


def recover(
    session: Session, source: Path, selection: Selection, python: str = "", machine: str = MarkerTarget.machine
) -> tuple[DeclaringFile, entry.Choice, Recovered]:
    """Return the file, the Python that it admits, and its contents for that Python on Linux.

    `python` is a specifier that the user requires of the Python, `machine` is platform_machine. Raises as
    `import_project`.
    """
    project = project_of(source, session.project.directory)
    file = _read(session.matrices, source, project, selection)
    asked = [*_asked_python(source, project, file), *([(python, "the question")] if python else [])]
    choice = choose_python(session.matrices, asked, Location(source))
    recovered = file.recover(MarkerTarget(_versions(session.matrices).get(choice.value, choice.value), machine))
    if isinstance(file, requirements.RequirementsFile | conda.CondaFile):
        recovered = _with_project_itself(recovered, source.parent, project)
    recovered = recovered.with_names(lambda path: _relative(path, session.project.directory, source))
    return file, choice, _without_replaced_torch(session.matrices, recovered)


def write_imported(
    session: Session,
    image: str,
    recovered: Recovered,
    python: entry.Choice,
    name: str,
    source: Location,
    stack: StackFile | None = None,
    selection: Selection = WHOLE,
) -> Imported:
    """Write matrices/<image>.yaml with the packages recovered from `source`, which the entry calls `name`.

    Nothing is written after an error. With `stack`, the image takes that lock file unchanged. `selection` has
    the user's CUDA and GPU. Raises ProjectFileError, UsageError.
    """
    path = entry_path(session.matrices, image, entry.MARK)
    recovered = recovered.as_stack() if stack else _without_other_indexes(session.matrices, recovered)
    entry.require_supported(recovered)
    if not recovered.debian:
        require_packages(recovered, source, "it has no package for an image")
    platform = choose_platform(session.matrices, recovered, python, selection, is_locked=bool(stack))
    omissions = (*recovered.omissions, *_of_platform(session.matrices, recovered, platform))
    whole = recovered if stack else _with_torch(session.matrices, recovered, platform)
    by_package = {component.package: component for component in session.matrix.components.values()}

    def text(*, override: bool) -> str:
        family = session.matrix.builds.family()
        return entry.render(image, name, whole, platform, by_package, family, stack=stack, override=override)

    trial_text = text(override=path.exists())
    if len(trial_text.encode()) > MAX_SOURCE_FILE:
        why = f"its entry would be longer than {MAX_SOURCE_FILE >> 20} MiB"
        raise malformed("this is too much for an image", source, why, "import a part of it")
    with _tried(session, path, trial_text, source) as tried:
        cell = tried.matrices.matrix.select_one(image)
        answer = cell_answer(answer_by_environment(tried, [image], (), "")[""].answer.explanation)
    write_entry(path, text(override=False))
    return Imported(path, name, cell, platform, recovered, omissions, answer)


@contextlib.contextmanager
def _tried(session: Session, path: Path, text: str, source: Location) -> Iterator[Session]:
    """Give a session with the entry. Raises ProjectFileError where no image can be made of it."""
    with trial(session, path, text) as tried:
        try:
            _ = tried.matrices.matrix
        except MatrixErrors as error:
            why, fix = "; ".join(fault.what for fault in error.errors), error.errors[0].fix
            raise ProjectFileError(
                "no image can be made of it", code="project-mismatch", where=source, why=why, fix=fix
            ) from error
        yield tried


def _stack(project: ProjectContext, source: Path, file: locks.UvLockFile | locks.PylockFile) -> StackFile | None:
    """Return a lock file as the stack of an image; None where it lies outside of the project's directory."""
    root, whole = os.path.realpath(project.directory), os.path.realpath(source)
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
    present = [name for name in FILES if (directory / name).is_file()]
    if not present:
        raise UsageError(
            f"{directory} has no file that declares packages",
            code="usage-nothing-to-import",
            fix=f"known are {', '.join(FILES)}; `imagegen import FILE` takes any path",
        )
    return directory / present[0], tuple(name for name in present if name != present[0])


def _read(matrices: Matrices, source: Path, project: Path, selection: Selection) -> DeclaringFile:
    extras, groups = selection.extras, selection.groups
    is_dockerfile = source.name.startswith(("Dockerfile", "Containerfile")) or source.suffix.lower() == ".dockerfile"
    has_extras = source.name in ("uv.lock", "pyproject.toml") or is_valid_pylock_path(source)
    selection.require(source.name, extras=has_extras, stages=is_dockerfile)
    if source.name == "uv.lock":
        return locks.read_uv_lock(source, extras, groups, project)
    if is_valid_pylock_path(source):
        return locks.read_pylock(source, extras, groups, project)
    if source.name == "pyproject.toml":
        return locks.read_pyproject(source, extras, groups, project)
    if is_dockerfile:
        return dockerfile.read(source, _ngc_images(matrices), selection.stage, project)
    if source.suffix in (".yml", ".yaml"):
        return conda.read(source, project)
    if source.suffix in (".txt", ".in"):
        return requirements.read(source, project)
    if source.is_dir():
        path, _ = find_file(source)
        raise UsageError(f"{source} is a directory", code="usage-directory", fix=f"name a file of it, such as {path}")
    if not source.exists():
        read_text(source, project)
    export = export_command(source.name)
    fix = f"`{export}` writes a file that it reads" if export else f"known are {_KINDS}"
    raise UsageError(f"{source} is of a kind that imagegen does not read", code="usage-unknown-file", fix=fix)


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


def _with_project_itself(recovered: Recovered, directory: Path, project: Path) -> Recovered:
    """Return the packages with the directory at the requirement of a project in `directory` or above it."""
    directory, project = Path(os.path.abspath(directory)), Path(os.path.abspath(project))
    folders = [folder for folder in (directory, *directory.parents) if folder.is_relative_to(project)]
    directories = {requirements.project_name(folder, project): folder for folder in reversed(folders)}
    pins = (replace(pin, directory=pin.directory or directories.get(pin.package)) for pin in recovered.pins)
    return replace(recovered, pins=tuple(pins))


def _with_own_packages(recovered: Recovered, project: Path) -> Recovered:
    """Return the packages with directories relative to the project; one that an entry cannot name is an omission."""
    pins, omissions = [], list(recovered.omissions)
    for pin in recovered.pins:
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
            description, why = f"{pin.package} in {relative}", "the project has no such directory with a pyproject.toml"
            omissions.append(Omission(pin.places[0], description, why, OWN_PACKAGE, is_package=True))
        else:
            pins.append(replace(pin, directory=Path(relative)))
    return replace(recovered, pins=tuple(pins), omissions=tuple(omissions))


def _with_copies(recovered: Recovered, project: Path) -> Recovered:
    """Return the copied files relative to the project; one that an entry cannot name is an omission."""
    files, omissions = {}, list(recovered.omissions)
    for path, (source, location) in recovered.files.items():
        relative = os.path.relpath(os.path.realpath(source), os.path.realpath(project))
        reserved = next(
            (reserved_path for reserved_path in (PREFIX, ROOT) if f"{path}/".startswith(f"{reserved_path}/")), None
        )
        if reserved:
            why = f"only imagegen writes below {reserved}"
            omissions.append(Omission(location, f"the copy to {path}", why, "name it under `files` with another path"))
            continue
        try:
            TypeAdapter(t.RelativePath).validate_python(relative)
            files[path] = (Path(relative), location)
        except ValidationError:
            why = "an entry copies files and directories whose names are plain, and no link that leads elsewhere"
            omissions.append(Omission(location, f"the copy of {relative}", why, "rename it, and name it under `files`"))
    return replace(recovered, files=files, omissions=tuple(omissions))


def _ngc_images(matrices: Matrices) -> dict[str, KnownImage]:
    """Return NVIDIA's images by name. Their torch is a build of their own, so the entry has the release instead.

    The build for the image's CUDA counts, else the newest build for an older CUDA.
    """
    releases = matrices.knowledge_files.metadata.of(TORCH)
    images = {}
    for ngc_image in matrices.matrix.ngc_images.values():
        version = Version(ngc_image.torch).base_version
        release = releases.package.releases.get(version) if releases else None
        description = (
            f"NVIDIA's torch {ngc_image.torch} for CUDA {ngc_image.cuda}, and the other packages of {ngc_image.tag}"
        )
        cuda = _older_build(matrices, version, ngc_image.cuda) if release else ngc_image.cuda
        why = "no index has them" + (f"; the entry has the release, torch {version} for CUDA {cuda}" if release else "")
        fix = "name the packages that the image needs as components, such as transformer-engine, flash-attn or apex"
        images[f"nvcr.io/nvidia/pytorch:{ngc_image.tag}-py3"] = KnownImage(
            {TORCH: version} if release else {},
            cuda,
            matrices.matrix.systems[ngc_image.system].python,
            BaseConfig("/workspace", runs_command=True),
            (description, why, fix),
        )
    return images


def _older_build(matrices: Matrices, version: str, newest: str) -> str:
    """Return the newest CUDA release, up to `newest`, for which there is a build of a release of torch."""
    labels = matrices.matrix.builds.labels(TORCH, version)
    releases = [cuda for label in labels if label in matrices.matrix.axes["cuda"] and (cuda := cuda_version(label))]
    return next((release for release in releases if Version(release) <= Version(newest)), newest)


def _versions(matrices: Matrices) -> dict[str, str]:
    """Return the full version of the interpreter for each value of the axis python, if it is known."""
    system_python = _own_python(matrices)
    standalone = [interpreter for interpreter in matrices.matrix.interpreters.values() if not interpreter.systems]
    return {
        standalone_python.python: standalone_python.version
        for standalone_python in standalone
        if standalone_python.version and standalone_python.python != system_python
    }


def _own_python(matrices: Matrices) -> str:
    interpreters = matrices.matrix.interpreters.values()
    return next(interpreter.python for interpreter in interpreters if BASE_SYSTEM in interpreter.systems)


def _asked_python(source: Path, project: Path, file: DeclaringFile) -> list[tuple[str, str]]:
    """Return the Python specifiers of the file, and of .python-version and pyproject.toml next to it, with sources."""
    asked = [(file.python, source.name)]
    if (pin := source.parent / ".python-version").is_file():
        lines = (line.strip() for line in read_text(pin, project).splitlines())
        text = next((line for line in lines if line[:1] not in ("", "#")), "")
        version = re.fullmatch(r"(?:cpython-?|python-?)?(\d+\.\d+)(?:\.\d+)?", text)
        if not version:
            raise malformed(f"{text!r} is not a version of Python", Location(pin, 1), fix="as in 3.12")
        asked.append((f"=={version[1]}.*", pin.name))
    pyproject = source.parent / "pyproject.toml"
    if source.name != pyproject.name and not file.python and pyproject.is_file():
        asked.append((locks.read_pyproject(pyproject, project=project).python, pyproject.name))
    for text, name in asked:
        try:
            SpecifierSet(text)
        except ValueError as error:
            where = Location(source.parent / name)
            raise malformed(f"{text!r} is not a specifier of Python", where, str(error)) from error
    return asked


def choose_python(matrices: Matrices, asked: Sequence[tuple[str, str]], where: Location) -> entry.Choice:
    """Return the value of the axis python that all specifiers of `asked` admit, each with its source in words.

    Raises ProjectFileError where there is none.
    """
    available = {interpreter.python for interpreter in matrices.matrix.interpreters.values()}
    values = [axis for axis in matrices.matrix.axes["python"] if axis in available]
    return entry.choose_python(asked, values, _versions(matrices), _own_python(matrices), where)


def choose_platform(
    matrices: Matrices, recovered: Recovered, python: entry.Choice, selection: Selection, *, is_locked: bool = False
) -> ImagePlatform:
    """Return the surroundings of the packages. Raises ProjectFileError, UsageError for an unknown CUDA or GPU."""
    cuda, gpu, values = selection.cuda, plain(selection.gpu), matrices.matrix.axes["cuda"]
    if cuda and cuda not in values:
        fix = did_you_mean(cuda, values) or f"known are {', '.join(values)}"
        raise UsageError(f"the axis `cuda` has no value {cuda}", code="usage-unknown-cuda", fix=fix)
    names = {
        plain(name): card.name
        for card in matrices.matrix.gpus.values()
        for name in (card.name, *card.products, *card.aliases)
    }
    if gpu and gpu not in names:
        raise UsageError(
            f"no GPU {selection.gpu} is known",
            code="usage-unknown-gpu",
            fix=did_you_mean(selection.gpu, names) or "as in H100 or sm_90",
        )
    gpus = (names[gpu],) if gpu else ()
    facts = known_facts(matrices)
    return entry.platform(recovered, python, facts, is_locked=is_locked, cuda_value=cuda, gpus=gpus)


def known_facts(matrices: Matrices) -> CudaFacts:
    """Return the facts of the matrix that decide on CUDA."""
    torch = matrices.matrix.components[TORCH]
    aliases = {alias: label for label, alias in torch.index.items()}
    addresses = {index.url.rstrip("/"): index.alias for index in matrices.matrix.indexes.values() if index.url}
    labels = {address: aliases[alias] for address, alias in addresses.items() if alias in aliases}
    return CudaFacts(
        matrices.matrix.axes["cuda"],
        labels,
        lambda pin: _torch_cuda(matrices, pin),
        lambda pin: _requires_torch(matrices, pin),
        matrices.matrix.gpus,
    )


def _torch_cuda(matrices: Matrices, pin: PackagePin) -> str | None:
    """Return the CUDA release of PyPI's build of the torch that an exact pin is, or requires exactly."""
    version = entry.exact_version(pin.specifier)
    harvested = matrices.knowledge_files.metadata.of(pin.package)
    release = harvested.package.releases.get(version.public) if harvested and version else None
    if release is None:
        return None
    if pin.package == TORCH:
        return release.cuda
    exact = _required_torch(matrices, pin)
    return _torch_cuda(matrices, PackagePin(TORCH, exact, ())) if exact else None


def _required_torch(matrices: Matrices, pin: PackagePin) -> str | None:
    """Return the specifier of torch that the release of an exact pin requires; None where there is none, or several."""
    version, harvested = entry.exact_version(pin.specifier), matrices.knowledge_files.metadata.of(pin.package)
    release = harvested.package.releases.get(version.public) if harvested and version else None
    texts = itertools.chain(release.requires or (), *release.extras.values()) if release else ()
    exact = {str(requirement.specifier) for requirement in map(parse_requirement, texts) if requirement.name == TORCH}
    return exact.pop() if len(exact) == 1 else None


def _without_replaced_torch(matrices: Matrices, recovered: Recovered) -> Recovered:
    """Return the packages without a base image's torch that another one excludes: pip replaces it and its CUDA."""
    torch = next((pin for pin in recovered.pins if pin.package == TORCH and pin.is_replaceable), None)
    version = entry.exact_version(torch.specifier) if torch else None
    required = [text for pin in recovered.pins if pin is not torch and (text := _required_torch(matrices, pin))]
    if torch is None or version is None or all(SpecifierSet(text).contains(version) for text in required):
        return recovered
    is_named_by_it = recovered.cuda is not None and recovered.cuda[1] in torch.places
    pins = tuple(pin for pin in recovered.pins if pin is not torch)
    return replace(recovered, pins=pins, cuda=None if is_named_by_it else recovered.cuda)


def _without_missing_extras(matrices: Matrices, recovered: Recovered) -> Recovered:
    """Return the packages without the extras that no admitted release has; each is an omission."""
    pins, omissions = [], list(recovered.omissions)
    for pin in recovered.pins:
        missing = _missing_extras(matrices, pin)
        pins.append(replace(pin, extras=tuple(extra for extra in pin.extras if extra not in missing)))
        for extra in missing:
            why = f"no release that {pin.specifier} admits has this extra, so its packages are not installed"
            requirement, fix = f"{pin.package}[{extra}]", f"require a release of {pin.package} that has it"
            omissions.append(Omission(pin.places[0], requirement, why, fix, is_package=True))
    return replace(recovered, pins=tuple(pins), omissions=tuple(omissions))


def _missing_extras(matrices: Matrices, pin: PackagePin) -> list[str]:
    """Return the extras of a pin that no harvested release has of those that the pin admits."""
    harvested = (
        matrices.knowledge_files.metadata.of(pin.package)
        if pin.extras and pin.specifier and not pin.directory
        else None
    )
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


def _with_torch(matrices: Matrices, recovered: Recovered, platform: ImagePlatform) -> Recovered:
    """Return the packages with torch if another package requires it and the image has no CUDA, as PyPI's build has."""
    if platform.cuda.value != NO_CUDA or any(pin.package == TORCH for pin in recovered.pins):
        return recovered
    asking = next((pin for pin in recovered.pins if _requires_torch(matrices, pin)), None)
    if asking is None:
        return recovered
    reason = f"{asking.package} ({asking.places[0]}) requires it; named here, it is the build without CUDA."
    torch = PackagePin(TORCH, "", asking.places, because=reason)
    return replace(recovered, pins=tuple(sorted((*recovered.pins, torch), key=lambda pin: pin.package)))


def _requires_torch(matrices: Matrices, pin: PackagePin) -> bool:
    """Return whether the package brings torch, by the newest harvested release that is admitted of each package."""
    if pin.package == TORCH:
        return True
    components = matrices.matrix.components.values()
    sdists = {component.package: component.sdist.requires for component in components if component.sdist}
    seen, pending = {pin.package}, [(pin.package, SpecifierSet(pin.specifier))]
    while pending:
        package, allowed = pending.pop()
        harvested = matrices.knowledge_files.metadata.of(package)
        releases = harvested.package.releases.values() if harvested else ()
        newest = next((release for release in releases if allowed.contains(release.version)), None)
        requires = (newest.requires if newest else None) or sdists.get(package, ())
        for required in map(parse_requirement, requires):
            name = canonicalize_name(required.name)
            if name in seen or (required.marker and "extra" in str(required.marker)):
                continue
            if name == TORCH:
                return True
            seen.add(name)
            pending.append((name, required.specifier))
    return False


def _without_other_indexes(matrices: Matrices, recovered: Recovered) -> Recovered:
    """Return the packages without the ones from an index that the matrix lacks, since names differ by index."""
    known_indexes = _known_indexes(matrices)
    pins, omissions = [], list(recovered.omissions)
    for pin in recovered.pins:
        if pin.index and pin.index.rstrip("/") not in known_indexes:
            why = f"it comes only from {redact(pin.index)}; another index may have another project of its name"
            fix = "declare the index, and name it at the component: docs/how-to/indexes.md"
            omissions.append(Omission(pin.places[0], f"{pin.package}{pin.specifier}", why, fix, is_package=True))
        else:
            pins.append(pin)
    other_indexes = {pin.index for pin in recovered.pins} - {pin.index for pin in pins}
    indexes = {address: place for address, place in recovered.indexes.items() if address not in other_indexes}
    return replace(recovered, pins=tuple(pins), omissions=tuple(omissions), indexes=indexes)


def _known_indexes(matrices: Matrices) -> set[str]:
    import pypi_simple  # late, because it imports an HTML parser

    declared = {index.url.rstrip("/") for index in matrices.matrix.indexes.values() if index.url}
    return {*declared, pypi_simple.PYPI_SIMPLE_ENDPOINT.rstrip("/")}


def _of_platform(matrices: Matrices, recovered: Recovered, platform: ImagePlatform) -> list[Omission]:
    """Return the omissions of base and CUDA: a CUDA that the matrix lacks, and indexes that are not PyTorch's."""
    known_indexes = _known_indexes(matrices)
    omissions = [platform.cuda.omission] if platform.cuda.omission else []
    for address, location in recovered.indexes.items():
        if address.rstrip("/") not in known_indexes:
            why = "an entry names an index by its alias, and for each package that comes from it"
            fix = "declare it, and name it at its packages: docs/how-to/indexes.md"
            omissions.append(Omission(location, f"the index {redact(address)}", why, fix))
    return omissions


def require_packages(recovered: Recovered, source: Location, message: str) -> None:
    """Raise ProjectFileError with `message` for a file without a usable package."""
    if recovered.pins:
        return
    first = next((omission for omission in recovered.omissions if omission.is_package), None)
    why = f"{first.what}: {first.why}" if first else "it lists no package for Linux and this Python"
    stages = ", ".join(f"--target {stage}" for stage in recovered.other_stages)
    other = f"choose another stage: {stages}" if stages else None
    fix = first.fix if first else other or "name another file"
    raise malformed(message, source, why, fix)
