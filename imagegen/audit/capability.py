"""GPU code compatibility: which code runs on which GPU, the driver that it needs, and the oldest supported driver.

The rules are NVIDIA's. Machine code (SASS) for sm_XY runs on its own major version from its minor version on; an `a`
target on its GPU alone, an `f` target on its family, which is the same major version from its minor version on. PTX for
compute_XY is compiled by the driver for any GPU of XY or above, if the driver's PTX ISA is not older than the code's.
Source: CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and "Family-Specific Features";
2026-11-21: 12 cubins, 12 PTX modules and 8 fat binaries behaved so on an H200 with a driver of CUDA 13.0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from imagegen.audit.catalogue import cuda_major, data
from imagegen.audit.model import CodeTarget, Finding, Package, Severity, Subject, few

Isa = tuple[int, int]
Verdict = Literal["sass", "ptx", "no"]


class PtxVersion(NamedTuple):
    """A PTX ISA version with the first CUDA release that has it, and that release's driver."""

    isa: Isa
    cuda: str  # "13.0"
    driver: str  # "580.65.06"


def runs(targets: Iterable[CodeTarget], capability: str, driver_isa: Isa | None = None) -> Verdict:
    """Return how a container with code for `targets` runs on a GPU of `capability` ("9.0"): natively, by PTX, or not.

    `driver_isa` is the newest PTX that the driver compiles; None stands for a driver that compiles all.
    """
    return _runs(tuple(targets), capability, driver_isa)


@lru_cache(maxsize=1 << 16)
def _runs(targets: tuple[CodeTarget, ...], capability: str, driver_isa: Isa | None) -> Verdict:
    here = arch(capability)
    fitting = [target for target in targets if _fits(target, here)]
    if any(target.kind == "sass" for target in fitting):
        return "sass"
    return "ptx" if any(_compiles(target, driver_isa) for target in fitting) else "no"


def isa_needed(targets: Iterable[CodeTarget], capability: str) -> Isa | None:
    """The oldest PTX ISA among those of `targets` that fit the GPU; None where none fits or none says."""
    here = arch(capability)
    fitting = [each.isa for each in targets if each.kind == "ptx" and each.isa and _fits(each, here)]
    return min(fitting, default=None)


def arch(capability: str) -> int:
    """The number that an architecture is called by: 90 for "9.0", 121 for "12.1"."""
    major, _, minor = capability.partition(".")
    return int(major) * 10 + int(minor or 0)


def driver_floor(isa: Isa) -> tuple[str, str] | None:
    """The oldest CUDA release whose driver compiles this PTX, and that driver; None: newer than all that are known."""
    return next(((each.cuda, each.driver) for each in releases() if each.isa >= isa), None)


def compiled_by(driver: str) -> Isa | None:
    """The newest PTX ISA that a driver ("580.65.06", or "580" for its branch) compiles.

    Drivers of one branch count as one: a promise is often no more exact. One that is older than all that are known
    compiles nothing, (0, 0). None: nothing is known of this driver, or it is newer than all that are known.
    """
    branch = _branch(driver)
    if branch is None or branch > (_branch(releases()[-1].driver) or 0):
        return None
    return max((each.isa for each in releases() if (_branch(each.driver) or 0) <= branch), default=(0, 0))


def driver_for(major: int, driver: str) -> int | None:
    """The oldest branch of drivers for a major version of CUDA, if `driver` is of an older one; None: it will do."""
    needed: int = data("gpu")["majors"]["drivers"].get(major, 0)
    given = _branch(driver)
    return needed if given is not None and given < needed else None


@cache
def releases() -> tuple[PtxVersion, ...]:
    """Return the known PTX ISA versions, oldest first."""
    rows = [PtxVersion(_isa(row["isa"]), row["cuda"], row["driver"]) for row in data("gpu")["ptx"]["releases"]]
    return tuple(sorted(rows))


def _fits(target: CodeTarget, here: int) -> bool:
    made_for = data("gpu")["renamed"]["architectures"].get(target.arch, target.arch)
    if target.variant == "a":
        return bool(here == made_for)
    if target.kind == "ptx" and not target.variant:
        return bool(here >= made_for)
    return bool(here // 10 == made_for // 10 and here >= made_for)


def _compiles(target: CodeTarget, driver_isa: Isa | None) -> bool:
    return driver_isa is None or target.isa is None or target.isa <= driver_isa


def _isa(text: str) -> Isa:
    major, minor = text.split(".")
    return int(major), int(minor)


def _branch(driver: str) -> int | None:
    first = driver.partition(".")[0]
    return int(first) if first.isdecimal() else None


# Check that the oldest supported driver runs the CUDA version that a stack was built with.
#
# Programs of one CUDA major version run on all drivers from that version's first branch on; the runtime refuses older
# drivers. If torch is present, its CUDA version decides: other libraries may be variants that are never loaded.

_SHOWN = 12  # lines of details
_RUNTIME = "cudart"


def check(subject: Subject) -> Iterator[Finding]:
    """Yield one finding for each major version of CUDA that the promised driver is too old for."""
    if subject.driver is None:
        return
    builds = [(package, *built) for package in subject.packages if (built := _built_for(package))]
    decisive = [each for each in builds if each[0].name == "torch"] or builds
    askers: dict[int, dict[str, str]] = defaultdict(dict)
    for package, major, path in decisive:
        askers[major][str(package)] = path
    for major, paths in sorted(askers.items()):
        if floor := driver_for(major, subject.driver):
            yield _finding(subject, major, floor, paths)


def _built_for(package: Package) -> tuple[int, str] | None:
    """The major version of CUDA whose runtime its files ask for, and the first of these; of variants, the oldest."""
    found = [
        (major[1], path)
        for path, file in package.files.items()
        for name in (file.elf.needed if file.elf else ())
        if (major := cuda_major(name)) and major[0] == _RUNTIME
    ]
    return min(found, default=None)


def _finding(subject: Subject, major: int, floor: int, paths: Mapping[str, str]) -> Finding:
    """`paths` are the packages that ask for this CUDA, and a file of each."""
    first = next(iter(paths))
    evidence = f"CUDA {major} takes driver {floor} or newer, and {subject.driver} is promised"
    severity = Severity.ERROR
    if "/compat/" in (subject.system.paths.get("libcuda.so.1", "") if subject.system else ""):
        severity, evidence = Severity.WARNING, f"{evidence}: it runs by cuda-compat, on data-center GPUs alone"
    details = [f"{path}: asks for CUDA {major}'s libcudart" for path in paths.values()]
    return Finding(severity, "driver-too-old", first, paths[first], evidence, few(details, _SHOWN, noun="packages"))
