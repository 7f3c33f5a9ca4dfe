"""Check that the oldest supported driver runs the CUDA version that a stack was built with.

Programs of one CUDA major version run on all drivers from that version's first branch on; the runtime refuses older
drivers. If torch is present, its CUDA version decides: other libraries may be variants that are never loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from imagegen.audit.capability import driver_for
from imagegen.audit.catalogue import cuda_major
from imagegen.audit.gpu import _SHOWN
from imagegen.audit.lists import few
from imagegen.audit.model import Finding, Package, Severity, Subject

_RUNTIME = "cudart"


def check_driver(subject: Subject) -> Iterator[Finding]:
    """Yield one finding for each major version of CUDA that the promised driver is too old for."""
    if subject.driver is None:
        return
    builds = [(package, *built) for package in subject.packages if (built := _built_for(package))]
    decisive = [build for build in builds if build[0].name == "torch"] or builds
    askers: dict[int, dict[str, str]] = defaultdict(dict)
    for package, major, path in decisive:
        askers[major][str(package)] = path
    for major, paths in sorted(askers.items()):
        if floor := driver_for(major, subject.driver):
            yield _finding(subject, major, floor, paths)


def _built_for(package: Package) -> tuple[int, str] | None:
    """Return the oldest major version of CUDA whose runtime the package's files need, and the first such file."""
    runtimes = [
        (major[1], path)
        for path, file in package.binaries.items()
        for name in (file.elf.needed if file.elf else ())
        if (major := cuda_major(name)) and major[0] == _RUNTIME
    ]
    return min(runtimes, default=None)


def _finding(subject: Subject, major: int, floor: int, paths: Mapping[str, str]) -> Finding:
    """Return the finding about a driver. `paths` maps the packages that need this CUDA to a file of each."""
    first = next(iter(paths))
    evidence = f"CUDA {major} takes driver {floor} or newer, and {subject.driver} is promised"
    severity = Severity.ERROR
    if "/compat/" in (subject.system.paths.get("libcuda.so.1", "") if subject.system else ""):
        severity, evidence = Severity.WARNING, f"{evidence}: it runs with cuda-compat, only on data-center GPUs"
    details = [f"{path}: asks for CUDA {major}'s libcudart" for path in paths.values()]
    return Finding(severity, "driver-too-old", first, paths[first], evidence, few(details, _SHOWN, "packages"))
