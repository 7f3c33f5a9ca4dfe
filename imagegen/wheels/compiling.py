"""The source builds that a combination of versions needs, since no wheel of these releases is for its torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from imagegen.compat import Question
from imagegen.compat.published_builds import Builds
from imagegen.core.deferred import dataclass
from imagegen.spec.cells import Matrix

if TYPE_CHECKING:
    from imagegen.wheels.catalogue import Catalogue
    from imagegen.wheels.throttle import BuildJob

_TORCH = re.compile(r"torch(\d+\.\d+)")  # in a label: "cu12torch2.8cxx11abitrue"
_PIN = re.compile(r"==\s*([^,*\s]+)")


@dataclass(frozen=True)
class NeededBuild:
    """A release that has to be compiled, and what that takes for the GPUs of the question, at least for one."""

    component: str
    version: str
    work: BuildJob


def needed_builds(question: Question, matrix: Matrix, catalogue: Callable[[], Catalogue]) -> Iterator[NeededBuild]:
    """Yield the source builds of the releases that a question pins; those without a measured cost are left out."""
    torch = _pinned(question, "torch")
    minor = ".".join(map(str, torch.release[:2])) if torch else None
    for name, recipe in matrix.recipes.items():
        package = matrix.components[name].package
        version = _pinned(question, package)
        if recipe.cost is None or version is None or version.local:
            continue
        if _has_build(matrix.builds, package, version.public, minor) or catalogue().covers(
            package, version.public, minor
        ):
            continue
        from imagegen.wheels.throttle import BuildJob  # late: most questions need no build

        architectures = max(1, len(question.facts.gpus)) if recipe.architectures else 1
        work = BuildJob(recipe.cost, architectures, jobs=recipe.jobs is not None, threads=recipe.threads is not None)
        yield NeededBuild(name, version.public, work)


def _pinned(question: Question, package: str) -> Version | None:
    match = _PIN.fullmatch(question.requested.get(package, ""))
    return Version(match[1]) if match else None


def _has_build(builds: Builds, package: str, version: str, torch: str | None) -> bool:
    """Return whether a published build of the release is for this minor of torch; for any, if none is pinned."""
    torches = [match[1] for label in builds.labels(package, version) if (match := _TORCH.search(label))]
    return torch in torches if torch else bool(torches)
