"""Contents of the wheels of a package on an index, release by release; scans_reader.py reads their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

from packaging.version import Version

from imagegen.compat import harvested
from imagegen.core.deferred import dataclass

# Compute capabilities of NVIDIA's GPUs since Maxwell on which a wheel is judged. Jetson and Thor are left out, because
# they take wheels for arm64, which are other files. Source: https://developer.nvidia.com/cuda/gpus, 2026-11.
CAPABILITIES = (
    *("5.0", "5.2", "6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0"),
    *("10.0", "10.3", "10.7", "12.0", "12.1"),
)


@dataclass(frozen=True)
class ScannedLibrary:
    """An ELF file of a wheel, for x86-64, as far as the audit judges by it. Tuples are sorted."""

    path: str  # relative to site-packages
    loaded: bool = False  # Python imports it, it is for torch to load, or another library of the wheel needs it
    needed: tuple[str, ...] = ()  # libraries that the wheel lacks, without the libraries of every Linux
    symbols: tuple[str, ...] = ()  # of torch's own, that the wheel does not define
    code: tuple[tuple[tuple[str, ...], int], ...] = ()  # targets, and how many containers have GPU code for just these
    glibc: str = ""  # the newest version of glibc that it names: "2.28"
    libstdcxx: str = ""  # likewise of libstdc++: "3.4.29"


@dataclass(frozen=True)
class WheelVerdict:
    """The audit's verdict on a wheel by itself; of GPUs, on the libraries without which the package does not work."""

    glibc: str = ""  # the oldest that its libraries load with; "" for any
    cuda: tuple[int, ...] = ()  # the major versions whose libraries it takes; none where it needs no such library
    torch: tuple[str, ...] = ()  # the minors known to the audit that have all its symbols of torch, oldest first
    later: bool = False  # whether the newest minor that the audit knows is one of them, so that later ones may be too
    strings: Literal["", "old", "new"] = ""  # the C++ ABI of the strings in its symbols of torch
    lacks: Mapping[str, str] = field(default_factory=dict)  # one of CAPABILITIES -> a library without code for it
    compiles: Mapping[str, str] = field(default_factory=dict)  # capability -> PTX ISA that the driver must compile


@dataclass(frozen=True)
class WheelScan:
    """The wheel of a release that was read, and the day of that."""

    version: str  # canonical
    filename: str
    sha256: str
    size: int  # bytes
    read: str
    libraries: tuple[ScannedLibrary, ...]  # by path
    verdict: WheelVerdict = field(default_factory=WheelVerdict)


@dataclass(frozen=True)
class PackageScans:
    """The scanned releases of a package, the oldest first; `since` is the day of the oldest release that counts."""

    name: str
    index: str
    since: str
    releases: Mapping[str, WheelScan] = field(default_factory=dict)

    def with_scans(self, scans: Iterable[WheelScan]) -> PackageScans:
        """Return the same with these scans, which replace the scans of their releases."""
        merged = {**self.releases, **{scan.version: scan for scan in scans}}
        return replace(self, releases={version: merged[version] for version in sorted(merged, key=Version)})


def _parse(raw: bytes, path: Path, package: str) -> PackageScans:
    from imagegen.compat.scans_reader import parse  # late: results of earlier runs stand for most files

    return parse(raw, path, package)


_FILES = harvested.Folder("scans", _parse)
load, names, path_of = _FILES.load, _FILES.names, _FILES.path_of
