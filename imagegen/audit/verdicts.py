"""Verdicts on each package of a subject: what it runs with and on, also on GPUs that were not requested.

The answers are the checks' own: a GPU is one that a package runs on where the check of GPU code has nothing against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from imagegen.audit import driver, torch_rule
from imagegen.audit import gpu as gpu_code
from imagegen.audit.capability import runs
from imagegen.audit.elf import CUDA
from imagegen.audit.model import Finding, Package, Severity, Subject, Target
from imagegen.audit.report import Runs, Verdict
from imagegen.core.gpu import Gpu

_COMPILED = "ptx-only"  # the id of what is said of a library that the driver compiles


def verdicts(subject: Subject, gpus: Sequence[Gpu]) -> tuple[tuple[Verdict, ...], dict[str, bool]]:
    """Return the verdicts of packages with GPU code or uses of torch; and for each GPU whether the whole runs there.

    A package that holds nothing for a GPU stops the whole only where the check calls it an error. A driver that is too
    old for its CUDA stops it on all of them.
    """
    coded = {str(each): found for each in subject.packages if (found := _code(each)).targets}
    judged = tuple(
        replace(each, files={path: file for path, file in each.files.items() if file.elf and file.elf.machine != CUDA})
        for each in subject.packages
    )
    on: dict[str, dict[str, Runs]] = {package: {} for package in coded}
    whole: dict[str, bool] = {}
    refused = [finding for finding in driver.check(subject) if _stops([finding])]
    for each in gpus if coded else ():
        said: dict[str, list[Finding]] = {}
        for finding in (*refused, *gpu_code.check(replace(subject, packages=judged, gpus=(each,)))):
            said.setdefault(finding.package, []).append(finding)
        whole[each.name] = not any(_stops(some) for some in said.values())
        for package, code in coded.items():
            on[package][each.name] = _runs(code, each, said.get(package, []))
    all_of_them = (
        Verdict(str(each), on.get(str(each), {}), torch_rule.fits(each, subject.python)) for each in subject.packages
    )
    return tuple(each for each in all_of_them if each.gpus or each.torch), whole


@dataclass(frozen=True)
class _Code:
    """A package's GPU code. `loose`: none of it is in libraries, so the check of GPU code does not cover it."""

    targets: frozenset[tuple[Target, ...]]  # of each container
    loose: bool


def _code(package: Package) -> _Code:
    files = [file for file in package.files.values() if file.code]
    loose = all(file.elf is None or file.elf.machine == CUDA for file in files)
    return _Code(frozenset(group.targets for file in files for group in file.code), loose)


def _stops(said: Iterable[Finding]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in said)


def _runs(code: _Code, gpu: Gpu, said: Sequence[Finding]) -> Runs:
    """Return whether the package's code runs on the GPU; `said` are the findings about GPU code for this GPU alone.

    Without a finding about libraries that have no code for the GPU, these load their kernels from other files.
    """
    nothing = all(runs(targets, gpu.capability) == "no" for targets in code.targets)
    if _stops(said) or (nothing and (said or code.loose)):
        return "no"
    return "ptx" if any(finding.id == _COMPILED for finding in said) else "sass"
