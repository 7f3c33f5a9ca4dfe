"""Rules from names that packages share (matrices/api, matrices/imports): a release without one breaks who requires it.

Releases that refuse a keyword argument count as releases without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.compat import import_names
from imagegen.compat import package_names as api
from imagegen.compat.derived import derived_rule
from imagegen.compat.package_data import entries_of
from imagegen.compat.package_names import PackageNames, SharedName
from imagegen.compat.rule import Rule

_NAMED = 2  # names that one rule names

# provider, certain, keyword, releases of the package, of the provider, and whether these are refused
_Group = tuple[str, bool, bool, str, str, bool]


def api_rules(directories: Sequence[Path], package: str) -> list[Rule]:
    """Return the rules about names that a package requires, from the directories of matrices. Raises MatrixError."""
    tables = (api.load(directories, package), import_names.load(directories, package))
    read = [names for names in tables if names]
    every_name = tuple(name for names in read for name in names.names)
    return list(rules_of(PackageNames(package, max(names.read for names in read), names=every_name))) if read else []


def rules_of(names: PackageNames) -> Iterator[Rule]:
    """Yield one rule for all names that the same releases require, and the same releases of a provider lack."""
    groups: dict[_Group, list[SharedName]] = {}
    for shared_name in names.names:
        for required_by in shared_name.required_by:
            for lacked_by in shared_name.lacked_by:
                flags = shared_name.certain, bool(shared_name.keyword)
                group = (shared_name.provider, *flags, required_by, lacked_by, not shared_name.name)
                groups.setdefault(group, []).append(shared_name)
    ids: Counter[str] = Counter()
    for group, shared_names in _without_implied(groups).items():
        last = shared_names[0].keyword or shared_names[0].name.rpartition(".")[2] or "version"
        ids[name := f"api-{names.package}-{group[0]}-{last}"] += 1
        yield _rule(f"{name}-{ids[name]}" if ids[name] > 1 else name, names, group, shared_names)


def _without_implied(groups: Mapping[_Group, list[SharedName]]) -> dict[_Group, list[SharedName]]:
    """Return the groups that no other group implies; a group implies one with fewer releases on both sides."""
    spans = {group: (_Span.of(group[3]), _Span.of(group[4])) for group in groups}

    def implies(wider: _Group, other: _Group) -> bool:
        sure = wider[1] >= other[1] and wider[0] == other[0] and wider != other
        same = (wider[1], *wider[3:]) == (other[1], *other[3:])  # but for the keyword
        return (
            sure
            and (other[2] or not same)
            and all(span.covers(other_span) for span, other_span in zip(spans[wider], spans[other], strict=True))
        )

    return {
        group: shared_names
        for group, shared_names in groups.items()
        if not any(implies(candidate, group) for candidate in groups)
    }


@dataclass(frozen=True)
class _Span:
    """Releases between two bounds; None for no bound."""

    low: Version | None
    high: Version | None

    @classmethod
    def of(cls, specifier: str) -> _Span:
        bounds = {bound.operator[0]: Version(bound.version) for bound in SpecifierSet(specifier)}
        exact = bounds.get("=")
        return cls(bounds.get(">", exact), bounds.get("<", exact))

    def covers(self, other: _Span) -> bool:
        low = self.low is None or (other.low is not None and self.low <= other.low)
        return low and (self.high is None or (other.high is not None and self.high >= other.high))


def _rule(name: str, names: PackageNames, group: _Group, shared_names: Sequence[SharedName]) -> Rule:
    provider, certain, passed, required_by, lacked_by, refused = group
    first = shared_names[0]
    listed = sorted(
        {f"{shared_name.keyword} to {shared_name.name}" if passed else shared_name.name for shared_name in shared_names}
    )
    omitted = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    shown = f"{', '.join(listed[:_NAMED])}{omitted}"
    span = " to ".join(bound.lstrip("<>=") for bound in required_by.split(","))
    verb = "refuse" if refused else "pass" if passed else "import" if certain else "use"
    verb += "" if " to " in span else "es" if verb == "pass" else "s"
    lacks = f"refuses {_from(lacked_by)}" if passed else _lacks(lacked_by)
    because = f"{verb} {provider} {_from(lacked_by)}" if refused else f"{verb} {shown}, which {provider} {lacks}"
    limitation = "" if certain else f"; what needs {first.path} fails, the rest works"
    newest = f"{names.package} {span.rpartition(' ')[2]}"
    return derived_rule(
        name,
        f"{names.package} {span} {because}{limitation}.",
        when={names.package: required_by},
        conflict={provider: lacked_by},
        source=f"{first.path}, line {first.line}, of {newest}; {provider}'s wheels on PyPI",
        date=names.read,
        severity="error" if certain else "warning",
        evidence="measured",
        fix=f"Use {_others(provider, lacked_by, passed=passed)}, or another release of {names.package}.",
        message="" if refused else _message(first),
        unless=_users("defined-names", provider, {shared_name.name for shared_name in shared_names}),
        warns_with=_users("unused-modules", names.package, {_module(shared_name.path) for shared_name in shared_names}),
    )


def _users(section: str, package: str, names: Collection[str]) -> dict[str, str]:
    """Return package -> releases of the entries (data/packages.yaml) about another package that fit all names."""
    users: dict[str, str] = {}
    for entry in entries_of(section, package):
        if all(any(fnmatchcase(name, glob) for glob in entry["names"]) for name in names):
            users |= entry["by"]
    return users


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _message(name: SharedName) -> str:
    module, _, last = name.name.rpartition(".")
    if name.keyword:
        return f"TypeError: {last} got an unexpected keyword argument '{name.keyword}'"
    if name.module:
        return f"ModuleNotFoundError: No module named '{name.name}'"
    return f"ImportError: cannot import name '{last}' from '{module}'"


def _from(lacked_by: str) -> str:
    """Return a span of releases in words."""
    bounds = _bounds(lacked_by)
    if ">=" not in bounds:
        return f"before {bounds['<']}"
    end = f"to before {bounds['<']}" if "<" in bounds else "on"
    return f"from {bounds['>=']} {end}"


def _lacks(lacked_by: str) -> str:
    """Return the span of releases that lack a name in words."""
    bounds = _bounds(lacked_by)
    return f"does not have {_from(lacked_by)}" if ">=" in bounds else f"has from {bounds['<']} on"


def _others(provider: str, lacked_by: str, *, passed: bool) -> str:
    """Return the releases outside the span in words; releases around those that refuse may be unknown."""
    bounds = _bounds(lacked_by)
    if passed and len(bounds) > 1:
        return f"another release of {provider}"
    words = [f"older than {bounds['>=']}"] if ">=" in bounds else []
    return f"{provider} " + " or ".join([*words, *([f"{bounds['<']} or newer"] if "<" in bounds else [])])


def _bounds(specifier: str) -> dict[str, str]:
    return {bound.operator: bound.version for bound in SpecifierSet(specifier)}
