"""Write matrices/scans/<package>.json: contents of the wheels of a package on an index, release by release.

`tools.harvest --scan` writes these files; only `since` is edited. Repeated values are written once: a
name (of a library, of a symbol, or of a target of GPU code, "sm_80" and "compute_90@8.7" with the PTX ISA), a container
of GPU code, and a library. They are numbered from 0 in the order of their first appearance, from the oldest release on,
and sets of them are texts: "0-3,7"; "2:31" are 31 containers of number 2. So a new release adds lines at the end of
each table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from packaging.version import Version

from imagegen.compat import harvested
from imagegen.compat.wheel_scans import PackageScans, ScannedLibrary, WheelScan
from imagegen.core.text import runs

T = TypeVar("T")


def write(scans: PackageScans, path: Path) -> None:
    """Replace the file at once, or leave it as it was. Raises MatrixError when it cannot be written."""
    harvested.write(path, dumps(scans))


def dumps(scans: PackageScans) -> bytes:
    """Return the file of a package. Equal scans give equal bytes, in any order."""
    ordered = sorted(scans.releases.values(), key=lambda release: Version(release.version))
    names, containers, libraries = _Numbers[str](), _Numbers[str](), _Numbers[str]()
    releases = {}
    for scan in ordered:
        numbers = [
            libraries.of(json.dumps(_library(library, names, containers)))
            for library in sorted(scan.libraries, key=lambda library: library.path)
        ]
        releases[scan.version] = _wheel(scan) | {"libraries": _runs(numbers)}
    head = {"package": scans.name, "index": scans.index, "since": scans.since}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines += [
        f'  "names": {_lines("[]", map(json.dumps, names))}',
        f'  "containers": {_lines("[]", map(json.dumps, containers))}',
        f'  "libraries": {_lines("[]", libraries)}',
        f'  "releases": {_lines("{}", (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in releases.items()))}',
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


class _Numbers(dict[T, int]):
    """Numbers of values, in the order of their first appearance."""

    def of(self, value: T) -> int:
        return self.setdefault(value, len(self))

    def set_of(self, values: Iterable[T]) -> str:
        return _runs(map(self.of, values))


def _library(library: ScannedLibrary, names: _Numbers[str], containers: _Numbers[str]) -> dict[str, Any]:
    sets = {
        "needed": names.set_of(sorted(library.needed)),
        "symbols": names.set_of(sorted(library.symbols)),
        "code": ",".join(f"{containers.of(names.set_of(sorted(targets)))}:{count}" for targets, count in library.code),
    }
    texts = {"glibc": library.glibc, "libstdcxx": library.libstdcxx}
    table: dict[str, Any] = {"path": library.path} | ({"loaded": True} if library.loaded else {})
    return table | {key: text for key, text in {**sets, **texts}.items() if text}


def _wheel(scan: WheelScan) -> dict[str, Any]:
    verdict = scan.verdict
    table: dict[str, Any] = {"wheel": scan.filename, "sha256": scan.sha256, "size": scan.size, "read": scan.read}
    table |= {"glibc": verdict.glibc} if verdict.glibc else {}
    table |= {"cuda": list(verdict.cuda)} if verdict.cuda else {}
    table |= {"torch": list(verdict.torch)} if verdict.torch else {}
    table |= {"later": True} if verdict.later else {}
    table |= {"strings": verdict.strings} if verdict.strings else {}
    table |= {"lacks": _grouped(verdict.lacks)} if verdict.lacks else {}
    return table | ({"compiles": _grouped(verdict.compiles)} if verdict.compiles else {})


def _grouped(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Return value -> its capabilities."""
    grouped: dict[str, list[str]] = {}
    for capability in sorted(values, key=Version):
        grouped.setdefault(values[capability], []).append(capability)
    return grouped


def _lines(brackets: str, items: Iterable[str]) -> str:
    lines = list(items)
    return brackets[0] + "\n    " + ",\n    ".join(lines) + "\n  " + brackets[1] if lines else brackets


def _runs(numbers: Iterable[int]) -> str:
    """Return a set of numbers as text: "0-3,7"."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs(sorted(set(numbers))))
