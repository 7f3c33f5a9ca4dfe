"""The subject that wheel files are, on no system: what they would install, and what they are to run with."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from packaging.utils import parse_wheel_filename

from imagegen.audit.check import audit
from imagegen.audit.model import Finding, Package, Subject
from imagegen.audit.tags import one_python
from imagegen.core.errors import UsageError, WheelError
from imagegen.core.gpu import Gpu
from imagegen.image.layers.install import installation, relative, site_packages
from imagegen.image.layers.watch import looked_at
from imagegen.image.layers.wheel import Wheel

_READERS = 2  # wheels that are read at once
_ANY = "3.0"  # in the few names that depend on it, for a wheel that takes any


def subject(paths: Sequence[Path], gpus: tuple[Gpu, ...], torch: str | None) -> Subject:
    """The wheels at `paths`, to run with a release of torch.

    Raises WheelError for what no wheel should hold, UsageError for two wheels of one package.
    """
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(_READERS) as pool:
        packages = list(pool.map(partial(_package, scratch=Path(scratch)), paths))
    there: dict[str, Path] = {}
    for package, path in zip(packages, paths, strict=True):
        if (other := there.setdefault(package.name, path)) is not path:
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


def examined(path: Path, gpus: tuple[Gpu, ...], torch: str | None) -> tuple[Finding, ...]:
    """Return the findings about one wheel on these GPUs with this torch. Raises as `subject`."""
    return audit(subject([path], gpus, torch)).findings


def _package(path: Path, scratch: Path) -> Package:
    python = _python(path)
    try:
        with Wheel(path, path.name) as wheel:
            files = {relative(file.path, site_packages(python)): file for file in installation(wheel, python)}
            looked = {name: looked_at(file, scratch) for name, file in files.items()}
            return Package(wheel.distribution, wheel.version, looked, wheel.requires, wheel.tags)
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
    """Return the one Python that a wheel's file name is for, else the default; an invalid name is reported when the
    wheel is read.
    """
    try:
        tags = parse_wheel_filename(path.name)[3]
    except ValueError:
        return _ANY
    return one_python(map(str, tags)) or _ANY
