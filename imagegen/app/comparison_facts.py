"""The facts of the project's matrices and of the store that a comparison of images needs."""

from __future__ import annotations

from collections.abc import Sequence

from imagegen.app.matrices import Matrices
from imagegen.compare.difference import ComparisonFacts
from imagegen.lock.model import LockedBuild
from imagegen.spec import metadata
from imagegen.wheels import wheelhouse
from imagegen.wheels.builds import environment
from imagegen.wheels.throttle import BuildJob


def comparison_facts(matrices: Matrices) -> ComparisonFacts:
    """Return the facts of the project's matrices and of this store about packages and builds."""

    def requires(name: str, version: str) -> Sequence[str] | None:
        package = metadata.load(matrices.project.matrix_directories, name)
        release = package.releases.get(version.partition("+")[0]) if package else None
        return release.requires if release else None

    def job(build: LockedBuild) -> BuildJob | None:
        cells = matrices.matrix.cells()
        recipe = next((cell.recipes[build.name] for cell in cells if build.name in cell.recipes), None)
        return environment.work(build, recipe, matrices.project.store) if recipe else None

    return ComparisonFacts(requires, job, lambda build: wheelhouse.known(matrices.project.store, build.key) is not None)
