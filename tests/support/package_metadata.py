"""Package metadata made up for tests, and questions about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packaging.version import Version

from imagegen.compat import Fact, Facts, MetadataCache, Question, table_of
from imagegen.compat.metadata import PackageReleases, ReleaseMetadata
from imagegen.compat.rule import Rule

READ = "2026-11-21"
NAMES = {"platform": "linux/amd64"}


def rule(name: str, when: Mapping[str, str], then: Mapping[str, str] | None = None, **more: object) -> Rule:
    plain = Rule(name, when, then or {}, {}, f"because {name}", "source", "2026-11-20", "error", "measured", "fix")
    return replace(plain, **more)  # type: ignore[arg-type]


def package(name: str, releases: Mapping[str, Sequence[str]], **more: object) -> PackageReleases:
    """Releases by version, each with what it requires; `more` goes to each of them."""
    newest_first = sorted(releases, key=Version, reverse=True)
    made = {
        version: replace(ReleaseMetadata(version, None, "", tuple(releases[version]), ()), **more)  # type: ignore[arg-type]
        for version in newest_first
    }
    return PackageReleases(name, "pypi", READ, None, (), made)


def library(*packages: PackageReleases) -> MetadataCache:
    known = {each.name: table_of(each) for each in packages}
    return MetadataCache(known.get)


def question(**requested: str) -> Question:
    """About packages and surroundings by their specifiers, as `ask` makes them."""
    said = {name.replace("_", "-"): specifier for name, specifier in requested.items()}
    packages = {name: Fact.requested(specifier) for name, specifier in said.items() if name not in {"python", "cuda"}}
    versions = {}
    if "python" in said:
        versions["python"] = replace(Fact.within(f"~={said['python'][2:]}.0"), text=said["python"][2:])
    if "cuda" in said:
        versions["cuda"] = Fact.exactly(said["cuda"][2:])
    return Question(said, Facts(packages, versions, NAMES, closed=False))


def with_facts(question: Question, **changes: Any) -> Question:
    """Return the question with other values of fields of its facts."""
    return replace(question, facts=replace(question.facts, **changes))
