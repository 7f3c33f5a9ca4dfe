"""The known facts of a combination: packages with exact versions or ranges, and the environment they run in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

from packaging.ranges import VersionRange
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.core.types import Gpu
from imagegen.oci.documents import MACHINES
from imagegen.spec.model import ENV, Cell, Requirement, Rule, cuda_version, is_surrounding

ANY = ">=0.dev0"  # every PEP 440 version; the empty specifier would let in arbitrary strings too


@cache
def versions_in(specifier: str) -> VersionRange:
    """The versions that a PEP 440 specifier admits, pre-releases too; "" admits all."""
    return SpecifierSet(specifier or ANY, prereleases=True).to_range()


@dataclass(frozen=True)
class Fact:
    """The possible versions of a name, and the local version label ("" for none, None if unknown)."""

    text: str  # as users write it: "2.13.0+cpu", ">=5.9,<5.11"
    range: VersionRange
    local: str | None = None
    version: Version | None = None  # if only one is possible
    built: bool = False  # from sources: metadata and scans of its release do not count

    @classmethod
    def exactly(cls, text: str) -> Fact:
        version = Version(text)
        return cls(text, VersionRange.singleton(version, prereleases=True), version.local or "", version)

    @classmethod
    def requested(cls, specifier: str, local: str | None = None) -> Fact:
        """Return a fact as `within` does, with a pin's local label apart from the version."""
        match = re.fullmatch(r"==\s*+([^,*]+)", specifier)
        if not match:
            return cls.within(specifier, local)
        version = Version(match[1])
        return cls(str(version), versions_in(f"=={version.public}"), version.local or local)

    @classmethod
    def within(cls, specifier: str, local: str | None = None) -> Fact:
        return cls(specifier or "any version", versions_in(specifier), local)


@dataclass(frozen=True)
class Facts:
    """`closed` means that a package without a fact is not installed; otherwise nothing is known about it."""

    packages: Mapping[str, Fact]
    versions: Mapping[str, Fact]  # of surroundings (spec.model.VERSIONED) if known; cuda's if it is not "cpu"
    names: Mapping[str, str]  # the other surroundings: "base", "platform", and "cuda" if it is "cpu"
    closed: bool
    env: Mapping[str, str] | None = None  # the variables that are set, all of them; None: not known
    overridden: frozenset[str] = frozenset()  # packages whose declared requirements do not count


def facts_of_cell(cell: Cell) -> Facts:
    """Return the facts before resolution: ranges, and labels that the cell's indexes will give."""
    packages = {requirement.component.package: _required(requirement) for requirement in cell.requirements}
    env = {variable.name: variable.value for variable in cell.env}
    facts = _facts(packages, cell.axes, cell.base.name, cell.base.glibc, env, closed=False)
    return replace(facts, overridden=overridden_in(cell))


def overridden_in(cell: Cell) -> frozenset[str]:
    """Return the packages whose declared requirements the cell overrides."""
    return frozenset(override.package for override in cell.overrides)


def rules_in_context(
    rules: Iterable[Rule], facts: Facts, accepts: Collection[str] = (), required: Collection[str] = ()
) -> list[Rule]:
    """Return the rules that count for the facts, with the severity that they have there.

    Rules that are accepted by id only warn. So do direct rules, unless the facts request all of their packages; a lock
    requests none, and the packages in `required`, which other packages require, are not requested. A package that the
    facts do not name repairs nothing. Rules about an index do not count for packages that come from no index.
    """
    asked = frozenset() if facts.closed else facts.packages.keys() - set(required)
    built = {name for name, fact in facts.packages.items() if fact.built}
    return [
        _in_context(rule, facts, warns=rule.id in accepts or (rule.direct and bool(rule.packages - asked)))
        for rule in rules
        if not _is_overridden(rule, facts)
        if rule.leaders or rule.kind != "pip-refuses" or built.isdisjoint(rule.then)
    ]


def linked_rules(rules: Iterable[Rule], name: str, facts: Facts) -> tuple[Rule, ...]:
    """Return the rules that are linked to `name`: they name it, or share an open name with a linked rule.

    If the facts are not closed, return all rules.
    """
    rules = tuple(rules)
    if not facts.closed:
        return rules
    linked, linked_ids = {name}, frozenset[str]()
    while added := {rule.id for rule in rules if rule.id not in linked_ids and not linked.isdisjoint(rule.names)}:
        linked_ids |= added
        linked |= {
            rule_name
            for rule in rules
            if rule.id in added
            for rule_name in rule.names
            if not _is_decided(rule_name, facts)
        }
    return tuple(rule for rule in rules if rule.id in linked_ids)


def _is_decided(name: str, facts: Facts) -> bool:
    """Return whether closed facts leave one value for a name; a package has its label too."""
    if name.startswith(ENV):
        return facts.env is not None
    fact = facts.versions.get(name) or facts.packages.get(name)
    if fact is None:
        return name in facts.names or not is_surrounding(name)
    return fact.version is not None and (is_surrounding(name) or fact.local is not None)


def _is_overridden(rule: Rule, facts: Facts) -> bool:
    """Return whether the rule is a declared requirement of packages that the facts override."""
    required = rule.then.keys() | rule.conflict.keys()
    return rule.kind == "pip-refuses" and bool(required) and required <= facts.overridden


def _in_context(rule: Rule, facts: Facts, *, warns: bool) -> Rule:
    if warns:
        rule = replace(rule, severity="warning")
    if rule.unless.keys() - facts.packages.keys():
        rule = replace(rule, unless={name: text for name, text in rule.unless.items() if name in facts.packages})
    return rule


def cuda_of_stack(facts: Facts) -> Fact | None:
    """Return the CUDA of the stack, by itself or by the label of torch; None where neither is known."""
    torch = facts.packages.get("torch")
    labelled = cuda_version(torch.local) if torch and torch.local else None
    return facts.versions.get("cuda") or (Fact.exactly(labelled) if labelled else None)


def machine_of(facts: Facts) -> str:
    """Return the machine as wheel tags name it: x86_64 where the facts name no platform."""
    return MACHINES.get(facts.names.get("platform", ""), "x86_64")


def extras_of(cell: Cell) -> dict[str, frozenset[str]]:
    """Return package -> its extras that the cell requires, if any."""
    return {
        requirement.component.package: frozenset(requirement.extras)
        for requirement in cell.requirements
        if requirement.extras
    }


def _label(requirement: Requirement) -> str | None:
    """Return the local version label of the build that a requirement selects, if it is known; PyPI has no labels.

    A commit counts as a label, since its version does not distinguish it from the release.
    """
    if requirement.git:
        return f"git.{requirement.git.name}".lower()
    if requirement.address:
        return requirement.address.version.local or ""
    foreign = requirement.component.compiled and not requirement.from_source  # from wherever a wheel is
    return requirement.label or ("" if requirement.index == "pypi" and not foreign else None)


def _required(requested: Requirement) -> Fact:
    if requested.git:
        return replace(Fact.requested(f"=={requested.git.metadata.version}", _label(requested)), built=True)
    return Fact.requested(requested.specifier, _label(requested))


def on_each(gpus: Iterable[Gpu], facts: Facts) -> tuple[Facts, ...]:
    """Return the facts once for each GPU, since the rules must hold on each; unchanged if there is no GPU."""
    gpu_facts = [replace(Fact.exactly(gpu.capability), text=gpu.name) for gpu in gpus]
    return tuple(replace(facts, versions={**facts.versions, "gpu": fact}) for fact in gpu_facts) or (facts,)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Deb(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...


class _Package(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def release(self) -> str: ...


class _Variable(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...


class LockLike(Protocol):
    """The parts of lock's Lock that rules need; rules stand below lock and do not import it."""

    @property
    def axes(self) -> Mapping[str, str]: ...
    @property
    def base(self) -> _Named: ...
    @property
    def debs(self) -> Iterable[_Deb]: ...
    @property
    def packages(self) -> Iterable[_Package]: ...
    @property
    def builds(self) -> Iterable[_Named]: ...
    @property
    def env(self) -> Iterable[_Variable]: ...


def facts_of_lock(lock: LockLike, glibc: str | None = None) -> Facts:
    """Return the facts after resolution: every package's exact version, and glibc's.

    The version is read from the base's package libc6; `glibc` is for bases that do not list their packages.
    """
    built = {build.name for build in lock.builds}
    packages = {
        package.name: replace(Fact.exactly(package.release), built=package.name in built) for package in lock.packages
    }
    glibc = next((deb.version.partition("-")[0] for deb in lock.debs if deb.name == "libc6"), glibc)
    env = {variable.name: variable.value for variable in lock.env}
    return _facts(packages, lock.axes, lock.base.name, glibc, env, closed=True)


def _facts(
    packages: Mapping[str, Fact],
    axes: Mapping[str, str],
    base: str,
    glibc: str | None,
    env: Mapping[str, str],
    *,
    closed: bool,
) -> Facts:
    versions = {"python": Fact(axes["python"], versions_in(f"~={axes['python']}.0"))}
    if glibc:
        versions["glibc"] = Fact.exactly(glibc)
    names = {"base": base, "platform": axes["platform"]}
    if cuda := cuda_version(axes["cuda"]):
        versions["cuda"] = Fact.exactly(cuda)
    else:
        names["cuda"] = axes["cuda"]
    return Facts(packages, versions, names, closed, env)
