"""Check that the oldest supported driver runs the CUDA version that a stack was built with.

Programs of one CUDA major version run on all drivers from that version's first branch on; the runtime refuses older
drivers. If torch is present, its CUDA version decides: other libraries may be variants that are never loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from imagegen.audit.capability import driver_for
from imagegen.audit.known import cuda_major
from imagegen.audit.model import Finding, Package, Severity, Subject
from imagegen.audit.wording import few

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
