"""Read a uv.lock, and select its packages for one machine without asking an index.

Sources: uv's documentation of the lockfile ("The lockfile format is not stable across major `version`s; `revision`s add
keys that older readers ignore"), and uv 0.13.8's crates/uv-resolver/src/lock. Markers are PEP 508's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from packaging.specifiers import SpecifierSet
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imagegen.compat import metadata
from imagegen.core import toml
from imagegen.core import types as t
from imagegen.core.errors import Location, LockError
from imagegen.core.net.package_index import upload_day

VERSION = 1  # of the format
_KINDS = ("registry", "git", "url", "path", "directory", "editable", "virtual")
# uv's spelling of a chosen extra or group, if a project declares that some of them conflict.
_CHOICE = re.compile(r"extra (==|!=) '([^']*)'")
_TRUE, _FALSE = "os_name == 'posix'", "os_name != 'posix'"


class _Table(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=lambda name: name.replace("_", "-"))


class UvSource(_Table):
    """The source of a distribution; exactly one of its keys but `subdirectory` is set."""

    registry: str | None = None  # address of an index
    git: str | None = None  # address?subdirectory=...&rev=...#commit
    url: str | None = None
    path: str | None = None  # of a file, relative to the project
    directory: str | None = None
    editable: str | None = None
    virtual: str | None = None  # a project that is not installed itself
    subdirectory: str | None = None

    @property
    def member(self) -> str | None:
        """The directory of a distribution that lies in the project itself, relative to it: "." is the project."""
        return self.editable or self.directory

    @property
    def commit(self) -> GitCommit | None:
        """The commit that `git` names. Raises ValueError for an address that names none."""
        if self.git is None:
            return None
        address = urlsplit(self.git)
        if not re.fullmatch(r"[0-9a-f]{40}", address.fragment):
            raise ValueError(f"{self.git!r} names no commit")
        folder = parse_qs(address.query).get("subdirectory", [""])[0]
        return GitCommit(address._replace(query="", fragment="").geturl(), address.fragment, folder.strip("/"))


@dataclass(frozen=True)
class GitCommit:
    """A commit (40 hex digits) of the repository at `url`, and the folder below which the distribution lies."""

    url: str
    commit: str
    subdirectory: str = ""


class Dependency(_Table):
    """An edge of the resolution. `version` and `source` are there where the file has several packages of the name."""

    name: str
    version: str | None = None
    source: UvSource | None = None
    extra: tuple[str, ...] = ()
    marker: str | None = None


class DistributionFile(_Table):
    """A wheel or an sdist."""

    url: str | None = None
    path: str | None = None
    filename: str | None = None
    hash: str | None = None  # "sha256:..."
    size: int | None = Field(default=None, ge=0)  # bytes; uv knows it of indexes that give it
    upload_time: str | None = None  # RFC 3339

    @property
    def uploaded(self) -> str | None:
        """The day of the upload, "2026-07-03", if the file states it."""
        day = upload_day(self.upload_time or "")
        return str(day) if day else None

    @property
    def name(self) -> str:
        """The file name."""
        return self.filename or unquote(urlsplit(self.url or self.path or "").path.rpartition("/")[2])


class UvPackage(_Table):
    """One distribution of the file, with its files and edges."""

    name: t.Distribution
    version: t.PackageVersion | None = None  # None: only the build backend of a member knows it
    source: UvSource
    resolution_markers: tuple[str, ...] = ()  # of the forks that it belongs to; none: of all
    dependencies: tuple[Dependency, ...] = ()
    optional_dependencies: Mapping[str, tuple[Dependency, ...]] = {}
    dev_dependencies: Mapping[str, tuple[Dependency, ...]] = {}
    sdist: DistributionFile | None = None
    wheels: tuple[DistributionFile, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name


class UvOverride(_Table):
    """A requirement that replaces all others of a package (`override-dependencies` of pyproject.toml)."""

    name: str
    specifier: str | None = None
    marker: str | None = None


class UvManifest(_Table):
    """The inputs of the resolution that no package of the file holds."""

    overrides: tuple[UvOverride, ...] = ()


class UvLock(_Table):
    """The whole file."""

    version: int
    requires_python: str
    supported_markers: tuple[str, ...] = ()
    package: tuple[UvPackage, ...] = ()
    manifest: UvManifest = UvManifest()


@dataclass(frozen=True)
class Root:
    """A distribution that is requested, with its extras and, for a member, its dependency groups."""

    name: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Selected:
    """A package of the selection. `via` names the distributions whose requirements brought it, sorted."""

    package: UvPackage
    via: tuple[str, ...]


def parse(text: str, where: str) -> UvLock:
    """Return the file's contents; `where` names it in errors. Raises LockError."""
    try:
        table = toml.loads(text)
        if (version := table.get("version")) != VERSION or isinstance(version, bool):
            message = f"format {version!r} of uv.lock is unknown"
            raise LockError(
                message,
                code="lock-uv-lock-malformed",
                where=where,
                why=f"this imagegen reads format {VERSION}",
                fix="`uv lock` of uv 0.13",
            )
        parsed = UvLock.model_validate(table)
        SpecifierSet(parsed.requires_python)
        for package in parsed.package:
            _require_valid(package)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise LockError(
            "uv.lock is malformed", code="lock-uv-lock-malformed", where=where, why=f"{path}: {first['msg']}"
        ) from error
    except ValueError as error:  # also of TOML, and of packaging
        line = Location(where, error.line) if isinstance(error, toml.TomlError) else where
        raise LockError("uv.lock is malformed", code="lock-uv-lock-malformed", where=line, why=str(error)) from error
    return parsed


def select(lock: UvLock, roots: Sequence[Root], python: str, machine: str, where: str) -> tuple[Selected, ...]:
    """Return the packages that the file installs for `roots` on CPython `python` ("3.12.6") on Linux, by name.

    `machine` is platform_machine: "x86_64". Raises LockError if the file is not for that interpreter or machine,
    lacks a root, an extra or a group, or gives two packages of one name.
    """
    return _Selection(lock, python, machine, where, _choices(roots)).run(roots)


def _require_valid(package: UvPackage) -> None:
    """Raise ValueError for a package whose source is none of uv's kinds."""
    kinds = [kind for kind in _KINDS if getattr(package.source, kind) is not None]
    if len(kinds) != 1:
        raise ValueError(f"{package}: its source names {' and '.join(kinds) or 'no place'}")
    _ = package.source.commit


def _choices(roots: Iterable[Root]) -> frozenset[str]:
    """The extras and groups of `roots`, as uv spells them in markers."""
    extras = (f"extra-{len(root.name)}-{root.name}-{extra}" for root in roots for extra in root.extras)
    groups = (f"group-{len(root.name)}-{root.name}-{group}" for root in roots for group in root.groups)
    return frozenset((*extras, *groups))


@dataclass(frozen=True)
class _Selection:
    lock: UvLock
    python: str
    machine: str
    where: str
    choices: frozenset[str]

    def run(self, roots: Sequence[Root]) -> tuple[Selected, ...]:
        self._require_target()
        selected: dict[str, UvPackage] = {}
        extras: dict[str, set[str]] = defaultdict(set)  # package -> those whose dependencies are in; "" is none
        via: dict[str, set[str]] = defaultdict(set)
        todo = [(self._root(entry), "") for entry in roots]
        todo += [(dependency, root.name) for root in roots for dependency in self._grouped(root)]
        while todo:
            required, asking = todo.pop()
            package = self._resolve(required)
            if selected.setdefault(package.name, package) != package:
                raise self._error(f"it installs both {selected[package.name]} and {package}")
            via[package.name] |= {asking} - {""}
            for extra in {"", *required.extra} - extras[package.name]:
                extras[package.name].add(extra)
                edges = package.optional_dependencies.get(extra, ()) if extra else package.dependencies
                todo += [(edge, package.name) for edge in edges if self._holds(edge.marker)]
        return tuple(
            Selected(selected[name], tuple(sorted(via[name] - {name})))
            for name in sorted(selected)
            if selected[name].source.virtual is None
        )

    @cached_property
    def _packages(self) -> dict[str, list[UvPackage]]:
        packages: dict[str, list[UvPackage]] = {}
        for package in self.lock.package:
            packages.setdefault(package.name, []).append(package)
        return packages

    def _require_target(self) -> None:
        try:
            fits = SpecifierSet(self.lock.requires_python).contains(self.python, prereleases=True)
        except ValueError:
            fits = False
        if not fits:
            raise self._error(f"it is for Python {self.lock.requires_python}, and the cell has {self.python}")
        if self.lock.supported_markers and not any(map(self._holds, self.lock.supported_markers)):
            raise self._error(f"it is not for Linux on {self.machine}")

    def _root(self, root: Root) -> Dependency:
        """`root` as an edge. Raises LockError for an extra that the distribution does not declare."""
        package = self._resolve(Dependency(name=root.name))
        if unknown := sorted(set(root.extras) - package.optional_dependencies.keys()):
            declared = ", ".join(sorted(package.optional_dependencies)) or "none"
            raise self._error(f"{root.name} has no extra {', '.join(unknown)}; it declares {declared}")
        return Dependency(name=root.name, extra=root.extras)

    def _grouped(self, root: Root) -> Iterator[Dependency]:
        package = self._resolve(Dependency(name=root.name))
        for group in root.groups:
            if group not in package.dev_dependencies:
                declared = ", ".join(sorted(package.dev_dependencies)) or "none"
                raise self._error(f"{root.name} has no dependency group {group}; it declares {declared}")
            yield from (
                dev_dependency
                for dev_dependency in package.dev_dependencies[group]
                if self._holds(dev_dependency.marker)
            )

    def _resolve(self, required: Dependency) -> UvPackage:
        packages = self._packages.get(required.name, [])
        fitting = [
            package
            for package in packages
            if required.version in (None, package.version)
            and required.source in (None, package.source)
            and (not package.resolution_markers or any(map(self._holds, package.resolution_markers)))
        ]
        if len(fitting) != 1:
            wrong = " and ".join(map(str, fitting)) or ("none for this machine" if packages else "none")
            raise self._error(f"of {required.name} it has {wrong}")
        return fitting[0]

    def _holds(self, marker: str | None) -> bool:
        if marker is None:
            return True

        def replace(match: re.Match[str]) -> str:
            return _TRUE if (match[2] in self.choices) == (match[1] == "==") else _FALSE

        try:
            holds = metadata.holds(_CHOICE.sub(replace, marker), self.python, self.machine, "")
        except (ValueError, RecursionError):  # packaging's InvalidMarker is a ValueError
            holds = None
        if holds is None:
            raise self._error(f"the marker {marker!r} cannot be evaluated")
        return holds

    def _error(self, why: str) -> LockError:
        fix = "correct `extras`, `groups` or the components of the image; or `uv lock` the project again"
        return mismatch(why, self.where, fix)


def mismatch(why: str, where: str, fix: str) -> LockError:
    """Return the error for a uv.lock at `where` that does not satisfy the cell."""
    return LockError("uv.lock does not answer this cell", code="lock-uv-lock-mismatch", where=where, why=why, fix=fix)


def sha256_of(file: DistributionFile, package: UvPackage, where: Location | str) -> str:
    """Return the file's sha256 as hex digits. Raises LockError where uv.lock names another hash, or none."""
    algorithm, _, digest = (file.hash or "").partition(":")
    if algorithm != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", digest):
        why = f"{package} cannot be locked without"
        raise LockError(f"uv.lock names no sha256 of {file.name}", code="lock-no-hash", where=where, why=why)
    return digest


def build_requires(pyproject: Mapping[str, Any]) -> tuple[str, ...]:
    """The requirements of a project's build backend (PEP 518), setuptools' where it names none."""
    system = pyproject.get("build-system", {})
    return tuple(system.get("requires", ["setuptools"]))
