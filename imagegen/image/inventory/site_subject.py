"""The subject that an installed environment is: a directory of modules, and the system that it runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from imagegen.audit.model import Subject, SystemLibraries
from imagegen.core.errors import UsageError
from imagegen.core.gpu import Gpu
from imagegen.core.progress import Progress
from imagegen.image.inventory import libraries
from imagegen.image.inventory.disk import Disk
from imagegen.image.inventory.distributions import installed, python_of
from imagegen.image.inventory.environments import Environment, environment_of_site, is_site
from imagegen.image.inventory.module_sources import TreeModules
from imagegen.image.inventory.tree import FileTree


def site_subject(
    directory: Path, gpus: tuple[Gpu, ...], progress: Progress, *, variables: Mapping[str, str] | None = None
) -> Subject:
    """Return the packages in a directory of modules (site-packages, dist-packages) as the subject of an audit.

    Its system is the root that it lies in: this machine's, or a mounted image's. If no Python uses the directory, its
    version is unknown. `variables` are the environment's in which this machine's Python runs. Raises
    UsageError for a directory in which nothing is installed.
    """
    path = Path(os.path.realpath(directory))
    # The system is the nearest directory above that looks like a root file tree.
    root = next((parent for parent in path.parents if os.path.lexists(parent / "etc/os-release")), Path(path.anchor))
    tree = Disk(root)
    site = "/" + str(path.relative_to(root)) if path != root else "/"
    if not is_site(tree, site):
        raise _nothing(directory, path)
    environment = environment_of_site(tree, site)
    packages, editables = installed(tree, environment)
    describe(editables, progress)
    machine_variables = variables if root == Path("/") else None
    return Subject(
        name=str(directory),
        packages=packages,
        system=_site_system(tree, environment, machine_variables, progress),
        gpus=gpus,
        python=environment.python or python_of(packages),
        modules=TreeModules(tree, environment.site),
    )


def describe(editable: Mapping[str, str], progress: Progress) -> None:
    """Log the packages that an audit does not cover."""
    for name, url in sorted(editable.items()):
        progress.say(f"note: {name} is an editable install of {url}: its modules are not audited")


def _nothing(directory: Path, path: Path) -> UsageError:
    sites = sorted(site for name in ("site", "dist") for site in path.glob(f"lib/python3*/{name}-packages"))
    if not directory.is_dir():
        return UsageError(f"{directory} is not a directory", code="usage-no-directory")
    why = "it holds no .dist-info"
    return UsageError(
        f"nothing is installed in {directory}",
        code="usage-no-packages",
        why=why,
        fix=f"name {sites[0]}" if sites else None,
    )


def _site_system(
    tree: FileTree, environment: Environment, variables: Mapping[str, str] | None, progress: Progress
) -> SystemLibraries | None:
    if environment.program is None:
        progress.say(f"note: no Python uses {environment.site}: it is audited without glibc and all below")
        return None
    return libraries.of(tree, environment=variables, interpreter=environment.program)
