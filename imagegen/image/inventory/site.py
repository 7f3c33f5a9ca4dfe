"""The subject that an installed environment is: a directory of modules, and the system that it runs on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from packaging.utils import parse_wheel_filename

from imagegen.audit.check import audit
from imagegen.audit.model import Finding, Package, Subject, SystemLibraries
from imagegen.audit.tags import one_python
from imagegen.core.errors import UsageError, WheelError
from imagegen.core.progress import Progress
from imagegen.core.types import Gpu
from imagegen.image.inventory import system
from imagegen.image.inventory.disk import Disk
from imagegen.image.inventory.distributions import installed, python_of
from imagegen.image.inventory.environment import Environment, is_site, of_site
from imagegen.image.inventory.tree import FileTree
from imagegen.image.layers.install import installation, relative, site_packages
from imagegen.image.layers.scan import scan_file
from imagegen.image.layers.wheel import Wheel


def subject(
    directory: Path, gpus: tuple[Gpu, ...], progress: Progress, *, variables: Mapping[str, str] | None = None
) -> Subject:
    """Return the packages in a directory of modules (site-packages, dist-packages) as the subject of an audit.

    Its system is that of the root that it lies in: this machine's, or a mounted image's. Where no Python is found that
    uses the directory, none is known. `variables` are the environment's in which this machine's Python runs. Raises
    UsageError for a directory in which nothing is installed.
    """
    path = Path(os.path.realpath(directory))
    root = _root(path)
    tree = Disk(root)
    site = "/" + str(path.relative_to(root)) if path != root else "/"
    if not is_site(tree, site):
        raise _nothing(directory, path)
    environment = of_site(tree, site)
    found = installed(tree, environment)
    describe(found.editable, progress)
    own = variables if root == Path("/") else None
    return Subject(
        name=str(directory),
        packages=found.packages,
        system=_system(tree, environment, own, progress),
        gpus=gpus,
        python=environment.python or python_of(found.packages),
    )


def describe(editable: Mapping[str, str], progress: Progress) -> None:
    """Log what an audit of these packages does not cover."""
    for name, url in sorted(editable.items()):
        progress.say(f"note: {name} is an editable install of {url}: its modules are not audited")


def _root(path: Path) -> Path:
    """Return the nearest directory above that looks like a root file tree, which identifies the system."""
    return next((each for each in path.parents if os.path.lexists(each / "etc/os-release")), Path(path.anchor))


def _nothing(directory: Path, path: Path) -> UsageError:
    found = sorted(each for name in ("site", "dist") for each in path.glob(f"lib/python3*/{name}-packages"))
    if not directory.is_dir():
        return UsageError(f"{directory} is no directory", code="usage-no-directory")
    why = "it holds no .dist-info"
    return UsageError(
        f"nothing is installed in {directory}",
        code="usage-no-packages",
        why=why,
        fix=f"name {found[0]}" if found else None,
    )


def _system(
    tree: FileTree, environment: Environment, variables: Mapping[str, str] | None, progress: Progress
) -> SystemLibraries | None:
    if environment.program is None:
        progress.say(f"note: no Python uses {environment.site}: it is audited without glibc and all below")
        return None
    return system.of(tree, environment=variables, interpreter=environment.program)


# The subject that wheel files are, on no system: what they would install, and what they are to run with.

_READERS = 2  # wheels that are read at once
_ANY = "3.0"  # in the few names that depend on it, for a wheel that takes any


def wheels_subject(paths: Sequence[Path], gpus: tuple[Gpu, ...], torch: str | None) -> Subject:
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
    return audit(wheels_subject([path], gpus, torch)).findings


def _package(path: Path, scratch: Path) -> Package:
    python = _python(path)
    try:
        with Wheel(path, path.name) as wheel:
            files = {relative(file.path, site_packages(python)): file for file in installation(wheel, python)}
            looked = {name: scan_file(file, scratch) for name, file in files.items()}
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
