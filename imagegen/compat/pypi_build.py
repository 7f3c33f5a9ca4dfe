"""The choice between PyPI and a publisher's index, which have builds for different CUDAs."""

from __future__ import annotations

from packaging.version import Version

from imagegen.compat.metadata import PackageReleases

_ANY = ">=0.dev0"  # the empty specifier would admit arbitrary strings too


class AmbiguousBuildError(ValueError):
    """Some releases that a specifier admits are on PyPI for the cell's CUDA, and others are not known to be."""


def is_pypi_build(specifier: str, cuda: str, harvested: PackageReleases | None) -> bool:
    """Return whether PyPI's releases of the `harvested` package are built for CUDA version `cuda` ("12.8").

    That is so if it is so for every release that the PEP 440 `specifier` admits, by the CUDA runtime that its own
    metadata pins. Patch releases of a harvested minor version count as harvested. Without metadata of any admitted
    release for `cuda` the answer is False, because the publisher's own index has builds for every CUDA.

    Raises AmbiguousBuildError when the answer is not the same for all admitted releases.
    """
    from packaging.specifiers import SpecifierSet

    releases = harvested.releases.values() if harvested else ()
    allowed = SpecifierSet(specifier or _ANY, prereleases=True)
    admitted = [release for release in releases if release.version in allowed and not release.yanked]
    fitting = [candidate.version for candidate in admitted if candidate.cuda == cuda]
    if not fitting:
        return False
    unfitting = [candidate.version for candidate in admitted if candidate.cuda != cuda]
    versions = [Version(release.version) for release in releases]
    first, last = min(versions), max(versions)
    harvested_range = SpecifierSet(
        f">={first.major}.{first.minor}.dev0,<{last.major}.{last.minor + 1}.dev0", prereleases=True
    )
    if not allowed.to_range().is_subset(harvested_range.to_range()):
        unfitting.append("releases that are not harvested")
    if unfitting:
        raise AmbiguousBuildError(
            f"{', '.join(fitting)} are built for CUDA {cuda} on PyPI, {', '.join(unfitting)} are not"
        )
    return True
