"""requirements.txt: pip's format, read without pip and without running any code.

Source of the format: pip's documentation, "Requirements File Format" (pip 26): comments are stripped after lines are
joined, an option may stand on a line of its own or behind a requirement, and files may name others.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from imagegen.core.data import is_within
from imagegen.core.errors import ErrorList, Location, ProjectFileError
from imagegen.core.text import did_you_mean, redact
from imagegen.core.types import parse_requirement, parse_specifier
from imagegen.projects.model import (
    COMMIT,
    OWN_PACKAGE,
    MarkerTarget,
    Omission,
    PackagePin,
    Recovered,
    join,
    label_at,
    malformed,
    merge,
    parse_toml,
    raise_all,
    read_text,
)

_COMMENT = re.compile(r"(?:^|(?<!\s)\s+)#.*")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_VCS = re.compile(r"(?:git|hg|svn|bzr)\+")
_LOCAL = re.compile(r"((?:[^@]+@\s*)?file:(?://(?=/))?)?([^\[;#?]*)")  # "name[extra] @ file:" and a path, or the path
_SCHEME = re.compile(r"(?:https?|file|ftp)://")
_HASH_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}  # hex digits; those that pip accepts
_DEEPEST = 20  # files that name one another
_MOST_FILES, _MOST_LINES = 100, 100_000  # that one reader reads

_FILES = {"-r": "--requirement", "-c": "--constraint"}
_VALUED = {"-e": "--editable", "-i": "--index-url", "-f": "--find-links", **_FILES}
_INDEXES = {"--index-url", "--extra-index-url", "--pypi-url", "--index", "--default-index"}
# Options that decide nothing that an entry could say: a lock has hashes, and takes wheels where there are some.
_SILENT_VALUES = {"--hash", "--only-binary", "--trusted-host", "--use-feature"}
_SILENT_FLAGS = {"--prefer-binary", "--require-hashes"}
_NOT_EXPRESSED = {
    "--no-index": ("an image's packages come from indexes", "docs/how-to/indexes.md: a directory of wheels"),
    "--find-links": ("an entry names no directory or page of wheels", "docs/how-to/indexes.md: PIP_FIND_LINKS"),
    "--pre": ("an entry admits pre-releases only by a specifier", "name the pre-release, as in ==2.0.0rc1"),
    "--no-binary": ("an entry compiles only components with a recipe", "docs/how-to/source-builds.md"),
    "--global-option": ("it is for a setup.py, which does not run here", "docs/how-to/source-builds.md"),
    "--config-settings": ("it is for a build backend, which does not run here", "docs/how-to/source-builds.md"),
}
_FLAGS = {"--no-index", "--pre", *_SILENT_FLAGS}
_VALUES = {*_VALUED.values(), *_INDEXES, *_SILENT_VALUES, *(_NOT_EXPRESSED.keys() - _FLAGS)}


@dataclass(frozen=True)
class Line:
    """A requirement of a file: PEP 508 text, an address or a path, and its hashes ("sha256:...")."""

    text: str
    location: Location
    hashes: frozenset[str] = frozenset()
    editable: bool = False
    directory: Path | None = None  # of a path, on this machine


@dataclass
class RequirementsFile:
    """A file of a project with those that it names. `python` is "", as the format has no place for it."""

    project: Path  # no file outside of it is read
    lines: list[Line] = field(default_factory=list)
    constraints: list[Line] = field(default_factory=list)
    indexes: dict[str, Location] = field(default_factory=dict)  # address -> its place
    omissions: list[Omission] = field(default_factory=list)
    python: str = ""

    def recover(self, target: MarkerTarget) -> Recovered:
        """Return the packages whose markers hold for `target`, bounded by the constraints.

        Raises ProjectFileError for requirements that are malformed, or contradict one another.
        """
        return _Recovery(self, target).run()


def read(path: Path, project: Path | None = None) -> RequirementsFile:
    """Read a file of a project (default: its directory) and those that it names by -r and -c.

    Raises ProjectFileError.
    """
    reader = RequirementsReader(RequirementsFile(project or path.parent))
    reader.read(path, constraints=False)
    raise_all(reader.errors)
    return reader.file


def parse(text: str, path: Path, project: Path | None = None) -> RequirementsFile:
    """Return the contents of a file; `path` names it, and files that it names are read as `read` does.

    Raises ProjectFileError.
    """
    reader = RequirementsReader(RequirementsFile(project or path.parent))
    reader.parse(text, path, constraints=False)
    raise_all(reader.errors)
    return reader.file


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines without comments, joined after a backslash at the end, each with its first line's number."""
    continued: list[str] = []
    start = 1
    for number, line in enumerate(text.splitlines(), 1):
        start = start if continued else number
        is_comment = bool(_COMMENT.match(line))
        if line.endswith("\\") and not is_comment:
            continued.append(line.strip("\\"))
            continue
        # A comment among continued lines ends them; the blank before it makes it a comment of the joined line.
        joined = "".join([*continued, f" {line}" if is_comment else line])
        continued = []
        if stripped := _COMMENT.sub("", joined).strip():
            yield start, stripped
    if continued and (stripped := _COMMENT.sub("", "".join(continued)).strip()):
        yield start, stripped


@dataclass
class RequirementsReader:
    """A reader of a file and those that it names. `errors` has the errors of all files.

    Raises ProjectFileError at once for too many files or lines.
    """

    file: RequirementsFile
    errors: ErrorList[ProjectFileError] = field(default_factory=ErrorList)
    _open: list[Path] = field(default_factory=list)
    _seen: set[tuple[str, bool]] = field(default_factory=set)  # named files, and whether as constraints
    _files: int = 0
    _lines: int = 0

    def read(self, path: Path, *, constraints: bool, location: Location | None = None) -> None:
        where = location or Location(path)
        if path in self._open or len(self._open) >= _DEEPEST:
            why = " -> ".join(str(file) for file in (*self._open, path))
            self.errors.append(malformed("a file names itself, directly or through others", where, why))
            return
        if not self._open:
            self._seen.clear()
        elif (key := (os.path.realpath(path), constraints)) in self._seen:
            return  # its lines would be the same
        else:
            self._seen.add(key)
        self._files += 1
        if self._files > _MOST_FILES:
            raise malformed(f"more than {_MOST_FILES} files are named", where)
        try:
            text = read_text(path, self.file.project, location)
        except ProjectFileError as error:
            self.errors.append(error)
            return
        self.parse(text, path, constraints=constraints)

    def parse(self, text: str, path: Path, *, constraints: bool) -> None:
        self._open.append(path)
        for number, line in logical_lines(text):
            self._lines += 1
            if self._lines > _MOST_LINES:
                raise malformed(f"more than {_MOST_LINES:,} lines are named", Location(path, number))
            self.line(line, Location(path, number), constraints=constraints)
        self._open.pop()

    def line(self, line: str, location: Location, *, constraints: bool = False, directory: Path | None = None) -> None:
        """Read one line that is not a comment. A path is the given directory, or begins in the file's."""
        if _VARIABLE.search(line):
            why = "it has a variable of the environment"
            self._omit(location, line, why, "write its value", is_package=line[0] != "-")
            return
        words = line.split(" ")
        end = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
        requirement = " ".join(words[:end]).strip()
        try:
            options = list(_options(" ".join(words[end:])))
        except ValueError as error:
            message = f"{redact(line)!r} cannot be read"
            self.errors.append(malformed(message, location, str(error), _option_fix(str(error))))
            return
        if requirement:
            self._requirement(requirement, options, location, constraints=constraints, directory=directory)
        else:
            for name, value in options:
                self._option(name, value, location, constraints=constraints, directory=directory)

    def _requirement(
        self,
        text: str,
        options: list[tuple[str, str]],
        location: Location,
        *,
        constraints: bool,
        directory: Path | None,
    ) -> None:
        hashes = frozenset(value for name, value in options if name == "--hash")
        for file_hash in sorted(hashes):
            algorithm, _, digest = file_hash.partition(":")
            if len(digest) != _HASH_LENGTHS.get(algorithm) or not re.fullmatch("[0-9a-f]+", digest):
                why = f"known are {', '.join(_HASH_LENGTHS)}, as hex digits"
                self.errors.append(
                    malformed(f"{file_hash!r} is not a hash of a file", location, why, "`pip hash FILE` prints one")
                )
        for name, _ in options:
            if name in _NOT_EXPRESSED:
                self._omit(location, f"{name} of {text}", *_NOT_EXPRESSED[name])
        (self.file.constraints if constraints else self.file.lines).append(
            Line(text, location, hashes, directory=directory or self._directory(text))
        )

    def _directory(self, text: str) -> Path | None:
        """Return the directory that a path or file: address of the file leads to; None for another requirement."""
        match = _LOCAL.match(text)
        if not self._open or not match or not (match[1] or is_path(text)):
            return None
        path = self._open[-1].parent / (unquote(match[2]) if match[1] else match[2]).rstrip()
        return path if is_within(path, self.file.project) and path.is_dir() else None

    def _option(self, name: str, value: str, location: Location, *, constraints: bool, directory: Path | None) -> None:
        if name in _FILES.values():
            self._named_file(value, location, constraints=constraints or name == "--constraint")
        elif name == "--editable":
            local = directory or self._directory(value)
            self.file.lines.append(Line(value, location, editable=True, directory=local))
        elif name in _INDEXES:
            self.file.indexes.setdefault(value, location)
        elif name in _NOT_EXPRESSED:
            self._omit(location, f"{name} {value}".strip(), *_NOT_EXPRESSED[name])

    def _named_file(self, value: str, location: Location, *, constraints: bool) -> None:
        if _SCHEME.match(value):
            why, fix = "the file is not on this machine", "download it, and name the copy"
            self._omit(location, value, why, fix, is_package=True)
            return
        self.read(Path(location.file).parent / value, constraints=constraints, location=location)

    def _omit(self, location: Location, statement: str, why: str, fix: str, *, is_package: bool = False) -> None:
        self.file.omissions.append(Omission(location, redact(statement), why, fix, is_package))


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a line as long names and values. Raises ValueError."""
    words = iter(shlex.split(text))
    for word in words:
        name, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not word.startswith("--") and len(word) > 2 and word[:2] in _VALUED:  # -rfile
            name, has_value, value = word[:2], "=", word[2:].removeprefix("=")
        name = _VALUED.get(name, name)
        if name in _FLAGS:
            if has_value:
                raise ValueError(f"{name} takes no value")
            yield name, ""
        elif name in _VALUES:
            if not has_value and not (value := next(words, "")):
                raise ValueError(f"{name} lacks its value")
            yield name, value
        else:
            raise ValueError(f"pip knows no option {redact(name)} in such a file")


def _option_fix(message: str) -> str | None:
    name = re.search(r"option (\S+) in", message)
    return did_you_mean(name[1], _VALUES | _FLAGS) if name else None


class _Recovery:
    """The packages of a file for one target."""

    def __init__(self, file: RequirementsFile, target: MarkerTarget) -> None:
        self.file, self.target = file, target
        self.omissions = list(file.omissions)
        self.errors: ErrorList[ProjectFileError] = ErrorList()
        self.other_platforms = 0

    def run(self) -> Recovered:
        self._require_equal_hashes()
        pins = [pin for line in self.file.lines if (pin := self._pin(line))]
        bounds = [pin for line in self.file.constraints if (pin := self._pin(line, required=False))]
        raise_all(self.errors)
        bounded, unused = bound_pins(merge(pins), bounds)
        return Recovered(
            bounded,
            (*self.omissions, *unused),
            indexes=self.file.indexes,
            other_platforms=self.other_platforms,
        )

    def _require_equal_hashes(self) -> None:
        """Report a requirement that stands twice with hashes of different files."""
        first: dict[str, Line] = {}
        for line in self.file.lines:
            if not line.hashes:
                continue
            other = first.setdefault(line.text, line)
            if not (other.hashes & line.hashes):
                message = f"the hashes of {line.text} do not match"
                why = f"{other.location} names other files"
                self.errors.append(malformed(message, line.location, why, "keep the line whose files are meant"))

    def _pin(self, line: Line, *, required: bool = True) -> PackagePin | None:
        text, location = line.text, line.location
        if line.directory and (name := project_name(line.directory, self.file.project, location)):
            return self._project_pin(line, name, required=required)
        if line.editable or _VCS.match(text) or _SCHEME.match(text) or is_path(text):
            return self._address(text, location, None, editable=line.editable)
        try:
            requirement = parse_requirement(text)
        except ValueError as error:
            why = str(error.__cause__) if error.__cause__ else None
            self.errors.append(malformed(str(error), location, why))
            return None
        holds = self.target.holds(str(requirement.marker) if requirement.marker else None)
        if holds is None:
            self.errors.append(malformed(f"the marker of {requirement.name} cannot be evaluated", location))
        if not holds:
            self.other_platforms += required
            return None
        if requirement.url:
            return self._address(requirement.url, location, requirement, editable=False)
        return self._pin_of(requirement, location)

    def _project_pin(self, line: Line, name: str, *, required: bool) -> PackagePin | None:
        if not self.target.holds(line.text.partition(";")[2].strip() or None):
            self.other_platforms += required
            return None
        extras = re.search(r"\[([^\[\]]*)\]", line.text)
        names = {canonicalize_name(extra.strip()) for extra in extras[1].split(",")} if extras else ()
        return PackagePin(name, "", (line.location,), tuple(sorted(names)), directory=line.directory)

    def _pin_of(self, requirement: Requirement, location: Location) -> PackagePin | None:
        specifier = ",".join(sorted(str(clause) for clause in requirement.specifier)).replace("===", "==")
        try:
            parse_specifier(specifier)
        except ValueError as error:
            self.errors.append(malformed(f"{requirement.name} has no version that can be meant", location, str(error)))
            return None
        return PackagePin(canonicalize_name(requirement.name), specifier, (location,), _extras(requirement))

    def _address(
        self, text: str, location: Location, requirement: Requirement | None, *, editable: bool
    ) -> PackagePin | None:
        """Record an address or a path; a wheel's file name gives a pin all the same."""
        address = urlsplit(text)
        statement = redact(f"{requirement.name} @ {text}" if requirement else text)
        if _VCS.match(text):
            egg = parse_qs(address.fragment).get("egg", [""])[0]
            why = "a commit is locked with its tree and static metadata, which the line does not give"
            self._omit(location, redact(f"{egg} @ {text}") if egg and not requirement else statement, why, COMMIT)
            return None
        filename = unquote(address.path.rpartition("/")[2])
        try:
            name, version, _, _ = parse_wheel_filename(filename)
        except ValueError:
            kind = "a directory" if editable or not _SCHEME.match(text) else "an archive of sources"
            self._omit(location, statement, f"it is {kind}, and its metadata needs code of its own to run", OWN_PACKAGE)
            return None
        why = "an entry names no file, so the lock takes the release's file of the index or of the wheel finder"
        fix = "check it with `imagegen lock`; docs/how-to/source-builds.md explains the wheel finder"
        self.omissions.append(Omission(location, f"the address of {filename}", why, fix))
        specifier, label = f"=={version.public}", label_at(text, version)
        return PackagePin(canonicalize_name(name), specifier, (location,), _extras(requirement), label=label)

    def _omit(self, location: Location, statement: str, why: str, fix: str) -> None:
        self.omissions.append(Omission(location, statement, why, fix, is_package=True))


def bound_pins(
    pins: Iterable[PackagePin], bounds: Iterable[PackagePin]
) -> tuple[tuple[PackagePin, ...], list[Omission]]:
    """Return the pins with the constraints of their packages, sorted, and the omissions of all other constraints.

    Raises ProjectFileError for constraints that exclude a required version.
    """
    pin_of = {pin.package: pin for pin in pins}
    bounds_of: dict[str, list[PackagePin]] = {}
    unused: dict[str, list[PackagePin]] = {}
    errors: ErrorList[ProjectFileError] = ErrorList()
    for bound in bounds:
        if bound.package in pin_of:
            bounds_of.setdefault(bound.package, []).append(bound)
        else:
            unused.setdefault(str(bound.places[0].file), []).append(bound)
    for name, bounding in bounds_of.items():
        try:
            pin_of[name] = join([pin_of[name], *bounding], f"the constraint of {name} excludes the required version")
        except ProjectFileError as error:
            errors.append(error)
    raise_all(errors)
    return tuple(pin_of[name] for name in sorted(pin_of)), list(map(_unused, unused.values()))


def is_path(text: str) -> bool:
    """Return whether pip takes a requirement for a path."""
    return text.startswith((".", "/", "~")) or bool(re.match(r"[A-Za-z0-9_.-]+/", text)) or text.endswith(".whl")


def project_name(directory: Path, project_directory: Path, named_at: Location | None = None) -> str | None:
    """Return the name of the package that a directory's pyproject.toml or setup.cfg declares; None if neither does.

    Raises ProjectFileError for a file that cannot be read or is not TOML.
    """
    name: object = None
    if os.path.lexists(path := directory / "pyproject.toml"):
        table = parse_toml(read_text(path, project_directory, named_at), path)
        tool = table.get("tool")
        poetry = tool.get("poetry") if isinstance(tool, dict) else None
        name = next(
            (part["name"] for part in (table.get("project"), poetry) if isinstance(part, dict) and "name" in part), None
        )
    if name is None and os.path.lexists(path := directory / "setup.cfg"):
        text = read_text(path, project_directory, named_at)
        match = re.search(r"^\[metadata\][^\[]*?^name\s*=\s*([\w.-]+)\s*$", text, re.MULTILINE)
        name = match[1] if match else None
    return canonicalize_name(name) if isinstance(name, str) and name else None


def _extras(requirement: Requirement | None) -> tuple[str, ...]:
    return tuple(sorted({canonicalize_name(extra) for extra in requirement.extras})) if requirement else ()


def _unused(bounds: list[PackagePin]) -> Omission:
    names = ", ".join(sorted({bound.package for bound in bounds}))
    why = "they bound packages that only others require, and an entry bounds its own components"
    fix = "name the package that must have that version as a component"
    return Omission(bounds[0].places[0], f"constraints of {names}", why, fix)
