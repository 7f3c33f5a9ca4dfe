"""Rules from the names that packages share (matrices/api): a release that lacks one breaks those that require it.

An argument that calls pass by keyword is lacked by the releases that refuse it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.plan.matrix import api
from imagegen.plan.matrix.api import PackageNames, SharedName
from imagegen.plan.matrix.model import Rule

_NAMED = 2  # names that one rule names

_Group = tuple[str, bool, bool, str, str]  # provider, certain, keyword, releases of the package, of the provider


def api_rules(directories: Sequence[Path], package: str) -> list[Rule]:
    """Return the rules about names that a package requires, from the directories of matrices. Raises MatrixError."""
    found = api.load(directories, package)
    return list(rules_of(found)) if found else []


def rules_of(names: PackageNames) -> Iterator[Rule]:
    """Yield one rule for all names that the same releases require, and the same releases of a provider lack."""
    groups: dict[_Group, list[SharedName]] = {}
    for each in names.names:
        for required_by in each.required_by:
            for lacked_by in each.lacked_by:
                group = (each.provider, each.certain, bool(each.keyword), required_by, lacked_by)
                groups.setdefault(group, []).append(each)
    ids: Counter[str] = Counter()
    for group, found in _without_implied(groups).items():
        ids[name := f"api-{names.package}-{group[0]}-{found[0].keyword or found[0].name.rpartition('.')[2]}"] += 1
        yield _rule(f"{name}-{ids[name]}" if ids[name] > 1 else name, names, group, found)


def _without_implied(groups: Mapping[_Group, list[SharedName]]) -> dict[_Group, list[SharedName]]:
    """Return the groups without those that say less than another one: of fewer releases on both sides, no more sure."""
    spans = {group: (_Span.of(group[3]), _Span.of(group[4])) for group in groups}

    def implies(one: _Group, other: _Group) -> bool:
        sure = one[1] >= other[1] and one[0] == other[0] and one != other
        same = (one[1], *one[3:]) == (other[1], *other[3:])  # but for the keyword
        return (
            sure
            and (other[2] or not same)
            and all(mine.covers(theirs) for mine, theirs in zip(spans[one], spans[other], strict=True))
        )

    return {group: found for group, found in groups.items() if not any(implies(each, group) for each in groups)}


@dataclass(frozen=True)
class _Span:
    """Releases between two bounds; None for no bound."""

    low: Version | None
    high: Version | None

    @classmethod
    def of(cls, specifier: str) -> _Span:
        bounds = {each.operator[0]: Version(each.version) for each in SpecifierSet(specifier)}
        exact = bounds.get("=")
        return cls(bounds.get(">", exact), bounds.get("<", exact))

    def covers(self, other: _Span) -> bool:
        low = self.low is None or (other.low is not None and self.low <= other.low)
        return low and (self.high is None or (other.high is not None and self.high >= other.high))


def _rule(name: str, names: PackageNames, group: _Group, found: Sequence[SharedName]) -> Rule:
    provider, certain, passed, required_by, lacked_by = group
    first = found[0]
    listed = sorted({f"{each.keyword} to {each.name}" if passed else each.name for each in found})
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    shown = f"{', '.join(listed[:_NAMED])}{more}"
    span = _span(required_by)
    verb = "pass" if passed else "import" if certain else "use"
    verb += "" if " to " in span else "es" if passed else "s"
    lacks = _refuses(lacked_by) if passed else _lacks(lacked_by)
    place = "" if certain else f"; what needs {first.path} fails, the rest works"
    newest = f"{names.package} {span.rpartition(' ')[2]}"
    return Rule(
        id=name,
        when={names.package: required_by},
        then={},
        conflict={provider: lacked_by},
        because=f"{names.package} {span} {verb} {shown}, which {provider} {lacks}{place}.",
        source=f"{first.path}, line {first.line}, of {newest}; {provider}'s wheels on PyPI",
        date=names.read,
        severity="error" if certain else "warning",
        evidence="measured",
        fix=f"Use {_others(provider, lacked_by, passed=passed)}, or another release of {names.package}.",
        kind="breaks",
        message=_message(first),
    )


def _message(name: SharedName) -> str:
    module, _, last = name.name.rpartition(".")
    if name.keyword:
        return f"TypeError: {last} got an unexpected keyword argument '{name.keyword}'"
    if name.module:
        return f"ModuleNotFoundError: No module named '{name.name}'"
    return f"ImportError: cannot import name '{last}' from '{module}'"


def _span(required_by: str) -> str:
    """Return a bounded specifier in words: "0.7.1 to 0.9.1"."""
    return " to ".join(bound.lstrip("<>=") for bound in required_by.split(","))


def _refuses(lacked_by: str) -> str:
    """Return the span of releases that refuse a keyword in words."""
    bounds = _bounds(lacked_by)
    if ">=" not in bounds:
        return f"refuses before {bounds['<']}"
    end = f" to before {bounds['<']}" if "<" in bounds else " on"
    return f"refuses from {bounds['>=']}{end}"


def _lacks(lacked_by: str) -> str:
    """Return the span of releases that lack a name in words."""
    bounds = _bounds(lacked_by)
    if ">=" not in bounds:
        return f"has from {bounds['<']} on"
    end = f" to before {bounds['<']}" if "<" in bounds else " on"
    return f"does not have from {bounds['>=']}{end}"


def _others(provider: str, lacked_by: str, *, passed: bool) -> str:
    """Return the releases outside the span in words; what is before and after releases that refuse may not be known."""
    bounds = _bounds(lacked_by)
    if passed and len(bounds) > 1:
        return f"another release of {provider}"
    words = [f"older than {bounds['>=']}"] if ">=" in bounds else []
    return f"{provider} " + " or ".join([*words, *([f"{bounds['<']} or newer"] if "<" in bounds else [])])


def _bounds(specifier: str) -> dict[str, str]:
    return {each.operator: each.version for each in SpecifierSet(specifier)}
