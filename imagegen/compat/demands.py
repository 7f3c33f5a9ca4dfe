"""Read the demands of wheels from their scans; scans.py turns them into rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from packaging.version import Version

from imagegen.audit import gpu
from imagegen.audit.capability import driver_floor
from imagegen.compat import wheel_scans as scans
from imagegen.compat.package_data import entries_of, package_data
from imagegen.compat.scans import Demand, PackageDemands, WheelDemands
from imagegen.compat.wheel_scans import CAPABILITIES, PackageScans, ScannedLibrary, WheelScan, WheelVerdict

# Only the build of torch 2.6 for CUDA 12.6 has the new C++ ABI. Source: https://github.com/pytorch/pytorch/issues/142064
_FLIPPED, _FLIPPED_CUDA = "2.6", "12.6"
# A base's library -> the version that each system of matrices/systems.yaml with glibc has: CentOS 7 is the oldest.
_EVERYWHERE = {"glibc": Version("0"), "libstdcxx": Version("3.4.19")}
_BASE_LIBRARIES = {
    "glibc": ("GLIBC", "libc.so.6", "glibc"),
    "libstdcxx": ("GLIBCXX", "libstdc++.so.6", "the libstdc++ of GLIBCXX"),
}
_OF_CUDA = ("libcudart.so.", "libcublas.so.", "libnvrtc.so.")  # libraries whose names have the major of CUDA
_NO_LIBRARY = "RuntimeError: Configured CUDA binary not found"
_SYMBOL = "ImportError: undefined symbol"
_KERNEL = "CUDA error: no kernel image is available for execution on the device"
_PTX = "CUDA error: the provided PTX was compiled with an unsupported toolchain"


def load_demands(directories: Sequence[Path], package: str) -> PackageDemands | None:
    """Return the demands of a package by the scans of its wheels; None if it has none.

    Raises MatrixError for a file that cannot be read.
    """
    package_scans = scans.load(directories, package)
    return demands_of(package_scans) if package_scans else None


def demands_of(package_scans: PackageScans) -> PackageDemands:
    """Return the demands of the scanned wheels of a package; releases share equal demands."""
    shared_demands: dict[Demand, Demand] = {}
    ignored = {about for entry in entries_of("no-demands", package_scans.name) for about in entry["demands"]}
    optional = [entry.get("demands") for entry in entries_of("optional-demands", package_scans.name)]
    releases = {}
    for version, scan in package_scans.releases.items():
        demands = [demand for demand in _demands(package_scans.name, scan) if demand.about not in ignored]
        for position, demand in enumerate(demands):
            if any(listed is None or demand.about in listed for listed in optional):
                demands[position] = replace(demand, is_optional=True)
        shared = tuple(shared_demands.setdefault(demand, demand) for demand in demands)
        releases[version] = WheelDemands(scan.version, scan.filename, scan.sha256, scan.read, scan.verdict.cuda, shared)
    return PackageDemands(package_scans.name, releases)


def _demands(package: str, scan: WheelScan) -> Iterator[Demand]:
    verdict = scan.verdict
    entries = entries_of("library-for-each-cuda", package)
    if entries and Version(scan.version) < Version(entries[0]["until"]):
        yield from _of_cuda_releases(re.compile(entries[0]["library"]), scan.libraries)
    else:
        yield from _of_cuda(verdict, scan.libraries)
    yield from _of_libraries(scan.libraries)
    yield from _of_base(verdict, scan.libraries)
    yield from _of_torch(verdict)
    yield from _of_gpus(verdict, scan.libraries)
    yield from _of_drivers(verdict)


def _of_cuda(verdict: WheelVerdict, libraries: Iterable[ScannedLibrary]) -> Iterator[Demand]:
    if not verdict.cuda:
        return
    oldest, newest = verdict.cuda[0], verdict.cuda[-1]
    range_ = f"=={newest}.*" if oldest == newest else f">={oldest},<{newest + 1}"
    names = sorted({name for library in libraries for name in library.needed if name.startswith(_OF_CUDA)})
    majors = " or ".join(map(str, verdict.cuda))
    because = f"is compiled for CUDA {majors}: its wheel on PyPI needs {', '.join(names) or 'its libraries'}"
    message = f"ImportError: {names[0]}: cannot open shared object file: No such file or directory" if names else ""
    fix = f"Use a stack of CUDA {majors}"
    # A stack without CUDA may work without these libraries: that depends on the package.
    yield Demand("cuda", (("cuda", ">=1"),), (("cuda", range_),), (), because, message, fix)


def _of_libraries(libraries: Iterable[ScannedLibrary]) -> Iterator[Demand]:
    """Yield a demand for each distribution with a library that the package needs, and that torch does not require."""
    needed = {name for library in libraries if library.loaded for name in library.needed}
    inside = {library.path.rpartition("/")[2] for library in libraries}
    by_distribution: dict[str, list[str]] = {}
    for name in sorted(needed - inside):
        for entry in package_data()["cuda-libraries"]["distributions"]:
            if re.fullmatch(entry["library"], name):
                by_distribution.setdefault(entry["distribution"], []).append(name)
    for distribution, names in by_distribution.items():
        because = f"needs {', '.join(names)}, which its wheel on PyPI does not hold and no dependency brings"
        message = f"OSError: {names[0]}: cannot open shared object file: No such file or directory"
        fix = f"Also install {distribution}"
        yield Demand("library", (("cuda", ">=1"),), (), (), because, message, fix, ((distribution, ""),))


def _of_cuda_releases(path: re.Pattern[str], libraries: Iterable[ScannedLibrary]) -> Iterator[Demand]:
    matches = filter(None, (path.search(library.path) for library in libraries))
    releases = sorted({(int(match[1]), int(match[2])) for match in matches})
    if releases:
        shown = ", ".join(f"{major}.{minor}" for major, minor in releases)
        because = f"has libraries in its wheel on PyPI for CUDA {shown} alone, and loads the one of torch's CUDA"
        then = (("cuda", _one_of(releases)),)
        fix = "Use torch for one of these, or set BNB_CUDA_VERSION to one of the same major version"
        yield Demand("cuda", (("cuda", ">=1"),), then, (), because, _NO_LIBRARY, fix)


def _one_of(releases: Sequence[tuple[int, int]]) -> str:
    """Return the specifier of these releases of CUDA, sorted; a major version has at most ten minor ones."""
    (first, oldest), (last, newest) = releases[0], releases[-1]
    candidates = [divmod(number, 10) for number in range(first * 10 + oldest, last * 10 + newest)]
    gaps = [f"!={major}.{minor}.*" for major, minor in candidates if (major, minor) not in releases]
    return ",".join([f">={first}.{oldest}", f"<{last}.{newest + 1}", *gaps])


def _of_base(verdict: WheelVerdict, libraries: Iterable[ScannedLibrary]) -> Iterator[Demand]:
    """Yield the glibc and libstdc++ that a wheel needs, then newer ones that only its builds for some CUDA need."""
    used = [library for library in libraries if library.loaded or gpu.is_essential(library.path)]
    for name, always in (("glibc", verdict.glibc), ("libstdcxx", oldest_with(used, "libstdcxx"))):
        if always and Version(always) > _EVERYWHERE[name]:
            yield _base_demand(name, always)
        newest: dict[str, str] = {}  # release of CUDA -> version that the libraries for it need
        for library in used:
            if (cuda := gpu.cuda_of_build(library.path)) and (version := getattr(library, name)):
                newest[cuda] = max(newest.get(cuda, "0"), version, key=Version)
        for cuda, version in newest.items():
            if Version(version) > max(Version(always or "0"), _EVERYWHERE[name]):
                yield _base_demand(name, version, cuda)


def oldest_with(libraries: Iterable[ScannedLibrary], name: str) -> str:
    """Return the oldest "glibc" or "libstdcxx" with which libraries load; of several builds of one, any."""
    builds: dict[object, list[Version]] = {}
    for library in libraries:
        builds.setdefault(gpu.build_of(library.path), []).append(Version(getattr(library, name) or "0"))
    oldest = max(map(min, builds.values()), default=Version("0"))
    return str(oldest) if oldest else ""


def _base_demand(name: str, version: str, cuda: str = "") -> Demand:
    """Return the demand of a glibc or libstdc++; with a release of CUDA, of the libraries that only a torch for it
    loads.
    """
    family, file, spoken = _BASE_LIBRARIES[name]
    libraries = f"libraries for CUDA {cuda}" if cuda else "libraries"
    because = f"has {libraries} in its wheel on PyPI that need {family}_{version}"
    message = f"ImportError: /lib/x86_64-linux-gnu/{file}: version `{family}_{version}' not found"
    fix = f"Choose a base with {spoken} {version} or newer"
    when = (("cuda", f"=={cuda}.*"),) if cuda else ()
    about = f"{name}-cuda{cuda}" if cuda else name
    return Demand(about, when, ((name, f">={version}"),), (), because, message, fix)


def _of_torch(verdict: WheelVerdict) -> Iterator[Demand]:
    if not verdict.torch:  # built for a torch that the audit has no data about
        return
    first = verdict.torch[0]
    if verdict.later:
        because, fix = f"needs symbols that torch has from {first} on", f"Use torch {first} or newer"
    else:
        minors = (
            verdict.torch[0] if len(verdict.torch) == 1 else f"{', '.join(verdict.torch[:-1])} or {verdict.torch[-1]}"
        )
        because = f"is compiled for torch {minors}: every other minor lacks symbols that its libraries need"
        fix = f"Use torch {minors}"
    yield Demand("torch", (), (("torch", _range(verdict)),), (), because, _SYMBOL, fix)
    if verdict.strings == "old" and _FLIPPED in verdict.torch:
        because = (
            f"is compiled for the old C++ ABI; of torch {_FLIPPED}, the builds for CUDA {_FLIPPED_CUDA} and newer have "
            "the new one, and symbols with strings are missing"
        )
        fix = f"Take torch {_FLIPPED}.0 as PyPI has it, for CUDA 12.4"
        when, conflict = (("cuda", f">={_FLIPPED_CUDA}"),), (("torch", f"=={_FLIPPED}.*"),)
        yield Demand("c++-abi", when, (), conflict, because, _SYMBOL, fix)


def _range(verdict: WheelVerdict) -> str:
    """Return the minors as a specifier; a minor between the first and the last that lacks symbols is left out.

    A pre-release belongs to its minor version: NVIDIA's images have such.
    """
    first, last = verdict.torch[0], verdict.torch[-1]
    if first == last and not verdict.later:
        return f"=={first}.*"
    gaps = [f"!={minor}.*" for minor in _between(first, last) if minor not in verdict.torch]
    return ",".join([f">={first}.dev0", *([] if verdict.later else [f"<{_after(last)}.dev0"]), *gaps])


def _between(first: str, last: str) -> list[str]:
    major, _, start = first.partition(".")
    return [f"{major}.{number}" for number in range(int(start) + 1, int(last.partition(".")[2]))]


def _after(minor: str) -> str:
    major, _, second = minor.partition(".")
    return f"{major}.{int(second) + 1}"


def _of_gpus(verdict: WheelVerdict, libraries: Iterable[ScannedLibrary]) -> Iterator[Demand]:
    code = {library.path: _targets(library) for library in libraries}
    for run in _gpu_runs(verdict.lacks):
        path = verdict.lacks[run[0]]
        holds = ", ".join(code.get(path, ())) or "nothing"
        because = (
            f"has no code for compute capability {_span(run)}, nor PTX that would do: {path} in its wheel is for "
            f"{holds}"
        )
        conflict = (("gpu", _gpu_range(run)),)
        yield Demand(f"gpu-{run[0]}", (), (), conflict, because, _KERNEL, "Use a GPU that it has code for")


def _of_drivers(verdict: WheelVerdict) -> Iterator[Demand]:
    for run in _gpu_runs(verdict.compiles):
        floors = [floor for capability in run if (floor := _driver(verdict.compiles[capability]))]
        if len(floors) == len(run):
            cuda, driver = min(floors, key=lambda floor: int(floor[1]))
            because = (
                f"has for compute capability {_span(run)} only PTX of CUDA {cuda}, which a driver older than {driver} "
                "refuses to compile"
            )
            when, then = (("gpu", _gpu_range(run)),), (("driver", f">={driver}"),)
            fix = f"Update the NVIDIA driver to {driver} or newer"
            yield Demand(f"driver-{run[0]}", when, then, (), because, _PTX, fix)


@cache
def _driver(isa: str) -> tuple[str, str] | None:
    """Return the CUDA version of a PTX ISA, and the branch of drivers that comes with it."""
    major, _, minor = isa.partition(".")
    floor = driver_floor((int(major), int(minor)))
    return (floor[0], floor[1].partition(".")[0]) if floor else None


def _gpu_runs(values: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield runs of neighbours among the capabilities on which wheels are judged."""
    run: list[str] = []
    for capability in CAPABILITIES:
        if capability in values:
            run.append(capability)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _gpu_range(run: Sequence[str]) -> str:
    return f"=={run[0]}" if len(run) == 1 else f">={run[0]},<={run[-1]}"


def _span(run: Sequence[str]) -> str:
    return run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}"


def _targets(library: ScannedLibrary) -> list[str]:
    """Return the targets of a library: machine code, then PTX, each by number."""
    names = {target.partition("@")[0] for targets, _ in library.code for target in targets}
    return sorted(names, key=lambda name: (not name.startswith("sm_"), len(name.rstrip("af")), name))
