"""All checks of an audit, over one subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from imagegen.audit import contents, driver, extras, gpu, libraries, symbols, torch_rule
from imagegen.audit.capability import arch
from imagegen.audit.model import File, Finding, Severity, Subject
from imagegen.audit.report import Report, ordered
from imagegen.audit.verdicts import verdicts
from imagegen.core.gpu import Gpu

_SHOWN = 20  # files of one package that cannot be read, in one finding


def audit(subject: Subject, known: Sequence[Gpu] = ()) -> Report:
    """Return the findings of every check. `known` are further GPUs to report on."""
    findings = [finding for check in CHECKS for finding in check(subject)]
    gpus_by_name = {each.name: each for each in (*subject.gpus, *known)}
    packages, gpus = verdicts(subject, sorted(gpus_by_name.values(), key=lambda each: arch(each.capability)))
    return Report(
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
        yield from _unreadable(str(package), package.files.items())
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
    symbols.check,
    torch_rule.check,
    gpu.check,
    driver.check,
    libraries.check,
    contents.check,
    extras.check,
)


def _elf_files(subject: Subject) -> int:
    """Return how many ELF files the packages have, without those of the base."""
    files = (file for package in subject.packages for file in package.files.values())
    return sum(file.elf is not None or file.unreadable is not None for file in files)
