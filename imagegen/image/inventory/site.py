"""The subject that an installed environment is: a directory of modules, and the system that it runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from imagegen.audit.model import Subject, System
from imagegen.core.errors import UsageError
from imagegen.core.gpu import Gpu
from imagegen.core.progress import Progress
from imagegen.image.inventory import system
from imagegen.image.inventory.disk import Disk
from imagegen.image.inventory.distributions import installed, python_of
from imagegen.image.inventory.environment import Environment, is_site, of_site
from imagegen.image.inventory.tree import Tree


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
    tree: Tree, environment: Environment, variables: Mapping[str, str] | None, progress: Progress
) -> System | None:
    if environment.program is None:
        progress.say(f"note: no Python uses {environment.site}: it is audited without glibc and all below")
        return None
    return system.of(tree, environment=variables, interpreter=environment.program)
