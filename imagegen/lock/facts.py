"""A lock in the terms of imagegen.compat."""

from __future__ import annotations

from dataclasses import replace

from imagegen.compat.facts import Fact, Facts, facts_on
from imagegen.lock.model import Lock
from imagegen.spec.cell_facts import in_cell
from imagegen.spec.model import Cell


def facts_of_lock(lock: Lock, cell: Cell) -> Facts:
    """Return the facts after resolution: every package's exact version, and glibc's.

    The base's package libc6 has the version of glibc; if the base does not list its packages, the cell's counts.
    """
    built = {build.name for build in lock.builds}
    packages = {
        package.name: replace(Fact.exactly(package.release), built=package.name in built) for package in lock.packages
    }
    libc = next((deb.version.partition("-")[0] for deb in lock.debs if deb.name == "libc6"), cell.base.glibc)
    libraries = cell.base.libraries | {"glibc": libc}
    env = {variable.name: variable.value for variable in lock.env}
    return in_cell(facts_on(packages, lock.axes, lock.base.name, libraries, env, closed=True), cell)
