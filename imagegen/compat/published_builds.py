"""Builds of a release that a local version label tells apart: which there are, and the rules that follow from them.

One build of a package decides for which CUDA release the whole stack is: torch's. The others' CUDA libraries are found
by major version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from packaging.version import Version

from imagegen.compat.metadata import PackageReleases
from imagegen.compat.rule import NO_CUDA, Rule
from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.matrix_entry import MatrixEntry
from imagegen.core.validation import doc, string

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

LEADER = "torch"  # whose build decides on the stack's CUDA release
_BLACKWELL = "10.0"  # its first compute capability
_CUDA_OF_BLACKWELL = Version("12.8")  # the first release of CUDA that makes code for it

_ANY = ">=0.dev0"  # the empty specifier would admit arbitrary strings too


@dataclass(frozen=True)
class PublishedBuild(MatrixEntry):
    """A build of some releases of a package, which its local version label tells apart from their others."""

    name: str  # "torch-cu128"
    package: t.Distribution
    labels: Annotated[  # "cu128"
        tuple[t.LocalLabel, ...], doc("Without one: PyPI's build, which has no label.", default=())
    ]
    releases: Annotated[t.Specifier, doc("Releases of `package` that have it; without it, all.", default="")]
    cuda: Annotated[str, string(r"[1-9][0-9](?:\.[0-9])?|cpu", meaning="a CUDA release or major version, or cpu")]
    location: Annotated[t.Text, doc("Where it is, in words.")]
    source: t.Text
    date: t.Date
    open_ended: Annotated[t.Flag, doc("Builds are added later: an unlisted label may exist.")] = False
    platforms: Annotated[
        tuple[Literal["linux/amd64", "linux/arm64"], ...],
        doc("The platforms that it is for; without them, that is not known."),
    ] = ()

    def has(self, version: str) -> bool:
        """Return whether the release is one of `releases`."""
        return self._specifier.contains(version)

    def is_for(self, platform: str | None) -> bool:
        """Return whether it may be for a platform; None is any."""
        return platform is None or not self.platforms or platform in self.platforms

    @cached_property
    def _specifier(self) -> SpecifierSet:
        from packaging.specifiers import SpecifierSet  # late: an answer that is kept needs none

        return SpecifierSet(self.releases, prereleases=True)


@dataclass(frozen=True)
class Builds:
    """All builds of the matrix. `followers` have the labels of the leader's builds, as torchvision has torch's."""

    entries: tuple[PublishedBuild, ...] = ()
    followers: Sequence[str] = ()

    @cached_property
    def _by_package(self) -> Mapping[str, tuple[PublishedBuild, ...]]:
        led = [entry for entry in self.entries if entry.package == LEADER]
        copies = (replace(leader, package=name, releases="") for name in self.followers for leader in led)
        by_package: dict[str, list[PublishedBuild]] = {}
        for build in (*self.entries, *copies):
            by_package.setdefault(build.package, []).append(build)
        return {name: tuple(builds) for name, builds in by_package.items()}

    def family(self) -> frozenset[str]:
        """Return the leader and its followers, the packages whose builds are for exactly one CUDA release each."""
        return frozenset({LEADER, *self.followers}) & self._by_package.keys()

    def of(self, package: str, version: str | None = None) -> tuple[PublishedBuild, ...]:
        """Return the builds of a package, or of one release of it."""
        builds = self._by_package.get(package, ())
        return builds if version is None else tuple(build for build in builds if build.has(version))

    def labels(self, package: str, version: str | None = None, platform: str | None = None) -> tuple[str, ...]:
        """Return the labels of a package's builds, those for the newest CUDA first, and builds without CUDA last.

        Builds for the same CUDA are sorted by location, in the order of the list. With `platform`, builds that are only
        for other platforms are left out.
        """
        fitting = (candidate for candidate in self.of(package, version) if candidate.is_for(platform))
        by_label = {label: candidate for candidate in fitting for label in candidate.labels}
        locations = list(dict.fromkeys(candidate.location for candidate in by_label.values()))

        def newness(label: str) -> tuple[Version, int, tuple[int, ...], str]:
            build = by_label[label]
            newest = Version("0" if build.cuda == NO_CUDA else build.cuda)
            return newest, -locations.index(build.location), _numbers(label), label

        return tuple(sorted(by_label, key=newness, reverse=True))

    def build(self, package: str, version: str, label: str) -> PublishedBuild | None:
        """Return the build of a release with that label ("": PyPI's), if there is one."""
        return next(
            (candidate for candidate in self.of(package, version) if label in (candidate.labels or ("",))), None
        )

    def is_missing(self, package: str, version: str, label: str) -> bool:
        """Return whether no build of a release has that label.

        If all builds of a package are listed (not `open_ended`), the answer is certain only for labels in the form of a
        known one ("cu124" next to "cu128"), because anyone may publish a build with another label.
        """
        labelled = [build for build in self.of(package, version) if build.labels]
        if not labelled or any(label in build.labels for build in labelled):
            return False
        open_ended = any(build.open_ended for build in labelled)
        return open_ended or _form(label) in {_form(other) for other in self.labels(package)}

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules of all builds, by id."""
        rule_of = {rule.id: rule for package in sorted(self._by_package) for rule in self._rules(package)}
        return tuple(rule_of[name] for name in sorted(rule_of))

    def _rules(self, package: str) -> Iterator[Rule]:
        exact = package == LEADER
        for build in self.of(package):
            for label in build.labels:
                if build.cuda == NO_CUDA or "." in build.cuda:  # labels of a major version have rules of their own
                    yield _label_rule(build, label, exact=exact)
                if package not in self.family() and _is_before_blackwell(build):  # the family's is the stack's CUDA
                    yield _gpu_rule(build, label)
            if exact and build.labels and build.cuda != NO_CUDA:
                yield _index_rule(build)


def _numbers(label: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", label)))


def _form(label: str) -> str:
    return re.sub("[0-9]+", "#", label)


def _label_rule(build: PublishedBuild, label: str, *, exact: bool) -> Rule:
    without = build.cuda == NO_CUDA
    if without:
        cuda, statement = NO_CUDA, "has no CUDA at all"
    else:
        cuda = f"=={build.cuda}" if exact else f"=={build.cuda.partition('.')[0]}.*"
        statement = (
            f"is built for CUDA {build.cuda}, and it loads the libraries of that CUDA{'' if exact else ' major'}"
        )
    fix = "Choose a stack without CUDA" if without else f"Use a stack of CUDA {cuda.removeprefix('==')}"
    return Rule(
        id=f"{build.package}-label-{label}",
        when={build.package: f"+{label}"},
        then={"cuda": cuda},
        conflict={},
        because=f"The label +{label} says that this {build.package} {statement}.",
        source=build.source,
        date=build.date,
        severity="error",
        evidence="documented",
        kind="breaks",
        fix=f"{fix}, or take the build of {build.package} for the CUDA that is requested.",
    )


def _is_before_blackwell(build: PublishedBuild) -> bool:
    """Return whether it is for a release of CUDA 12 that knows no Blackwell; a stack of CUDA 11 has none anyway."""
    return build.cuda.startswith("12.") and Version(build.cuda) < _CUDA_OF_BLACKWELL


def _gpu_rule(build: PublishedBuild, label: str) -> Rule:
    return Rule(
        id=f"{build.package}-label-{label}-gpu",
        when={build.package: f"+{label}"},
        then={},
        conflict={"gpu": f">={_BLACKWELL}"},
        because=(
            f"The label +{label} says that this {build.package} is compiled with CUDA {build.cuda}, which cannot make "
            "code for Blackwell, whatever CUDA torch is built for."
        ),
        source=f"{build.source}; https://docs.nvidia.com/cuda/archive/12.8.0/cuda-toolkit-release-notes/",
        date=build.date,
        severity="error",
        evidence="documented",
        kind="breaks",
        message="CUDA error: no kernel image is available for execution on the device",
        fix=f"Take the build of {build.package} for CUDA {_CUDA_OF_BLACKWELL} or newer.",
    )


def _index_rule(build: PublishedBuild) -> Rule:
    return Rule(
        id=f"{build.package}-index-{build.labels[0]}",
        when={"cuda": f"=={build.cuda}"},
        then={build.package: build.releases},
        conflict={},
        because=f"{build.location} has builds for CUDA {build.cuda} of {build.package} {build.releases} alone.",
        source=build.source,
        date=build.date,
        severity="error",
        evidence="documented",
        kind="pip-refuses",
        fix=f"Use {build.package} {build.releases} with CUDA {build.cuda}, or a build for another CUDA.",
    )


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
