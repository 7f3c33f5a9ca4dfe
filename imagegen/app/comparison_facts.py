"""The facts of the project's matrices and of the store that a comparison of images needs."""

from __future__ import annotations

from collections.abc import Sequence

from imagegen.app.session import Session
from imagegen.compare.difference import ComparisonFacts
from imagegen.compat import metadata
from imagegen.lock.model import LockedBuild
from imagegen.wheels.builds.costs import work
from imagegen.wheels.throttle import BuildJob
from imagegen.wheels.wheelhouse import known


def comparison_facts(session: Session) -> ComparisonFacts:
    """Return the facts of the project's matrices and of this store about packages and builds."""

    def requires(name: str, version: str) -> Sequence[str] | None:
        package = metadata.load(session.matrix_directories, name)
        release = package.releases.get(version.partition("+")[0]) if package else None
        return release.requires if release else None

    def job(build: LockedBuild) -> BuildJob | None:
        cells = session.matrix.cells()
        recipe = next((cell.recipes[build.name] for cell in cells if build.name in cell.recipes), None)
        return work(build, recipe, session.store) if recipe else None

    return ComparisonFacts(requires, job, lambda build: known(session.store, build.key) is not None)
