"""Read the packages of a project from uv.lock, pylock.toml (PEP 751) and pyproject.toml (PEP 621)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.pylock import Package, Pylock, PylockSelectError, PylockUnsupportedVersionError, PylockValidationError
from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.core.data import MAX_LOCK
from imagegen.core.errors import ErrorList, Location, LockError, ProjectFileError
from imagegen.core.text import redact
from imagegen.core.types import parse_requirement, parse_specifier
from imagegen.core.wheel_target import WheelTarget
from imagegen.projects import requirements, uv_lock
from imagegen.projects.model import (
    COMMIT,
    OWN_PACKAGE,
    MarkerTarget,
    Omission,
    PackagePin,
    Recovered,
    label_at,
    malformed,
    merge,
    parse_toml,
    raise_all,
    read_text,
    table_lines,
)
from imagegen.projects.names import uv_keys
from imagegen.projects.requirements import bound_pins, project_name
from imagegen.projects.requirements import parse as parse_requirements
from imagegen.projects.uv_lock import Root, UvLock, UvPackage

_QUOTED = re.compile(r"""'([^']*)'|"([^"]*)["]""")
_GLIBC = 36  # minor version of Debian 12's, which the bases of imported images have
_EXTRA, _GROUP = "extra", "dependency group"
_NO_FILE = "an entry names no file, so the lock takes the release's file of the index or of the wheel finder"
_CHECK = "check it with `imagegen lock`; docs/how-to/source-builds.md explains the wheel finder"
_UV_LOCK = (
    "docs/how-to/extend-the-matrix.md: with `git:` and `uv_lock:`, an image holds the project at a commit with exactly "
    "the files of its uv.lock"
)


@dataclass(frozen=True)
class UvLockFile:
    """A uv.lock, and the extras and dependency groups of its project that an image is to have."""

    path: Path
    lock: UvLock
    lines: Sequence[int | None]  # of each package of the lock
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        return self.lock.requires_python

    def recover(self, target: MarkerTarget) -> Recovered:
        """Return the packages that `uv sync --frozen` installs. Raises LockError if none fit the target."""
        roots = self.roots()
        selected = uv_lock.select(self.lock, roots, target.python, target.machine, str(self.path))
        line_of = dict(zip(map(id, self.lock.package), self.lines, strict=True))
        pins: list[PackagePin] = []
        omissions: list[Omission] = []
        for selection in selected:
            location = Location(self.path, line_of[id(selection.package)])
            pin, omission = _of_uv(selection.package, location, self._extras_of(selection.package, roots))
            pins += [pin] if pin else []
            omissions += [omission] if omission else []
        overrides = tuple(
            PackagePin(override.name, override.specifier, (Location(self.path),))
            for override in self.lock.manifest.overrides
            if override.specifier and target.holds(override.marker)
        )
        names = {root.name for root in roots}
        known_extras = {
            extra for package in self.lock.package if package.name in names for extra in package.optional_dependencies
        }
        direct = tuple(choice.package.name for choice in selected if names & set(choice.via))
        unchosen = _unchosen(known_extras, self.extras)
        return Recovered(merge(pins), tuple(omissions), overrides, other_extras=unchosen, direct=direct)

    def _extras_of(self, package: UvPackage, roots: Sequence[Root]) -> tuple[str, ...]:
        """Return the chosen extras that the package has, if it is the project itself."""
        is_root = any(root.name == package.name for root in roots)
        return tuple(sorted(set(self.extras) & package.optional_dependencies.keys())) if is_root else ()

    def roots(self) -> tuple[Root, ...]:
        """The project at the lock's own directory; all members of a workspace that has none there.

        Raises ProjectFileError for a file without a project.
        """
        members = [package for package in self.lock.package if package.source.member or package.source.virtual]
        at_root = [member for member in members if (member.source.member or member.source.virtual) == "."]
        names = [root.name for root in at_root or members]
        if not names:
            raise malformed("uv.lock has no project", Location(self.path), "no package of it is editable or virtual")
        return tuple(Root(name, self.extras, self.groups) for name in names)


def read_uv_lock(
    path: Path, extras: Sequence[str] = (), groups: Sequence[str] = (), project: Path | None = None
) -> UvLockFile:
    """Read a uv.lock of a project (default: its directory).

    Raises ProjectFileError, and LockError for a format that is not known.
    """
    text = read_text(path, project or path.parent, longest=MAX_LOCK)
    try:
        parsed = uv_lock.parse(text, str(path))
    except LockError as error:
        if not isinstance(error.where, Location):
            line = next((n for n, content in enumerate(text.splitlines(), 1) if content.startswith("version")), None)
            error.where = Location(path, line)
        raise
    lines = _lines(text, "[[package]]", len(parsed.package))
    return UvLockFile(path, parsed, lines, _normalised(extras), _normalised(groups))


def _lines(text: str, header: str, count: int) -> Sequence[int | None]:
    """The line of each table; None for all where a string of the file looks like a table."""
    numbers = table_lines(text, header)
    return numbers if len(numbers) == count else [None] * count


def _unchosen(declared: Iterable[str], chosen: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(map(str, declared)) - set(chosen)))


def _of_uv(
    package: UvPackage, location: Location, extras: tuple[str, ...]
) -> tuple[PackagePin | None, Omission | None]:
    """Return the pin of a package, and the omission of the facts without a field. `extras` are the project's."""
    source = package.source
    label = str(package)
    if source.git:
        why = "a commit is locked with its tree and static metadata, which uv.lock does not give"
        statement = redact(f"{label} of {source.git}")
        return None, Omission(location, statement, why, _UV_LOCK, is_package=True, in_stack=True)
    if source.member:
        return PackagePin(
            package.name, "", (location,), extras, directory=Path(location.file).parent / source.member
        ), None
    if package.version is None:
        return None, Omission(location, label, "uv.lock gives no version of it", OWN_PACKAGE, is_package=True)
    if not (source.url or source.path):
        return PackagePin(package.name, f"=={package.version}", (location,)), None
    if not package.wheels:
        why, in_stack = "its sources are on no index", source.url is not None
        return None, Omission(location, f"{label} of an archive", why, COMMIT, is_package=True, in_stack=in_stack)
    version = Version(package.version)
    pin = PackagePin(package.name, f"=={version.public}", (location,), label=label_at(source.url, version))
    statement = f"the address of {package.wheels[0].name}"
    return pin, Omission(location, statement, _NO_FILE, _CHECK, in_stack=source.url is not None)


@dataclass(frozen=True)
class PylockFile:
    """A pylock.toml, with the extras and dependency groups that an image is to have."""

    path: Path
    lock: Pylock
    lines: Sequence[int | None]  # of each package of the lock
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        return str(self.lock.requires_python or "")

    def recover(self, target: MarkerTarget) -> Recovered:
        """Return the packages that an installer selects. Raises ProjectFileError if none fit the target."""
        chosen = self.select(target, WheelTarget(target.python, target.machine, _GLIBC).tags)
        line_of = dict(zip(map(id, self.lock.packages), self.lines, strict=True))
        pins: list[PackagePin] = []
        omissions: list[Omission] = []
        for package, _ in chosen:
            pin, omission = _of_pylock(package, Location(self.path, line_of[id(package)]))
            pins += [pin] if pin else []
            omissions += [omission] if omission else []
        other = len(self.lock.packages) - len(chosen)
        unchosen = _unchosen(self.lock.extras or (), self.extras)
        return Recovered(merge(pins), tuple(omissions), other_platforms=other, other_extras=unchosen)

    def select(self, target: MarkerTarget, tags: Sequence[Tag]) -> list[tuple[Package, object]]:
        """Return the selected packages for the wheel tags, the most specific first. Raises ProjectFileError."""
        environment: Any = {
            "implementation_name": "cpython",
            "implementation_version": target.python,
            "os_name": "posix",
            "platform_machine": target.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": target.python,
            "python_version": ".".join(target.python.split(".")[:2]),
            "sys_platform": "linux",
        }
        groups = self.groups or None  # None: those that the file itself calls its default
        try:
            return list(
                self.lock.select(environment=environment, tags=tags, extras=self.extras, dependency_groups=groups)
            )
        except PylockSelectError as error:
            raise ProjectFileError(
                "pylock.toml does not answer this image",
                code="project-mismatch",
                where=Location(self.path),
                why=str(error),
                fix="lock the project again for Linux and this Python, or name its extras and groups",
            ) from error


def read_pylock(
    path: Path, extras: Sequence[str] = (), groups: Sequence[str] = (), project: Path | None = None
) -> PylockFile:
    """Read a pylock.toml of a project (default: its directory). Raises ProjectFileError."""
    text = read_text(path, project or path.parent, longest=MAX_LOCK)
    try:
        parsed = Pylock.from_dict(parse_toml(text, path))
    except PylockUnsupportedVersionError as error:
        fix = "lock the project with a tool that writes lock-version 1.0"
        raise malformed("the version of pylock.toml is unknown", Location(path), str(error), fix) from error
    except (PylockValidationError, RecursionError) as error:
        raise malformed("pylock.toml is malformed", Location(path), str(error)) from error
    lines = _lines(text, "[[packages]]", len(parsed.packages))
    return PylockFile(path, parsed, lines, _normalised(extras), _normalised(groups))


def _of_pylock(package: Package, location: Location) -> tuple[PackagePin | None, Omission | None]:
    name = canonicalize_name(package.name)
    if package.vcs:
        why = "a commit is locked with its tree and static metadata, which pylock.toml does not give"
        statement = redact(f"{name} of {package.vcs.url or package.vcs.path}")
        return None, Omission(location, statement, why, COMMIT, is_package=True, in_stack=True)
    if package.directory:
        why = "it is a directory, and an image is made of packages"
        return None, Omission(location, f"{name} in {package.directory.path}", why, OWN_PACKAGE, is_package=True)
    if package.archive or package.version is None:
        why = "its sources are on no index"
        return None, Omission(location, f"{name} of an archive", why, COMMIT, is_package=True)
    if package.index is None and package.wheels:
        label = label_at(package.wheels[0].url, package.version)
        pin = PackagePin(name, f"=={package.version.public}", (location,), label=label)
        return pin, Omission(location, f"the address of the wheel of {name}", _NO_FILE, _CHECK, in_stack=True)
    return PackagePin(name, f"=={package.version}", (location,)), None


_TableName = tuple[str, str]  # kind and normalised name: ("extra", "vllm"), ("dependency group", "dev")
_DEPENDENCIES: _TableName = ("", "")


@dataclass(frozen=True)
class PyprojectFile:
    """The requirements of a pyproject.toml, and uv's sources of them."""

    path: Path
    text: str
    name: str | None  # of the project, normalised
    tables: Mapping[_TableName, Sequence[Any]]  # requirements of the project, its extras and its groups
    chosen: tuple[_TableName, ...]
    sources: Mapping[str, Any]  # package -> its entry of `tool.uv.sources`
    indexes: Mapping[str, str]  # name of an index -> its address
    members: Mapping[str, Path]  # package -> its directory in the workspace; uv takes it from no index
    uv: Mapping[str, Any]  # the table `tool.uv`
    dynamic: requirements.RequirementsFile | None  # the files of which setuptools takes the dependencies
    is_dynamic: bool  # only its build backend knows the dependencies
    is_package: bool
    python: str

    def recover(self, target: MarkerTarget) -> Recovered:
        """Return the requirements whose markers hold.

        A requirement of the project itself selects its extras (PEP 508); a group may include others (PEP 735). Raises
        ProjectFileError for a requirement that is malformed, or a group that is absent.
        """
        return _PyprojectRecovery(self, target).run()


class _PyprojectRecovery:
    """The packages of a pyproject.toml for one target."""

    def __init__(self, file: PyprojectFile, target: MarkerTarget) -> None:
        self.file, self.target = file, target
        self.lines = _lines_of_texts(file.text)
        self.selected = [_DEPENDENCIES, *file.chosen]  # grows as these name others
        self.seen = set(self.selected)
        self.pins: list[PackagePin] = []
        self.omissions: list[Omission] = []
        self.errors: ErrorList[ProjectFileError] = ErrorList()
        self.indexes: dict[str, Location] = {}
        self.other_platforms = 0

    def run(self) -> Recovered:
        file = self.file
        dynamic = file.dynamic.recover(self.target) if file.dynamic else Recovered()
        if file.is_dynamic:
            why = "pyproject.toml does not list them; only the build backend knows them, and it does not run here"
            fix = "list them in a requirements.txt, or lock the project: `uv lock`"
            missing = not file.is_package  # else the wheel of the package states them
            self.omissions.append(Omission(Location(file.path), "the dependencies", why, fix, is_package=missing))
        for table in self.selected:
            for item in file.tables.get(table, ()):
                self._read(item)
        raise_all(self.errors)
        extras = tuple(sorted(name for kind, name in self.selected if kind == _EXTRA))
        if file.is_package and file.name:
            self.pins.append(PackagePin(file.name, "", (self._place(file.name),), extras, directory=file.path.parent))
        declared = (name for kind, name in file.tables if kind == _EXTRA)
        pins, unused = bound_pins(merge((*self.pins, *dynamic.pins)), self._uv_pins("constraint-dependencies"))
        overrides = self._uv_pins("override-dependencies")
        self._account_for_uv()
        return Recovered(
            pins,
            (*self.omissions, *dynamic.omissions, *unused),
            overrides,
            indexes=self.indexes | dict(dynamic.indexes),
            unknown_base=("the dependencies of the project", Location(file.path)) if file.is_dynamic else None,
            other_platforms=self.other_platforms,
            other_extras=_unchosen(declared, extras),
        )

    def _uv_pins(self, key: str) -> tuple[PackagePin, ...]:
        """Return the requirements of a list of `tool.uv` whose markers hold; one by address is an omission."""
        lines = "".join(f"{text}\n" for text in self.file.uv.get(key, []) if isinstance(text, str))
        recovered = parse_requirements(lines, self.file.path).recover(self.target)
        place = Location(self.file.path, self._line_of(key))
        self.omissions += (replace(omission, place=place) for omission in recovered.omissions)
        return tuple(replace(pin, places=(place,)) for pin in recovered.pins)

    def _account_for_uv(self) -> None:
        """Record the indexes of `tool.uv`, and list its keys that an entry does not express."""
        for index in self.file.uv.get("index", []):
            if isinstance(index, dict) and not index.get("explicit") and "url" in index:
                self.indexes.setdefault(str(index["url"]), Location(self.file.path, self._line_of("url")))
        for key in sorted(self.file.uv.keys() - uv_keys("taken") - uv_keys("silent")):
            why, fix = "an entry has no field for it", "lock the project (`uv lock`), and import its uv.lock"
            self.omissions.append(Omission(Location(self.file.path, self._line_of(key)), f"tool.uv.{key}", why, fix))

    def _line_of(self, key: str) -> int | None:
        pattern = re.compile(rf"\s*(?:\[+tool\.uv\.)?{re.escape(key)}\s*[=\].]")
        return next((at for at, line in enumerate(self.file.text.splitlines(), 1) if pattern.match(line)), None)

    def _read(self, item: Any) -> None:
        """Read an item of a table: a requirement, or the name of a group that the table includes."""
        if isinstance(item, dict) and isinstance(name := item.get("include-group"), str):
            if not self._select(_GROUP, name):
                message = f"the project has no dependency group {name}"
                self.errors.append(malformed(message, self._place(name), fix=_declared(self.file.tables, _GROUP)))
        elif isinstance(item, str):
            try:
                self._requirement(parse_requirement(item), self._place(item))
            except ValueError as error:
                self.errors.append(malformed(str(error), self._place(item)))
        else:
            self.errors.append(malformed(f"{str(item)[:70]!r} is not a requirement", Location(self.file.path)))

    def _requirement(self, requirement: Requirement, location: Location) -> None:
        """Record a requirement. Raises ValueError for a specifier that no version can satisfy."""
        specifier = ",".join(sorted(map(str, requirement.specifier))).replace("===", "==")
        parse_specifier(specifier)
        name = canonicalize_name(requirement.name)
        if not self.target.holds(str(requirement.marker) if requirement.marker else None):
            self.other_platforms += 1
        elif name == self.file.name:
            for extra in sorted(requirement.extras):
                if not self._select(_EXTRA, extra):
                    statement, fix = f"{name}[{extra}]", _declared(self.file.tables, _EXTRA)
                    self.omissions.append(
                        Omission(location, statement, "the project has no such extra", fix, is_package=True)
                    )
        else:
            declared = {"url": requirement.url} if requirement.url else self.file.sources.get(name)
            kind, address = _source(declared, self.target)
            extras = tuple(sorted(map(canonicalize_name, requirement.extras)))
            directory = self.file.path.parent / address if kind == "path" else self.file.members.get(name)
            if kind in ("git", "url") or (kind == "path" and directory and directory.is_file()):
                why = "it is not of an index, and an entry needs a commit's tree or a wheel of an index"
                fix = OWN_PACKAGE if kind == "path" or address.startswith("file:") else COMMIT
                self.omissions.append(Omission(location, redact(f"{name} of {address}"), why, fix, is_package=True))
            elif kind == "workspace" and not directory:
                why = "the workspace has no such member"
                self.omissions.append(Omission(location, f"{name} of the workspace", why, OWN_PACKAGE, is_package=True))
            else:
                index = self.file.indexes.get(address, address) if kind == "index" else ""
                self.indexes |= {index: location} if index else {}
                self.pins.append(PackagePin(name, specifier, (location,), extras, directory=directory, index=index))

    def _select(self, kind: str, name: str) -> bool:
        """Select a table, once, and return whether the file has it."""
        table = (kind, str(canonicalize_name(name)))
        if table in self.file.tables and table not in self.seen:
            self.seen.add(table)
            self.selected.append(table)
        return table in self.file.tables

    def _place(self, text: str) -> Location:
        return Location(self.file.path, self.lines.get(text))


def read_pyproject(
    path: Path, extras: Sequence[str] = (), groups: Sequence[str] = (), project: Path | None = None
) -> PyprojectFile:
    """Read a pyproject.toml of a project (default: its directory).

    It gives the dependencies of the project and of its `extras` and `groups`. Raises ProjectFileError.
    """
    text = read_text(path, project or path.parent)
    table = parse_toml(text, path)
    metadata, uv = _table(table, "project"), _table(_table(table, "tool"), "uv")
    tables = {_DEPENDENCIES: metadata.get("dependencies", [])}
    optional, grouped = _table(metadata, "optional-dependencies"), _table(table, "dependency-groups")
    for kind, named_lists in ((_EXTRA, optional), (_GROUP, grouped)):
        tables |= {(kind, str(canonicalize_name(name))): items for name, items in named_lists.items()}
    chosen = tuple((kind, name) for kind, names in ((_EXTRA, extras), (_GROUP, groups)) for name in _normalised(names))
    for kind, name in chosen:
        if (kind, name) not in tables:
            raise malformed(f"the project has no {kind} {name}", Location(path), fix=_declared(tables, kind))
    project_name, python, dynamic = (
        metadata.get("name"),
        metadata.get("requires-python", ""),
        metadata.get("dynamic", []),
    )
    if (
        not isinstance(python, str)
        or not isinstance(dynamic, list)
        or not all(isinstance(requirement_list, list) for requirement_list in tables.values())
    ):
        raise malformed("the table `project` is malformed", Location(path))
    setuptools = _table(_table(_table(table, "tool"), "setuptools"), "dynamic")
    files = _table(setuptools, "dependencies").get("file") if "dependencies" in dynamic else None
    dynamic_file = None
    if files:  # static, although setuptools reads them
        lines = "".join(f"-r {name}\n" for name in ([files] if isinstance(files, str) else files))
        dynamic_file = parse_requirements(lines, path, project)
    return PyprojectFile(
        path,
        text,
        str(canonicalize_name(project_name)) if isinstance(project_name, str) else None,
        tables,
        chosen,
        {str(canonicalize_name(package)): source for package, source in _table(uv, "sources").items()},
        {str(index.get("name")): str(index.get("url")) for index in uv.get("index", []) if isinstance(index, dict)},
        _members(uv, path, project or path.parent),
        uv,
        dynamic_file,
        is_dynamic=dynamic_file is None and ("project" not in table or "dependencies" in dynamic),
        is_package=isinstance(project_name, str) and bool(uv.get("package", "build-system" in table)),  # as for uv
        python=python,
    )


def _declared(tables: Mapping[_TableName, Sequence[Any]], kind: str) -> str:
    return f"it declares {', '.join(sorted(name for table_kind, name in tables if table_kind == kind)) or 'none'}"


def _normalised(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of extras or groups as PEP 685 and 735 compare them, each once."""
    return tuple(dict.fromkeys(str(canonicalize_name(name)) for name in names))


def _table(parent: dict[str, Any], name: str) -> dict[str, Any]:
    table = parent.get(name, {})
    return table if isinstance(table, dict) else {}


def _source(source: Any, target: MarkerTarget) -> tuple[str, str]:
    """Return the kind and the address of the entry of `tool.uv.sources` for a target; "" and "" for none."""
    for entry in source if isinstance(source, list) else [source]:
        marker = entry.get("marker") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or (isinstance(marker, str) and not target.holds(marker)):
            continue
        for kind in ("git", "url", "path", "workspace", "index"):
            if kind in entry:
                return kind, str(entry[kind])
    return "", ""


def _members(uv: Mapping[str, Any], path: Path, project: Path) -> dict[str, Path]:
    """Return the directories of the members of the workspace of a pyproject.toml, by name."""
    workspace = _table(dict(uv), "workspace")
    members, excluded = (
        {folder for pattern in workspace.get(key, []) for folder in path.parent.glob(pattern)}
        for key in ("members", "exclude")
    )
    folders = sorted(folder for folder in members - excluded if (folder / "pyproject.toml").is_file())
    return {name: folder for folder in folders if (name := project_name(folder, project))}


def _lines_of_texts(text: str) -> dict[str, int]:
    """Return the first line (from 1) of each quoted string of one line, except build requirements."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        table = line if line.startswith("[") else table
        for single, double in _QUOTED.findall(line) if "[build-system]" not in table else ():
            lines.setdefault(single or double, number)
    return lines
