"""Wheel scans of releases: select a wheel of each release, condense its scan, and judge it by the audit. No I/O.

`published` reads the wheels from the index; `matrices/scans/` has the results.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.audit import gpu, torch_exports, torch_rule
from imagegen.audit.catalogue import cuda_major, is_standard
from imagegen.audit.gpu import is_essential, is_loaded
from imagegen.audit.model import CodeGroup, CodeTarget, Elf, File, Package, required_name
from imagegen.audit.tags import for_another_python
from imagegen.audit.torch_rule import has_new_string, has_old_string
from imagegen.audit.torch_users import X86_64, find_torch_user
from imagegen.compat.demands import oldest_with
from imagegen.compat.wheel_scans import CAPABILITIES, PackageScans, ScannedLibrary, WheelScan, WheelVerdict
from imagegen.core.errors import FetchError
from imagegen.core.gpu import Gpu
from imagegen.core.net.package_index import IndexLink
from imagegen.core.types import minor

SINCE = "2024-07-01"  # the oldest releases that stacks of the field still hold
PYTHON = "3.12"  # modules for other interpreters are left out
_ENOUGH = 0.5  # share of an essential library's containers that must run if all of them are PTX
_PYTHONS = ("3.12", "3.11", "3.10", "3.9", "3.8", "3.13", "3.14")  # a wheel for the first of these is read
_TAG = re.compile(r"(cp|py)3(\d*)")
_TARGET = re.compile(r"(sm|compute)_(\d{2,3})([af]?)(?:@(\d+)\.(\d+))?")
_VARIANTS: Mapping[str, Literal["", "a", "f"]] = {"": "", "a": "a", "f": "f"}


@dataclass(frozen=True)
class ReleasedWheel:
    """The wheel of a release that is read for it."""

    version: str  # canonical
    link: IndexLink
    sha256: str


def wheels(package: str, since: str, links: Iterable[IndexLink]) -> list[ReleasedWheel]:
    """Return one wheel for x86-64 Linux of each final release since a day ("2024-07-01"), the oldest release first.

    It is one that CPython 3.12 takes, else one for the nearest older CPython. Raises FetchError where the index does
    not give its sha256, or no upload times.
    """
    candidates: dict[Version, tuple[int, IndexLink]] = {}
    for link in links:
        try:
            name, version, _, tags = parse_wheel_filename(link.filename)
        except ValueError:
            continue
        rank = min((rank for tag in tags if (rank := _rank(tag)) is not None), default=None)
        if name != package or rank is None or version.is_prerelease or link.yanked:
            continue
        if link.uploaded is None:
            why = "the index does not say when its files were uploaded"
            raise FetchError(f"{package} cannot be scanned", code="fetch-no-upload-times", why=why)
        if str(link.uploaded) >= since and (
            version not in candidates or (rank, link.filename) < _place(candidates[version])
        ):
            candidates[version] = rank, link
    return [_wheel(version, candidates[version][1]) for version in sorted(candidates)]


def _place(candidate: tuple[int, IndexLink]) -> tuple[int, str]:
    return candidate[0], candidate[1].filename


def _wheel(version: Version, link: IndexLink) -> ReleasedWheel:
    if link.sha256 is None:
        raise FetchError(f"the index does not give the sha256 of {link.filename}", code="fetch-no-digest")
    return ReleasedWheel(str(version), link, link.sha256)


def _rank(tag: Tag) -> int | None:
    """Return the place of a wheel's tag among those that may be read, the best is 0; None for others."""
    match = _TAG.fullmatch(tag.interpreter)
    linux = tag.platform.endswith("_x86_64") and tag.platform.startswith(("manylinux", "linux"))
    threaded = tag.abi.startswith("cp") and tag.abi.endswith("t")
    if not match or not linux or threaded:
        return None
    if tag.abi == "abi3" or match[1] == "py":
        return 0 if int(match[2] or 0) <= int(PYTHON.partition(".")[2]) else None
    python = f"3.{match[2]}"
    return _PYTHONS.index(python) if python in _PYTHONS else None


def condense(package: Package) -> tuple[ScannedLibrary, ...]:
    """Return the libraries of a wheel that Python or torch load or that have GPU code, sorted by path."""
    files = {
        path: (file, file.elf)
        for path, file in sorted(package.files.items())
        if file.elf and file.elf.machine == X86_64 and not file.elf.program and not for_another_python(path, PYTHON)
    }
    packaged = {posixpath.basename(path) for path in files} | {elf.soname for _, elf in files.values()}
    needed = {name for _, elf in files.values() for name in elf.needed}
    uses = find_torch_user(package, PYTHON, X86_64)
    symbols = uses.required if uses else {}
    libraries = []
    for path, (file, elf) in files.items():
        loaded = is_loaded(path, elf, needed)
        if loaded or file.code or is_essential(path):
            libraries.append(
                ScannedLibrary(
                    path=path,
                    loaded=loaded,
                    needed=tuple(sorted(name for name in elf.needed if name not in packaged and not is_standard(name))),
                    symbols=tuple(sorted(symbols.get(path, ()))),
                    code=tuple(sorted((_texts(group), group.count) for group in file.code)),
                    glibc=_newest(elf, "GLIBC_"),
                    libstdcxx=_newest(elf, "GLIBCXX_"),
                )
            )
    return tuple(libraries)


def _texts(group: CodeGroup) -> tuple[str, ...]:
    return tuple(sorted(map(_text, group.targets)))


def _text(target: CodeTarget) -> str:
    kind = "sm" if target.kind == "sass" else "compute"
    return f"{kind}_{target.arch}{target.variant}" + (f"@{target.isa[0]}.{target.isa[1]}" if target.isa else "")


def _newest(elf: Elf, family: str) -> str:
    nodes = {node for nodes in elf.requires.values() for node in nodes}
    versions = {node.removeprefix(family) for node in nodes if re.fullmatch(rf"{family}\d+(\.\d+)*", node)}
    return max(versions, key=Version, default="")


def judge(package: str, libraries: Iterable[ScannedLibrary]) -> WheelVerdict:
    """Return the audit's verdict on a wheel of a package, from its libraries."""
    scanned = tuple(libraries)
    used = [library for library in scanned if library.loaded or is_essential(library.path)]
    fit = torch_rule.fits(_package(package, scanned), PYTHON)
    symbols = [symbol for library in scanned for symbol in library.symbols]
    lacks, compiles = _on_gpus([library for library in scanned if is_essential(library.path)])
    return WheelVerdict(
        glibc=oldest_with(used, "glibc"),
        cuda=_majors(used),
        torch=fit.minors if fit else (),
        later=bool(fit and minor(torch_exports.shipped().releases[-1]) in fit.minors),
        strings="new" if any(map(has_new_string, symbols)) else "old" if any(map(has_old_string, symbols)) else "",
        lacks=lacks,
        compiles=compiles,
    )


def judged(scans: PackageScans) -> PackageScans:
    """Return the scans with the verdicts of today's audit."""
    again = (replace(release, verdict=judge(scans.name, release.libraries)) for release in scans.releases.values())
    return scans.with_scans(again)


def scan(wheel: ReleasedWheel, package: Package, size: int, today: str) -> WheelScan:
    """Return the scan of a wheel of `size` bytes; `package` has its files."""
    libraries = condense(package)
    verdict = judge(package.name, libraries)
    return WheelScan(wheel.version, wheel.link.filename, wheel.sha256, size, today, libraries, verdict)


def _builds(libraries: Iterable[ScannedLibrary]) -> Iterator[list[ScannedLibrary]]:
    """Yield the libraries that are builds of one: of these, a process loads one."""
    groups: dict[object, list[ScannedLibrary]] = {}
    for library in libraries:
        groups.setdefault(gpu.build_of(library.path), []).append(library)
    yield from groups.values()


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("."))) if text else ()


def _majors(libraries: Iterable[ScannedLibrary]) -> tuple[int, ...]:
    """Return the major versions of CUDA that libraries need; several where there are builds for each."""
    return tuple(sorted({major[1] for library in libraries for name in library.needed if (major := cuda_major(name))}))


def _on_gpus(essential: Iterable[ScannedLibrary]) -> tuple[dict[str, str], dict[str, str]]:
    """Return capability -> a library that has no code for it, and capability -> PTX ISA that must be compiled."""
    groups = [[(library.path, _groups(library)) for library in group if library.code] for group in _builds(essential)]
    lacks: dict[str, str] = {}
    compiles: dict[str, str] = {}
    for capability in CAPABILITIES:
        target = Gpu(capability, capability, "", ())
        for group in filter(None, groups):
            uses = {path: gpu.use(code, target, None) for path, code in group}
            path, best = max(uses.items(), key=lambda item: (item[1].native, item[1].usable))
            if gpu.is_useless(best) or (not best.native and best.usable < best.count * _ENOUGH):
                lacks.setdefault(capability, path)
            elif not best.native and best.isa:
                isa = f"{best.isa[0]}.{best.isa[1]}"
                compiles[capability] = max(compiles.get(capability, ""), isa, key=_version)
    return lacks, {capability: isa for capability, isa in compiles.items() if capability not in lacks}


def _package(name: str, libraries: Iterable[ScannedLibrary]) -> Package:
    files = {
        library.path: File(0, elf=Elf(X86_64, needed=library.needed, undefined=frozenset(library.symbols)))
        for library in libraries
    }
    return Package(required_name(name), "", files)


def _groups(library: ScannedLibrary) -> tuple[CodeGroup, ...]:
    return tuple(
        CodeGroup(tuple(sorted(map(_target, targets))), count, (0,) * len(targets)) for targets, count in library.code
    )


@cache
def _target(text: str) -> CodeTarget:
    match = _TARGET.fullmatch(text)
    if not match:
        raise ValueError(f'"{text}" is not a target of GPU code')
    isa = (int(match[4]), int(match[5])) if match[4] else None
    return CodeTarget("sass" if match[1] == "sm" else "ptx", int(match[2]), _VARIANTS[match[3]], isa)
