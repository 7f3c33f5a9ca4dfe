"""Read matrices/scans/<package>.json; tools/harvest/scans_file.py has the format."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from packaging.version import Version
from pydantic import Field, ValidationError

from imagegen.compat import harvested
from imagegen.compat.wheel_scans import PackageScans, ScannedLibrary, WheelScan, WheelVerdict
from imagegen.core import data
from imagegen.core import types as t
from imagegen.core.data import parse_json
from imagegen.core.errors import Location, MatrixError
from imagegen.core.strict import Strict

T = TypeVar("T")
_RUN = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def parse(raw: bytes, path: Path | str = "<scans>", name: str | None = None) -> PackageScans:
    """Return the scans in a file's bytes; errors name `path`, and the file must be about package `name`.

    Raises MatrixError for anything that `dumps` does not write, up to order and white space.
    """
    try:
        table = _FileTable.model_validate(parse_json(raw.decode(), object_pairs_hook=data.unique_keys))
        if name and table.package != name:
            raise ValueError(f"it is about {table.package}")  # noqa: TRY301 - the parsers raise the same error
        return _scans(table)
    except ValidationError as error:
        raise _malformed(path, harvested.first_fault(error)[1]) from error
    except ValueError as error:  # no UTF-8 or JSON, a number that is too long, a key given twice
        raise _malformed(path, "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)) from error


def _malformed(path: Path | str, why: str) -> MatrixError:
    again = f"in a checkout delete it and run `python -m tools.harvest --scan {Path(path).stem}`"
    fix = f"restore it from version control, or {again}"
    return MatrixError(
        "this is not a file of wheel scans", code="matrix-scans-malformed", where=Location(path), why=why, fix=fix
    )


_Numbered = Annotated[str, Field(pattern=r"^([0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*)?$")]
_Node = Annotated[str, Field(pattern=r"^[0-9]{1,4}(\.[0-9]{1,4}){0,3}$")]
_Short = Annotated[str, Field(min_length=1, max_length=4096)]
_Capability = Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]$")]


class _LibraryTable(Strict):
    path: _Short
    loaded: bool = False
    needed: _Numbered = ""
    symbols: _Numbered = ""
    code: Annotated[str, Field(pattern=r"^([0-9]{1,6}:[0-9]{1,6}(,[0-9]{1,6}:[0-9]{1,6})*)?$")] = ""
    glibc: _Node | None = None
    libstdcxx: _Node | None = None


class _WheelTable(Strict):
    wheel: _Short
    sha256: t.Sha256
    size: t.Size
    read: t.Date
    libraries: _Numbered
    glibc: _Node | None = None
    cuda: list[Annotated[int, Field(ge=1, lt=1000)]] = []
    torch: list[Annotated[str, Field(pattern=r"^[0-9]{1,4}\.[0-9]{1,4}$")]] = []
    later: bool = False
    strings: Literal["", "old", "new"] = ""
    lacks: dict[_Short, list[_Capability]] = {}
    compiles: dict[Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")], list[_Capability]] = {}


class _FileTable(Strict):
    package: t.Distribution
    index: t.Name
    since: t.Date
    names: list[_Short]
    containers: list[_Numbered]
    libraries: list[_LibraryTable]
    releases: dict[t.CanonicalVersion, _WheelTable]


def _scans(table: _FileTable) -> PackageScans:
    containers = [tuple(sorted(_chosen(container, table.names))) for container in table.containers]
    libraries = [_read_library(library, table.names, containers) for library in table.libraries]
    releases = (
        _read_wheel(version, table.releases[version], libraries) for version in sorted(table.releases, key=Version)
    )
    return PackageScans(table.package, table.index, table.since, {release.version: release for release in releases})


def _read_library(table: _LibraryTable, names: Sequence[str], containers: Sequence[tuple[str, ...]]) -> ScannedLibrary:
    return ScannedLibrary(
        path=table.path,
        loaded=table.loaded,
        needed=tuple(sorted(_chosen(table.needed, names))),
        symbols=tuple(sorted(_chosen(table.symbols, names))),
        code=tuple(sorted(_counted(table.code, containers))),
        glibc=table.glibc or "",
        libstdcxx=table.libstdcxx or "",
    )


def _read_wheel(version: str, table: _WheelTable, libraries: Sequence[ScannedLibrary]) -> WheelScan:
    verdict = WheelVerdict(
        glibc=table.glibc or "",
        cuda=tuple(sorted(table.cuda)),
        torch=tuple(sorted(table.torch, key=Version)),
        later=table.later,
        strings=table.strings,
        lacks=_by_capability(table.lacks),
        compiles=_by_capability(table.compiles),
    )
    wheel_libraries = tuple(sorted(_chosen(table.libraries, libraries), key=lambda library: library.path))
    return WheelScan(version, table.wheel, table.sha256, table.size, table.read, wheel_libraries, verdict)


def _by_capability(grouped: Mapping[str, Collection[str]]) -> dict[str, str]:
    values = {capability: value for value, capabilities in grouped.items() for capability in capabilities}
    if len(values) < sum(map(len, grouped.values())):
        raise ValueError("a compute capability is listed twice")
    return {capability: values[capability] for capability in sorted(values, key=Version)}


def _chosen(text: str, among: Sequence[T]) -> list[T]:
    """Return the values that a set of numbers names. Raises ValueError for a number that is not there."""
    numbers = list(_numbers(text))
    if any(number >= len(among) for number in numbers):
        raise ValueError(f'"{text}" names a number that the file does not have')
    return [among[number] for number in numbers]


def _counted(text: str, containers: Sequence[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], int]]:
    for pair in filter(None, text.split(",")):
        number, _, count = pair.partition(":")
        (container,) = _chosen(number, containers)
        yield container, int(count)


def _numbers(text: str) -> Iterator[int]:
    for run in _RUN.finditer(text):
        first = int(run[1])
        yield from range(first, int(run[2] or first) + 1)
