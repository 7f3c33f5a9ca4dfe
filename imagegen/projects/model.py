"""Packages recovered from a project's file, with their places, and statements that a matrix entry cannot express."""

from __future__ import annotations

import errno
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from packaging.version import Version

from imagegen.compat import metadata
from imagegen.core import data, toml
from imagegen.core.errors import ErrorList, Location, ProjectFileError, ProjectFileErrors
from imagegen.core.text import redact, shown
from imagegen.core.types import parse_specifier
from imagegen.spec.model import ConfigName

OWN_PACKAGE = "name it as a component with `path:` or `wheel:`, as docs/how-to/your-own-package.md shows"
COMMIT = "declare the commit as a component with `git:`, as docs/how-to/extend-the-matrix.md shows"
_PYPI_FILE = re.compile(r"https://files\.python\w+\.org/")
_MOST_CLAUSES = 500  # in all specifiers of one package


@dataclass(frozen=True)
class MarkerTarget:
    """The interpreter and machine for which markers are evaluated."""

    python: str  # full version: "3.12.14"
    machine: str = "x86_64"  # platform_machine

    def holds(self, marker: str | None) -> bool | None:
        """Return whether a PEP 508 marker holds; None if that is unknown, or if it is malformed."""
        try:
            return True if marker is None else metadata.holds(marker, self.python, self.machine, "")
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class PackagePin:
    """A package that a file requires. Several places belong to a requirement and its constraints."""

    package: str  # normalised name
    specifier: str  # PEP 440, with the local version label; "" for any version
    places: tuple[Location, ...]
    extras: tuple[str, ...] = ()  # sorted
    because: str = ""  # where the places are not the whole reason
    directory: Path | None = None  # of a package of the project itself
    label: str | None = None  # the local version label of a wheel at an address ("": none); None: a file of an index
    index: str = ""  # address of the one index that the file takes it from; "" for the default
    is_replaceable: bool = False  # of a base image: pip puts another release there where a later package requires it


@dataclass(frozen=True)
class Omission:
    """A statement of a file that the entry does not express. `is_package`: a package is missing for it.

    `in_stack`: an image that takes the lock file as its stack holds it all the same.
    """

    place: Location
    what: str
    why: str
    fix: str
    is_package: bool = False
    in_stack: bool = False


@dataclass(frozen=True)
class Recovered:
    """The contents of a file for one target."""

    pins: tuple[PackagePin, ...] = ()  # sorted by package, one of each
    omissions: tuple[Omission, ...] = ()
    overrides: tuple[PackagePin, ...] = ()  # that replace all requirements of a package
    debian: Mapping[str, Location] = field(default_factory=dict)  # Debian package -> its place
    indexes: Mapping[str, Location] = field(default_factory=dict)  # address -> its place
    cuda: tuple[str, Location] | None = None  # a CUDA release that the file names: "12.4"; its major version; "cpu"
    gpus: tuple[str, ...] = ()  # architectures that the file names: ("sm_90",)
    base_image: str = ""  # the name of a Dockerfile's base image, if the file states all of it
    unknown_base: tuple[str, Location] | None = None  # contents of which not even the CUDA is known
    direct: tuple[str, ...] = ()  # of a lock file, the packages that the project itself requires, sorted
    env: Mapping[str, tuple[str, Location]] = field(default_factory=dict)  # variable -> its value and place
    config: Mapping[ConfigName, tuple[tuple[str, ...], Location]] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, Location]] = field(default_factory=dict)
    ports: Mapping[str, Location] = field(default_factory=dict)
    files: Mapping[str, tuple[Path, Location]] = field(default_factory=dict)  # path in the image -> its source
    ldconfig: Mapping[str, Location] = field(default_factory=dict)  # directory of the dynamic loader -> its place
    others: int = 0  # packages that no pin expresses, and a stack of the file holds
    other_platforms: int = 0  # requirements whose markers do not hold for the target
    other_stages: tuple[str, ...] = ()  # final stages of a Dockerfile that were not chosen, by name or number
    other_extras: tuple[str, ...] = ()  # extras of the project that were not chosen, sorted

    @property
    def packages(self) -> int:
        """The number of packages that an entry with these contents has."""
        return len(self.pins) + len(self.debian) + self.others

    def as_stack(self) -> Recovered:
        """Return the contents of an image that takes the lock file as its stack."""
        stack_omissions = [omission for omission in self.omissions if omission.in_stack]
        other_omissions = tuple(omission for omission in self.omissions if not omission.in_stack)
        return replace(self, omissions=other_omissions, others=sum(entry.is_package for entry in stack_omissions))

    def with_names(self, name: Callable[[Path], str]) -> Recovered:
        """Return the same with each file of a place under the name that `name` gives it."""

        def relocated(location: Location) -> Location:
            return replace(location, file=name(Path(location.file)))

        def pinned(pins: Iterable[PackagePin]) -> tuple[PackagePin, ...]:
            return tuple(replace(pin, places=tuple(map(relocated, pin.places))) for pin in pins)

        return replace(
            self,
            pins=pinned(self.pins),
            omissions=tuple(replace(omission, place=relocated(omission.place)) for omission in self.omissions),
            overrides=pinned(self.overrides),
            debian={package: relocated(location) for package, location in self.debian.items()},
            indexes={address: relocated(location) for address, location in self.indexes.items()},
            env={name: (value, relocated(location)) for name, (value, location) in self.env.items()},
            config={name: (value, relocated(location)) for name, (value, location) in self.config.items()},
            labels={name: (value, relocated(location)) for name, (value, location) in self.labels.items()},
            ports={port: relocated(location) for port, location in self.ports.items()},
            files={path: (source, relocated(location)) for path, (source, location) in self.files.items()},
            ldconfig={path: relocated(location) for path, location in self.ldconfig.items()},
            cuda=self.cuda and (self.cuda[0], relocated(self.cuda[1])),
            unknown_base=self.unknown_base and (self.unknown_base[0], relocated(self.unknown_base[1])),
        )


class DeclaringFile(Protocol):
    """A parsed file. `python` is a PEP 440 specifier of the interpreters that it admits, "" for any."""

    @property
    def python(self) -> str: ...

    def recover(self, target: MarkerTarget) -> Recovered:
        """Return the contents for a target. Raises ProjectFileError, LockError."""
        ...


def read_text(
    path: Path, project: Path, named_at: Location | None = None, *, longest: int = data.MAX_SOURCE_FILE
) -> str:
    """Return the text of a file of a project. `named_at` is the line that names the file, if another file does.

    Raises ProjectFileError for a file that is outside of the project, cannot be read, is too long or is not UTF-8.
    """
    try:
        return data.read(path, project, longest).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        where, why = (named_at, f"{path}: {why}") if named_at else (Location(path), why)
        is_outside = isinstance(error, OSError) and error.errno == errno.EXDEV
        fix = "copy it into the project" if is_outside else None
        raise ProjectFileError(
            "a file cannot be read", code="project-unreadable", where=where, why=why, fix=fix
        ) from error


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return the table of a TOML file. Raises ProjectFileError with line and column."""
    try:
        return toml.loads(text)
    except toml.TomlError as error:
        where = Location(path, error.line, error.column)
        raise malformed("this is not valid TOML", where, str(error)) from error


def malformed(message: str, where: Location, why: str | None = None, fix: str | None = None) -> ProjectFileError:
    """Return the error of a file whose contents contradict its format."""
    return ProjectFileError(message, code="project-malformed", where=where, why=why, fix=fix)


def unsupported(accelerator: str, statement: str, where: Location) -> ProjectFileError:
    """Return the error of a file that is for another accelerator than NVIDIA's GPUs; `what` in it says so."""
    return ProjectFileError(
        f"no image here is for {accelerator}",
        code="project-accelerator",
        where=where,
        why=f"{shown(redact(statement))} is for {accelerator}; images here are for NVIDIA GPUs (CUDA) and CPUs",
        fix="import a file whose base image and packages are for CUDA or CPUs",
    )


def raise_all(errors: ErrorList[ProjectFileError]) -> None:
    """Raise the errors, if there are any."""
    if len(errors) == 1 and not errors.omitted:
        raise errors[0]
    if errors:
        raise ProjectFileErrors(errors)


def label_at(address: str | None, version: Version) -> str | None:
    """Return the label of the pin of a wheel at an address; None for a file of PyPI."""
    return None if _PYPI_FILE.match(address or "") else version.local or ""


def merge(pins: Iterable[PackagePin]) -> tuple[PackagePin, ...]:
    """Return one pin for each package, with all of its specifiers. Raises ProjectFileError where they conflict."""
    pins_of: dict[str, list[PackagePin]] = {}
    for pin in pins:
        pins_of.setdefault(pin.package, []).append(pin)
    errors: ErrorList[ProjectFileError] = ErrorList()
    merged = []
    for name in sorted(pins_of):
        try:
            merged.append(join(pins_of[name], f"{name} is required twice, and no version is both"))
        except ProjectFileError as error:
            errors.append(error)
    raise_all(errors)
    return tuple(merged)


def join(pins: Sequence[PackagePin], message: str) -> PackagePin:
    """Return the pin with the specifiers and extras of all pins of one package.

    Raises ProjectFileError, which begins with `what`, at the first pin that contradicts those before it.
    """
    first, *other_pins = pins
    if not other_pins:
        return first
    if _conflict(pins):
        count = bisect_left(range(len(pins)), 1, key=lambda last: _conflict(pins[: last + 1]) is not None)
        raise malformed(message, pins[count].places[0], _conflict(pins[: count + 1]))
    extras = tuple(sorted({extra for pin in pins for extra in pin.extras}))
    directory = next((pin.directory for pin in pins if pin.directory), None)
    label = next((pin.label for pin in pins if pin.label is not None), None)
    index = next((pin.index for pin in pins if pin.index), "")
    specifier = ",".join(_clauses(pins))
    return PackagePin(
        first.package, specifier, tuple(_places(pins)), extras, directory=directory, label=label, index=index
    )


def _clauses(pins: Iterable[PackagePin]) -> dict[str, None]:
    return {clause: None for pin in pins for clause in pin.specifier.split(",") if clause}


def _places(pins: Iterable[PackagePin]) -> dict[Location, None]:
    return {location: None for pin in pins for location in pin.places}


def _conflict(pins: Sequence[PackagePin]) -> str | None:
    """Return why no version satisfies all of the pins, or why they are not read; None if one does."""
    clauses = _clauses(pins)
    if len(clauses) > _MOST_CLAUSES:
        return f"more than {_MOST_CLAUSES} version clauses are about {pins[0].package}"
    try:
        parse_specifier(",".join(clauses))
    except ValueError as error:
        return f"{error}: {' and '.join(map(str, _places(pins)))}"
    return None


def table_lines(text: str, header: str) -> list[int]:
    """Return the lines (from 1) of a TOML file on which a table of this array begins: "[[package]]"."""
    return [number for number, line in enumerate(text.splitlines(), 1) if line.strip() == header]
