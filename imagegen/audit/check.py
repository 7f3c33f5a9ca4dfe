"""Run all checks of an audit; judge each package of a subject, also on GPUs that were not requested.

The verdicts follow from the checks: a package runs on a GPU for which the check of GPU code yields no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from imagegen.audit import contents, elf, gpu, imports, libraries, torch_rule
from imagegen.audit.closure import Loader
from imagegen.audit.gpu import arch, runs
from imagegen.audit.model import CUDA, CodeTarget, File, Finding, Package, Severity, Subject
from imagegen.audit.report import AuditReport, PackageVerdict, Runs, ordered
from imagegen.core.types import Gpu

_COMPILED = "ptx-only"  # id of the finding about a library that the driver compiles


def verdicts(subject: Subject, gpus: Sequence[Gpu]) -> tuple[tuple[PackageVerdict, ...], dict[str, bool]]:
    """Return the verdicts of packages with GPU code or uses of torch; and for each GPU whether the whole runs there.

    A package that holds nothing for a GPU stops the whole only where the check calls it an error. A driver that is too
    old for its CUDA stops it on all of them.
    """
    coded = {str(each): found for each in subject.packages if (found := _code(each)).targets}
    judged = tuple(
        replace(
            each, files={path: file for path, file in each.binaries.items() if file.elf and file.elf.machine != CUDA}
        )
        for each in subject.packages
        if each.binaries
    )
    on: dict[str, dict[str, Runs]] = {package: {} for package in coded}
    whole: dict[str, bool] = {}
    refused = [finding for finding in gpu.check_driver(subject) if _stops([finding])]
    for each in gpus if coded else ():
        said: dict[str, list[Finding]] = {}
        for finding in (*refused, *gpu.check(replace(subject, packages=judged, gpus=(each,)))):
            said.setdefault(finding.package, []).append(finding)
        whole[each.name] = not any(_stops(some) for some in said.values())
        for package, code in coded.items():
            on[package][each.name] = _runs(code, each, said.get(package, []))
    all_of_them = (
        PackageVerdict(str(each), on.get(str(each), {}), torch_rule.fits(each, subject.python))
        for each in subject.packages
    )
    return tuple(each for each in all_of_them if each.gpus or each.torch), whole


@dataclass(frozen=True)
class _Code:
    """A package's GPU code. `loose`: none of it is in libraries, so the check of GPU code does not cover it."""

    targets: frozenset[tuple[CodeTarget, ...]]  # of each container
    loose: bool


def _code(package: Package) -> _Code:
    files = [file for file in package.binaries.values() if file.code]
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


# All checks of an audit, over one subject.

_SHOWN = 20  # files of one package that cannot be read, in one finding


def audit(subject: Subject, known: Sequence[Gpu] = (), refused: Iterable[imports.RefusedKeyword] = ()) -> AuditReport:
    """Return the findings of every check. `known` are further GPUs to report on; `refused` as `keyword_findings`."""
    loader = Loader(subject)
    findings = [finding for check in CHECKS for finding in check(subject)]
    findings += [finding for check in LOADER_CHECKS for finding in check(loader)]
    findings += imports.keyword_findings(subject, refused)
    gpus_by_name = {each.name: each for each in (*subject.gpus, *known)}
    packages, gpus = verdicts(subject, sorted(gpus_by_name.values(), key=lambda each: arch(each.capability)))
    return AuditReport(
        subject=subject.name,
        findings=ordered(findings),
        verdicts=packages,
        gpus=gpus,
        packages=len(subject.packages),
        elf_files=_elf_files(subject),
    )


def unreadable(subject: Subject) -> Iterator[Finding]:
    """Yield one finding for each package with unreadable files, and one for the system."""
    for package in subject.packages:
        yield from _unreadable(str(package), package.binaries.items())
    if subject.system:
        paths = {subject.system.paths.get(name, name): file for name, file in subject.system.libraries.items()}
        yield from _unreadable("", paths.items())


def _unreadable(package: str, files: Iterable[tuple[str, File]]) -> Iterator[Finding]:
    bad = sorted((path, file.unreadable) for path, file in files if file.unreadable is not None)
    if bad:
        (path, why), *others = bad
        more = (f"and {len(bad) - _SHOWN} more",) if len(bad) > _SHOWN else ()
        details = tuple(f"{path}: {why}" for path, why in others[: _SHOWN - 1])
        evidence = f"{why}; so are {len(others)} more files" if others else why
        yield Finding(Severity.WARNING, "unreadable", package, path, evidence, details + more)


CHECKS: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    unreadable,
    torch_rule.check,
    gpu.check,
    gpu.check_driver,
    contents.check,
    imports.check_extras,
    imports.check,
)


# Those that follow libraries: most of the work is the same for both.
LOADER_CHECKS: tuple[Callable[[Loader], Iterator[Finding]], ...] = (elf.check, libraries.check)


def _elf_files(subject: Subject) -> int:
    """Return how many ELF files the packages have, without those of the base."""
    files = (file for package in subject.packages for file in package.binaries.values())
    return sum(file.elf is not None or file.unreadable is not None for file in files)
