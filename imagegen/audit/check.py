"""Run all checks of an audit over one subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from imagegen.audit import contents, driver, extras, gpu, import_reach, imports, libraries, symbols, torch_rule
from imagegen.audit.capability import arch, runs
from imagegen.audit.closure import Loader
from imagegen.audit.model import CUDA, CodeTarget, File, Finding, Package, Severity, Subject
from imagegen.audit.report import AuditReport, PackageVerdict, Runs, ordered
from imagegen.core.gpu import Gpu

_SHOWN = 20  # files of one package that cannot be read, in one finding
_COMPILED = "ptx-only"  # id of the finding about a library that the driver compiles


def audit(
    subject: Subject, further_gpus: Sequence[Gpu] = (), refused: Iterable[imports.RefusedKeyword] = ()
) -> AuditReport:
    """Return the findings of every check. Verdicts also cover `further_gpus`; `refused` as in `keyword_findings`."""
    loader = Loader(subject)
    findings = [finding for check in CHECKS for finding in check(subject)]
    findings += [finding for check in LOADER_CHECKS for finding in check(loader)]
    findings += imports.keyword_findings(subject, refused)
    gpus_by_name = {gpu.name: gpu for gpu in (*subject.gpus, *further_gpus)}
    packages, gpus = verdicts(subject, sorted(gpus_by_name.values(), key=lambda gpu: arch(gpu.capability)))
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
        (path, why), *further = bad
        omitted = (f"and {len(bad) - _SHOWN} more",) if len(bad) > _SHOWN else ()
        details = tuple(f"{path}: {why}" for path, why in further[: _SHOWN - 1])
        evidence = f"{why}; so are {len(further)} more files" if further else why
        yield Finding(Severity.WARNING, "unreadable", package, path, evidence, details + omitted)


CHECKS: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    unreadable,
    torch_rule.check,
    gpu.check,
    driver.check_driver,
    contents.check,
    extras.check_extras,
    imports.check,
    import_reach.check,
)


# These checks follow libraries, and share most of their work.
LOADER_CHECKS: tuple[Callable[[Loader], Iterator[Finding]], ...] = (symbols.check, libraries.check)


def _elf_files(subject: Subject) -> int:
    """Return how many ELF files the packages have; files of the base do not count."""
    files = (file for package in subject.packages for file in package.binaries.values())
    return sum(file.elf is not None or file.unreadable is not None for file in files)


def verdicts(subject: Subject, gpus: Sequence[Gpu]) -> tuple[tuple[PackageVerdict, ...], dict[str, bool]]:
    """Return the verdicts of packages with GPU code or uses of torch; and for each GPU whether the whole runs there.

    They follow from the checks: a package runs on a GPU for which the check of GPU code yields no finding.
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
