"""Rules from wheel scans about the libraries, versions and GPUs that the wheel of a release on PyPI needs.

A rule is about consecutive releases whose wheels have the same demand. It is about wheels for x86-64 without a local
version label: other builds of the same release are other files. demands.py reads the scans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

from imagegen.compat.derived import derived_rule, release_span
from imagegen.compat.facts import Fact, cuda_of_stack, machine_of, versions_in
from imagegen.compat.rule import Rule
from imagegen.core.deferred import dataclass
from imagegen.core.text import counted

if TYPE_CHECKING:
    from imagegen.compat.knowledge import RuleSubject

PREFIX = "scan:"  # of the ids of these rules
PLATFORM = "linux/amd64"  # for which wheels are scanned
# PyPI has the only known builds of these packages: their wheels have no label, whichever package requires them.
ONLY_ON_PYPI = frozenset({"bitsandbytes", "transformer-engine-cu12", "transformer-engine-cu13"})
# Packages that require these do not start without them: PyPI's wheel counts if a question names only the former.
_ESSENTIAL = frozenset({"sgl-kernel", "sglang-kernel", "vllm"})
_UNLABELLED = " +"  # in a condition: without a local version label


@dataclass(frozen=True)
class Demand:
    """A demand of wheels without their package, as the sides and the text of a rule."""

    about: str  # the last part of the rule's id
    when: tuple[tuple[str, str], ...]
    then: tuple[tuple[str, str], ...]
    conflict: tuple[tuple[str, str], ...]
    because: str  # the predicate of a sentence about the package and its releases
    message: str  # the error that users see
    fix: str
    unless: tuple[tuple[str, str], ...] = ()
    is_optional: bool = False  # stacks work without it: its rule only warns


@dataclass(frozen=True)
class WheelDemands:
    """The demands of the wheel of a release, and the source of the scan."""

    version: str  # canonical
    filename: str
    sha256: str
    read: str  # the day
    cuda: tuple[int, ...]  # the major versions whose libraries it can use; empty if it needs no such library
    demands: tuple[Demand, ...]


@dataclass(frozen=True)
class PackageDemands:
    """The demands of the scanned releases of a package, the oldest first."""

    name: str
    releases: Mapping[str, WheelDemands]


class ScanCache:
    """Demands by package, each read when it is first requested."""

    def __init__(self, load: Callable[[str], PackageDemands | None]) -> None:
        self._load = load
        self._known: dict[str, PackageDemands | None] = {}
        self._rules: dict[tuple[str, tuple[str, ...]], tuple[Rule, ...]] = {}

    def of(self, package: str) -> PackageDemands | None:
        if package not in self._known:
            self._known[package] = self._load(package)
        return self._known[package]

    def rules(self, package: str, releases: Sequence[str] | None = None) -> tuple[Rule, ...]:
        """Return the rules about these releases, the oldest first; without any, about all that were scanned."""
        demands = self.of(package)
        if demands is None:
            return ()
        key = package, tuple(demands.releases if releases is None else releases)
        if key not in self._rules:
            self._rules[key] = tuple(_rules(demands, key[1]))
        return self._rules[key]

    def rules_of_required(self, package: str, releases: Sequence[str], cuda: Fact | None) -> Iterator[Rule]:
        """Yield the rules about a package that others require and the question does not name.

        An installer takes PyPI's wheel. If that is for another major version of CUDA than the stack's, another
        build of the release may fit.
        """
        demands = self.of(package)
        if demands is None:
            return
        scanned = [release for release in releases if release in demands.releases]
        served = [version for version in scanned if _serves(demands.releases[version], cuda)]
        unserved = [version for version in scanned if version not in served]
        for rule in self.rules(package, served):
            yield of_any_build(rule, package)
        for rule in self.rules(package, unserved):
            doubt = f"{rule.because.removesuffix('.')}; its build for another CUDA may differ."
            yield replace(of_any_build(rule, package), evidence="remembered", because=doubt)


def locked_rules(subject: RuleSubject) -> Iterator[Rule]:
    """Yield the rules about packages of which the facts name one release that was not compiled from sources."""
    if subject.facts.names.get("platform") == PLATFORM:
        for name, fact in subject.facts.packages.items():
            if fact.version and not fact.built:
                yield from subject.knowledge.metadata.scans.rules(name, [fact.version.public])


def rules(subject: RuleSubject) -> Iterable[Rule]:
    """Return the rules about the releases of a package that the facts admit; if it is `is_free`, about all of them.

    Only wheels for x86_64 are scanned. A package that is compiled from sources has no rules. A package without a fact
    has rules only if PyPI has its only known build, or if the packages that require it do not start without it.
    """
    name, facts, metadata = subject.package, subject.facts, subject.knowledge.metadata
    fact = facts.packages.get(name)
    if machine_of(facts) != "x86_64" or (fact and fact.built):
        return ()
    if not fact and name not in ONLY_ON_PYPI | _ESSENTIAL:
        return ()
    releases = metadata.of(name)
    if not fact and name not in ONLY_ON_PYPI:
        numbers = [release.version for release in releases.all] if releases else []
        required = metadata.scans.rules_of_required(name, numbers, cuda_of_stack(facts))
        return (rule for rule in required if not rule.id.endswith(":cuda"))  # the stack's CUDA has its build
    scans = metadata.scans.of(name)
    if scans is None:
        return ()
    versions = releases.versions if releases else map(Version, scans.releases)
    admitted = [str(version) for version in versions if subject.is_free or fact is None or version in fact.range]
    return metadata.scans.rules(name, admitted)


def _rules(package_demands: PackageDemands, releases: Iterable[str]) -> Iterator[Rule]:
    """Yield the rules about each run of releases with equal demands; a release without a scan ends a run."""
    runs: dict[Demand, list[WheelDemands]] = {}
    for version in releases:
        wheel = package_demands.releases.get(version)
        demands = wheel.demands if wheel else ()
        for demand in [earlier for earlier in runs if earlier not in demands]:
            yield _rule(package_demands.name, demand, runs.pop(demand))
        for demand in demands:
            if wheel:
                runs.setdefault(demand, []).append(wheel)
    for demand, run in runs.items():
        yield _rule(package_demands.name, demand, run)


def _rule(package: str, demand: Demand, run: Sequence[WheelDemands]) -> Rule:
    first, last = run[0], run[-1]
    span, exact = release_span([wheel.version for wheel in run])
    # Builds for another CUDA need that library of another CUDA; the rule names the distribution of PyPI's build.
    of_all_builds = package in ONLY_ON_PYPI or demand.about == "library"
    more_wheels = "" if first is last else f", and {counted(len(run) - 1, 'more wheel')} up to {last.version}"
    return derived_rule(
        f"{PREFIX}{package}-{first.version}:{demand.about}",
        f"{package} {span} {demand.because}.",
        when={package: exact if of_all_builds else f"{exact}{_UNLABELLED}", **dict(demand.when)},
        then=dict(demand.then),
        conflict=dict(demand.conflict) or ({} if demand.then else {package: exact}),
        source=f"read from {first.filename} on PyPI, sha256 {first.sha256}{more_wheels}",
        date=max(wheel.read for wheel in run),
        severity="warning" if demand.is_optional else "error",
        evidence="measured",
        kind="degrades" if demand.is_optional else "breaks",
        message=demand.message,
        fix=f"{demand.fix}, or another release or build of {package}.",
        unless=dict(demand.unless),
    )


def of_any_build(rule: Rule, package: str) -> Rule:
    """Return the rule without its condition that the package has no label."""
    return replace(rule, when={**rule.when, package: rule.when[package].removesuffix(_UNLABELLED)})


def _serves(wheel: WheelDemands, cuda: Fact | None) -> bool:
    majors = (versions_in(f"=={major}.*") for major in wheel.cuda)
    return cuda is None or not wheel.cuda or any(not cuda.range.is_disjoint(versions) for versions in majors)
