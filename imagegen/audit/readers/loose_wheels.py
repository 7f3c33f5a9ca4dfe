"""Wheel files as the subject of an audit, which has the files that they would install, and no system."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.audit.check import audit
from imagegen.audit.collect import Collector
from imagegen.audit.model import File, Finding, Package, Subject
from imagegen.audit.readers.installation import InstalledFile, installation, relative, site_packages
from imagegen.audit.readers.wheel import Wheel
from imagegen.audit.tags import one_python
from imagegen.core import temporary
from imagegen.core.errors import UsageError, WheelError
from imagegen.core.gpu import Gpu

_READERS = 2  # wheels that are read at once
_ANY = "3.0"  # for a wheel that takes any Python, in the few paths that depend on it


def named_wheels_subject(words: Sequence[str], gpus: tuple[Gpu, ...], torch: str | None) -> Subject:
    """Return the wheels that a user names. Raises UsageError for names and versions that are invalid."""
    for word in words:
        if not os.path.lexists(word):
            raise UsageError(
                f"there is no file {word}", code="usage-no-file", fix="name wheels that are there, or one cell"
            )
        if not word.endswith(".whl"):
            raise UsageError(f"{word} is no wheel", code="usage-not-a-wheel", fix="a wheel's name ends in .whl")
    if torch is not None:
        try:
            Version(torch)
        except ValueError:
            raise UsageError(
                f'--torch "{torch}" is no version', code="usage-invalid-value", fix="--torch 2.8.0"
            ) from None
    return wheels_subject([Path(word) for word in words], gpus, torch)


def wheels_subject(paths: Sequence[Path], gpus: tuple[Gpu, ...], torch: str | None) -> Subject:
    """Return the wheels at `paths`, to run with a release of torch.

    Raises WheelError for an invalid wheel, UsageError for two wheels of one package.
    """
    with temporary.temporary_directory() as scratch, ThreadPoolExecutor(_READERS) as pool:
        packages = list(pool.map(partial(_package, scratch=scratch), paths))
    paths_by_name: dict[str, Path] = {}
    for package, path in zip(packages, paths, strict=True):
        if (other := paths_by_name.setdefault(package.name, path)) is not path:
            raise UsageError(
                f"{other.name} and {path.name} are one package",
                code="usage-duplicate-wheel",
                why="no environment has both",
                fix="run one for each",
            )
    pythons = {python for path in paths if (python := _python(path)) != _ANY}
    return Subject(
        name=", ".join(path.name for path in paths),
        packages=tuple(sorted(packages, key=lambda package: package.name)),
        python=pythons.pop() if len(pythons) == 1 else None,
        gpus=gpus,
        torch=torch,
    )


def audit_wheel(path: Path, gpus: tuple[Gpu, ...], torch: str | None) -> tuple[Finding, ...]:
    """Return the findings about one wheel on these GPUs with this torch. Raises as `wheels_subject`."""
    return audit(wheels_subject([path], gpus, torch)).findings


def _package(path: Path, scratch: Path) -> Package:
    python = _python(path)
    try:
        with Wheel(path, path.name) as wheel:
            files = {relative(file.path, site_packages(python)): file for file in installation(wheel, python)}
            scans = {name: scan_file(file, scratch) for name, file in files.items()}
            return Package(wheel.distribution, wheel.version, scans, wheel.requires, wheel.tags)
    except WheelError as error:
        error.fix = (
            "download it again, under the name that its index gives it; if it stays so, report it to its project"
        )
        raise
    except OSError as error:
        raise WheelError(
            "the wheel cannot be read", code="wheel-unreadable", where=str(path), why=error.strerror
        ) from error


def _python(path: Path) -> str:
    """Return the one Python that a wheel's file name is for, else the default, also for an invalid name."""
    try:
        tags = parse_wheel_filename(path.name)[3]
    except ValueError:
        return _ANY
    return one_python(map(str, tags)) or _ANY


def scan_file(file: InstalledFile, scratch: Path, *, whole: bool = False) -> File:
    """Scan a file. Read as little of it as possible, and once more if the collector has left out too much.

    `scratch` and `whole` are as for Collector.
    """
    with Collector(file.size, scratch, whole=whole) as collector:
        for chunk in file.chunks():
            collector.write(chunk)
            if collector.idle:
                break
        scan_result = collector.finish(file.sha256, executable=file.executable)
    return scan_file(file, scratch, whole=True) if scan_result.unreadable and collector.partial else scan_result
