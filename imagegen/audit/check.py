"""Run all checks of an audit over one subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from imagegen.audit import contents, driver, extras, gpu, import_reach, imports, libraries, symbols, torch_rule
from imagegen.audit.capability import arch
from imagegen.audit.closure import Loader
from imagegen.audit.model import File, Finding, Severity, Subject
from imagegen.audit.report import AuditReport, ordered
from imagegen.audit.verdicts import verdicts
from imagegen.core.gpu import Gpu

_SHOWN = 20  # files of one package that cannot be read, in one finding


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
