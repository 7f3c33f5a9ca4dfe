"""matrices/metadata/<package>.json: package metadata from an index, release by release, for use without network.

`imagegen harvest` writes these files; only `since` and `extras` are edited. One line per release, newest first, so that
a new release is one new line in a diff.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator, Field, ValidationError

from imagegen.core import data
from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.errors import Location, MatrixError
from imagegen.core.types import Strict
from imagegen.plan.matrix import harvested

FOLDER = "metadata"  # below a directory of matrices
_LONGEST_TAG = 255  # characters, as of a file's name: the tags of a name are the product of its parts


@dataclass(frozen=True)
class ReleaseMetadata:
    """One version as the index has it, for Linux on x86_64 and aarch64.

    `requires` are PEP 508 strings, sorted, without those of extras; None if only an sdist exists, because its
    requirements are unknown until its code runs. `wheels` are the tags of file names, in their compressed form
    ("cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64"); with none, the release is built from source.
    """

    version: str  # canonical: "0.8.5.post1"
    uploaded: str | None  # the day of its first file, "2026-07-03", where the index tells it
    python: str  # PEP 440 specifier, "" for any
    requires: tuple[str, ...] | None
    wheels: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of those asked for: what each adds
    cuda: str | None = None  # "12.8": the CUDA runtime that it pins; None where it pins none
    yanked: bool = False


@dataclass(frozen=True)
class PackageReleases:
    """The harvested releases of a package. `since` and `extras` are the input of a harvest, all else its result."""

    name: str  # normalised
    index: str  # alias: "pypi"
    read: str | None  # the day on which the index last said something new; None before the first harvest
    since: str | None  # the oldest version that is kept; None for all
    extras: tuple[str, ...]  # whose requirements are kept, sorted
    releases: Mapping[str, ReleaseMetadata]  # by version, the newest first


@cache
def holds(marker: str, python: str, machine: str, extra: str) -> bool | None:
    """Return whether a marker holds for a full version of CPython on Linux; None where that is unknown."""
    environment = {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
        "extra": extra,
    }
    try:
        return Marker(marker).evaluate(environment)
    except (UndefinedComparison, UndefinedEnvironmentName):
        return None


def load(directories: Sequence[Path], package: str) -> PackageReleases | None:
    """Return the metadata of a package from the last directory that has it; None where none has.

    Raises MatrixError for a file that cannot be read.
    """
    return harvested.load(directories, f"{FOLDER}/{package}.json", lambda raw, path: parse(raw, path, package))


def names(directories: Iterable[Path]) -> list[str]:
    """The packages that have a file, sorted."""
    return harvested.packages(directories, FOLDER)


def pinned_prereleases(packages: Iterable[PackageReleases]) -> dict[str, frozenset[Version]]:
    """Return package -> pre-releases that releases of the packages require exactly, as `transformers==5.0.0rc0`."""
    texts = {text for package in packages for release in package.releases.values() for text in _requirements(release)}
    found: dict[str, set[Version]] = {}
    for parsed in map(t.parse_requirement, sorted(texts)):
        pins = (each.version for each in parsed.specifier if each.operator == "==" and "*" not in each.version)
        if early := {version for version in map(Version, pins) if version.is_prerelease}:
            found.setdefault(canonicalize_name(parsed.name), set()).update(early)
    return {name: frozenset(versions) for name, versions in found.items()}


def _requirements(release: ReleaseMetadata) -> Iterator[str]:
    yield from release.requires or ()
    for added in release.extras.values():
        yield from added


def path_of(directory: Path, package: str) -> Path:
    return directory / FOLDER / f"{package}.json"


def dumps(package: PackageReleases) -> bytes:
    """The file of a package: the same bytes for the same facts, whatever order they came in."""
    newest_first = sorted(package.releases.values(), key=lambda release: Version(release.version), reverse=True)
    lines = [f"    {json.dumps(each.version)}: {json.dumps(_table(each))}" for each in newest_first]
    head: dict[str, Any] = {"package": package.name, "index": package.index, "read": package.read}
    head |= {"since": package.since} if package.since else {}
    head |= {"extras": sorted(package.extras)} if package.extras else {}
    top = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    versions = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
    return f'{{\n{top}  "versions": {versions}\n}}\n'.encode()


def write(package: PackageReleases, path: Path) -> None:
    """Replace the file at once, or leave it as it was. Raises MatrixError when it cannot be written."""
    harvested.write(path, dumps(package))


def _table(release: ReleaseMetadata) -> dict[str, Any]:
    table: dict[str, Any] = {"uploaded": release.uploaded} if release.uploaded else {}
    table |= {"python": release.python} if release.python else {}
    table["requires"] = None if release.requires is None else sorted(release.requires)
    table |= (
        {"extras": {name: sorted(release.extras[name]) for name in sorted(release.extras)}} if release.extras else {}
    )
    table |= {"wheels": sorted(release.wheels)} if release.wheels else {}
    table |= {"cuda": release.cuda} if release.cuda else {}
    return table | ({"yanked": True} if release.yanked else {})


def parse(raw: bytes, path: Path | str = "<metadata>", name: str | None = None) -> PackageReleases:
    """The package in a file's bytes; `path` is named in errors, `name` is what the file must be about.

    Raises MatrixError for anything but what `dumps` writes, up to order and white space.
    """
    try:
        found = _FileTable.model_validate(json.loads(raw.decode(), object_pairs_hook=data.unique_keys))
        if name and found.package != name:
            raise ValueError(f"it is about {found.package}")  # noqa: TRY301 - as what the parsers raise
    except json.JSONDecodeError as error:
        where = Location(path, error.lineno, error.colno)
        raise MatrixError(
            "this is not valid JSON", code="matrix-metadata-malformed", where=where, why=error.msg, fix=_fix(path)
        ) from error
    except ValidationError as error:
        first = min(error.errors(), key=lambda each: each["type"] == "missing")  # a misspelt key is two errors
        what = " > ".join(str(part) for part in first["loc"]) or "all of it"
        why = f"{what}: {first['msg'].removeprefix('Value error, ')}"
        raise _malformed(Location(path, _line(raw, first["loc"])), why) from error
    except (ValueError, RecursionError) as error:  # ValueError: no UTF-8, a number that is too long, a key given twice
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise _malformed(Location(path), why) from error
    newest_first = sorted(found.versions, key=Version, reverse=True)
    return PackageReleases(
        name=found.package,
        index=found.index,
        read=found.read,
        since=found.since,
        extras=tuple(sorted(found.extras)),
        releases={version: _release(version, found.versions[version]) for version in newest_first},
    )


def _malformed(where: Location, why: str) -> MatrixError:
    return MatrixError(
        "this is not harvested metadata",
        code="matrix-metadata-malformed",
        where=where,
        why=why,
        fix=_fix(where.file),
    )


def _fix(path: Path | str) -> str:
    return f"restore it from version control, or delete it and run `imagegen harvest {Path(path).stem}`"


def _line(raw: bytes, path: tuple[int | str, ...]) -> int | None:
    """The line of the version, or of the key, that `path` leads to."""
    key = path[1] if path[:1] == ("versions",) and len(path) > 1 else path[0] if path else None
    before, found, _ = raw.partition(json.dumps(key).encode() + b":")
    return before.count(b"\n") + 1 if found else None


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is not a PEP 440 version specifier') from error
    return text


@cache
def _tag(text: str) -> str:
    if len(text) > _LONGEST_TAG or text.count("-") != 2 or not parse_tag(text):
        raise ValueError(f'"{text}" is not the tag of a wheel')
    return text


def _requirement(text: str) -> str:
    t.parse_requirement(text)
    return text


_Requirement = Annotated[str, AfterValidator(_requirement)]  # of any package: it may have a URL


class _ReleaseTable(Strict):
    uploaded: t.Date | None = None
    python: Annotated[str, AfterValidator(_specifier)] = ""
    requires: list[_Requirement] | None
    extras: dict[t.Distribution, list[_Requirement]] = {}
    wheels: list[Annotated[str, AfterValidator(_tag)]] = []
    cuda: Annotated[str, Field(pattern="^[0-9]{1,4}[.][0-9]{1,4}$")] | None = None
    yanked: bool = False


class _FileTable(Strict):
    package: t.Distribution
    index: t.Name
    read: t.Date | None = None
    since: t.CanonicalVersion | None = None
    extras: list[t.Distribution] = []
    versions: dict[t.CanonicalVersion, _ReleaseTable]


def _release(version: str, table: _ReleaseTable) -> ReleaseMetadata:
    return ReleaseMetadata(
        version=version,
        uploaded=table.uploaded,
        python=table.python,
        requires=None if table.requires is None else tuple(sorted(table.requires)),
        wheels=tuple(sorted(table.wheels)),
        extras={name: tuple(sorted(table.extras[name])) for name in sorted(table.extras)},
        cuda=table.cuda,
        yanked=table.yanked,
    )


# The choice between PyPI and a publisher's index, which have builds for different CUDAs.

_ANY = ">=0.dev0"  # the empty specifier would admit arbitrary strings too


class AmbiguousBuildError(ValueError):
    """Some releases that a specifier admits are on PyPI for the cell's CUDA, and others are not known to be."""


def is_pypi_build(specifier: str, cuda: str, harvested: PackageReleases | None) -> bool:
    """Return whether PyPI's releases of the `harvested` package are built for CUDA version `cuda` ("12.8").

    That is so if it is so for every release that the PEP 440 `specifier` admits, by the CUDA runtime that its own
    metadata pins. Patch releases of a harvested minor version count as harvested. Without metadata of any admitted
    release for `cuda` the answer is False: the publisher's own index has builds for every CUDA.

    Raises AmbiguousBuildError when the answer is not the same for all admitted releases.
    """
    releases = harvested.releases.values() if harvested else ()
    allowed = SpecifierSet(specifier or _ANY, prereleases=True)
    admitted = [each for each in releases if each.version in allowed and not each.yanked]
    fitting = [each.version for each in admitted if each.cuda == cuda]
    if not fitting:
        return False
    others = [each.version for each in admitted if each.cuda != cuda]
    versions = [Version(each.version) for each in releases]
    first, last = min(versions), max(versions)
    known = SpecifierSet(f">={first.major}.{first.minor}.dev0,<{last.major}.{last.minor + 1}.dev0", prereleases=True)
    if not allowed.to_range().is_subset(known.to_range()):
        others.append("releases that are not harvested")
    if others:
        raise AmbiguousBuildError(
            f"{', '.join(fitting)} are built for CUDA {cuda} on PyPI, {', '.join(others)} are not"
        )
    return True
