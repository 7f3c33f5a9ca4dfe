"""The known facts of a combination: packages with exact versions or ranges, and the environment they run in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from packaging.ranges import VersionRange
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.compat.rule import ENV, Override, Rule, cuda_version, is_surrounding
from imagegen.core.gpu import Gpu
from imagegen.oci.documents import MACHINES

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
    described: bool = False  # a recipe states its requirements

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
    """A combination. `closed` means that a package without a fact is not installed; else nothing is known about it."""

    packages: Mapping[str, Fact]
    versions: Mapping[str, Fact]  # of surroundings (rule.VERSIONED) if known; cuda's if it is not "cpu"
    names: Mapping[str, str]  # the other surroundings: "base", "platform", and "cuda" if it is "cpu"
    closed: bool
    env: Mapping[str, str] | None = None  # the variables that are set, all of them; None: not known
    gpus: tuple[Gpu, ...] = ()  # on each of which it must work
    extras: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by package
    accepts: tuple[str, ...] = ()  # ids of rules that only warn
    overrides: tuple[Override, ...] = ()  # declared requirements of these packages do not count
    image: str = ""  # the image that has the overrides

    @property
    def overridden(self) -> frozenset[str]:
        """The packages whose declared requirements do not count."""
        return frozenset(override.package for override in self.overrides)


def rules_in_context(rules: Iterable[Rule], facts: Facts, required: Collection[str] = ()) -> list[Rule]:
    """Return the rules that count for the facts, with the severity that they have there.

    Rules that are accepted by id only warn. So do rules with a package of their `warns_with`, and direct rules, unless
    the facts request all of their packages; a lock requests none, and the packages in `required`, which other packages
    require, are not requested. A package that the facts do not name repairs nothing. Rules about an index do not count
    for packages that come from no index.
    """
    asked = frozenset() if facts.closed else facts.packages.keys() - set(required)
    built = {name for name, fact in facts.packages.items() if fact.built}
    return [
        _in_context(rule, facts, warns=rule.id in facts.accepts or _only_warns(rule, facts, asked))
        for rule in rules
        if not _is_overridden(rule, facts)
        if rule.leaders or rule.kind != "pip-refuses" or built.isdisjoint(rule.then)
    ]


def _only_warns(rule: Rule, facts: Facts, requested: Collection[str]) -> bool:
    if rule.direct and rule.packages.difference(requested):
        return True
    installed = (name for name in rule.warns_with if name in facts.packages)
    return any(facts.packages[name].range.is_subset(versions_in(rule.warns_with[name])) for name in installed)


def linked_rules(rules: Iterable[Rule], name: str, facts: Facts) -> tuple[Rule, ...]:
    """Return the rules that are linked to `name` because they name it, or share an open name with a linked rule.

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


def on_each_gpu(facts: Facts) -> tuple[Facts, ...]:
    """Return the facts once for each GPU, since the rules must hold on each; unchanged if there is no GPU."""
    gpu_facts = [replace(Fact.exactly(gpu.capability), text=gpu.name) for gpu in facts.gpus]
    return tuple(replace(facts, versions={**facts.versions, "gpu": fact}) for fact in gpu_facts) or (facts,)


def facts_on(
    packages: Mapping[str, Fact],
    axes: Mapping[str, str],
    base: str,
    libraries: Mapping[str, str | None],
    env: Mapping[str, str],
    *,
    closed: bool,
) -> Facts:
    """Return the facts of packages on a base, with values of the axes "cuda", "python" and "platform".

    `libraries` are the base's versions of glibc and libstdc++; None for an unknown one.
    """
    versions = {"python": Fact(axes["python"], versions_in(f"~={axes['python']}.0"))}
    versions |= {name: Fact.exactly(version) for name, version in libraries.items() if version}
    names = {"base": base, "platform": axes["platform"]}
    if cuda := cuda_version(axes["cuda"]):
        versions["cuda"] = Fact.exactly(cuda)
    else:
        names["cuda"] = axes["cuda"]
    return Facts(packages, versions, names, closed, env)
