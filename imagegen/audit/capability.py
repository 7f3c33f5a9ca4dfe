"""GPU code compatibility: which code runs on which GPU, the driver that it needs, and the oldest supported driver.

The rules are NVIDIA's. Machine code (SASS) for sm_XY runs on its own major version from its minor version on; an `a`
target only on its GPU, an `f` target on its family, which is the same major version from its minor version on. PTX for
compute_XY is compiled by the driver for any GPU of XY or above, if the driver's PTX ISA is not older than the code's.
Source: CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and "Family-Specific Features";
2026-11-21: 12 cubins, 12 PTX modules and 8 fat binaries behaved so on an H200 with a driver of CUDA 13.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from imagegen.audit.catalogue import data
from imagegen.audit.model import CodeTarget

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
    gpu_arch = arch(capability)
    fitting = [target for target in targets if _fits(target, gpu_arch)]
    if any(target.kind == "sass" for target in fitting):
        return "sass"
    return "ptx" if any(_compiles(target, driver_isa) for target in fitting) else "no"


def isa_needed(targets: Iterable[CodeTarget], capability: str) -> Isa | None:
    """Return the oldest PTX ISA of the `targets` that fit the GPU; None if none fits or none states its ISA."""
    gpu_arch = arch(capability)
    fitting = [target.isa for target in targets if target.kind == "ptx" and target.isa and _fits(target, gpu_arch)]
    return min(fitting, default=None)


def arch(capability: str) -> int:
    """Return the number of an architecture: 90 for "9.0", 121 for "12.1"."""
    major, _, minor = capability.partition(".")
    return int(major) * 10 + int(minor or 0)


def driver_floor(isa: Isa) -> tuple[str, str] | None:
    """Return the oldest CUDA release whose driver compiles this PTX, and the driver; None if no known driver does."""
    return next(((release.cuda, release.driver) for release in releases() if release.isa >= isa), None)


def compiled_by(driver: str) -> Isa | None:
    """Return the newest PTX ISA that a driver ("580.65.06", or "580" for its branch) compiles.

    Drivers of one branch count as one, because a promise is often no more exact. The result is (0, 0) if the driver is
    older than all known drivers, and None if it is newer than all of them or cannot be parsed.
    """
    branch = _branch(driver)
    if branch is None or branch > (_branch(releases()[-1].driver) or 0):
        return None
    return max((release.isa for release in releases() if (_branch(release.driver) or 0) <= branch), default=(0, 0))


def driver_for(major: int, driver: str) -> int | None:
    """Return the oldest branch of drivers for a major version of CUDA; None if `driver` is not older."""
    needed: int = data("gpu")["majors"]["drivers"].get(major, 0)
    branch = _branch(driver)
    return needed if branch is not None and branch < needed else None


@cache
def releases() -> tuple[PtxVersion, ...]:
    """Return the known PTX ISA versions, oldest first."""
    rows = [PtxVersion(_isa(row["isa"]), row["cuda"], row["driver"]) for row in data("gpu")["ptx"]["releases"]]
    return tuple(sorted(rows))


def _fits(target: CodeTarget, gpu_arch: int) -> bool:
    made_for = data("gpu")["renamed"]["architectures"].get(target.arch, target.arch)
    if target.variant == "a":
        return bool(gpu_arch == made_for)
    if target.kind == "ptx" and not target.variant:
        return bool(gpu_arch >= made_for)
    return bool(gpu_arch // 10 == made_for // 10 and gpu_arch >= made_for)


def _compiles(target: CodeTarget, driver_isa: Isa | None) -> bool:
    return driver_isa is None or target.isa is None or target.isa <= driver_isa


def _isa(text: str) -> Isa:
    major, minor = text.split(".")
    return int(major), int(minor)


def _branch(driver: str) -> int | None:
    first = driver.partition(".")[0]
    return int(first) if first.isdecimal() else None
