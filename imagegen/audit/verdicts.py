"""Judge each package of a subject, also on GPUs that were not requested.

The verdicts follow from the checks: a package runs on a GPU for which the check of GPU code yields no finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from imagegen.audit import driver, gpu, torch_rule
from imagegen.audit.capability import runs
from imagegen.audit.model import CUDA, CodeTarget, Finding, Package, Severity, Subject
from imagegen.audit.report import PackageVerdict, Runs
from imagegen.core.gpu import Gpu

_COMPILED = "ptx-only"  # id of the finding about a library that the driver compiles


def verdicts(subject: Subject, gpus: Sequence[Gpu]) -> tuple[tuple[PackageVerdict, ...], dict[str, bool]]:
    """Return the verdicts of packages with GPU code or uses of torch; and for each GPU whether the whole runs there.

    A package without code for a GPU stops the whole only if the check reports an error. A driver that is too old for
    the package's CUDA stops it on all GPUs.
    """
    coded = {str(installed): gpu_code for installed in subject.packages if (gpu_code := _code(installed)).targets}
    judged = tuple(
        replace(
            installed,
            files={path: file for path, file in installed.binaries.items() if file.elf and file.elf.machine != CUDA},
        )
        for installed in subject.packages
        if installed.binaries
    )
    on: dict[str, dict[str, Runs]] = {package: {} for package in coded}
    whole: dict[str, bool] = {}
    refused = [finding for finding in driver.check_driver(subject) if _stops([finding])]
    for device in gpus if coded else ():
        findings_by_package: dict[str, list[Finding]] = {}
        for finding in (*refused, *gpu.check(replace(subject, packages=judged, gpus=(device,)))):
            findings_by_package.setdefault(finding.package, []).append(finding)
        whole[device.name] = not any(_stops(findings) for findings in findings_by_package.values())
        for package, code in coded.items():
            on[package][device.name] = _runs(code, device, findings_by_package.get(package, []))
    package_verdicts = (
        PackageVerdict(str(installed), on.get(str(installed), {}), torch_rule.fits(installed, subject.python))
        for installed in subject.packages
    )
    return tuple(verdict for verdict in package_verdicts if verdict.gpus or verdict.torch), whole


@dataclass(frozen=True)
class _Code:
    """The GPU code of a package. If it is `loose`, no library holds it, and the check of GPU code does not cover it."""

    targets: frozenset[tuple[CodeTarget, ...]]  # of each container
    loose: bool


def _code(package: Package) -> _Code:
    files = [file for file in package.binaries.values() if file.code]
    loose = all(file.elf is None or file.elf.machine == CUDA for file in files)
    return _Code(frozenset(group.targets for file in files for group in file.code), loose)


def _stops(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)


def _runs(code: _Code, gpu: Gpu, findings: Sequence[Finding]) -> Runs:
    """Return whether the package's code runs on the GPU. `findings` are those about GPU code for only this GPU.

    Without a finding about libraries that have no code for the GPU, these load their kernels from other files.
    """
    nothing = all(runs(targets, gpu.capability) == "no" for targets in code.targets)
    if _stops(findings) or (nothing and (findings or code.loose)):
        return "no"
    return "ptx" if any(finding.id == _COMPILED for finding in findings) else "sass"
