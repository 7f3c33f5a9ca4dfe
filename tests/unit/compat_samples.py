"""Package metadata made up for tests, and questions about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from packaging.version import Version

from imagegen.plan.matrix import Rule
from imagegen.plan.matrix.metadata import Package, Release
from imagegen.plan.rules import Fact, Facts, Library, Question

READ = "2026-11-21"
NAMES = {"platform": "linux/amd64"}


def rule(name: str, when: Mapping[str, str], then: Mapping[str, str] | None = None, **more: object) -> Rule:
    plain = Rule(name, when, then or {}, {}, f"because {name}", "source", "2026-11-20", "error", "measured", "fix")
    return replace(plain, **more)  # type: ignore[arg-type]


def package(name: str, releases: Mapping[str, Sequence[str]], **more: object) -> Package:
    """Releases by version, each with what it requires; `more` goes to each of them."""
    newest_first = sorted(releases, key=Version, reverse=True)
    made = {
        version: replace(Release(version, None, "", tuple(releases[version]), ()), **more)  # type: ignore[arg-type]
        for version in newest_first
    }
    return Package(name, "pypi", READ, None, (), made)


def library(*packages: Package) -> Library:
    known = {each.name: each for each in packages}
    return Library(known.get)


def question(**asked: str) -> Question:
    """About packages and surroundings by their specifiers, as `ask` makes them."""
    said = {name.replace("_", "-"): specifier for name, specifier in asked.items()}
    packages = {name: Fact.asked(specifier) for name, specifier in said.items() if name not in {"python", "cuda"}}
    versions = {}
    if "python" in said:
        versions["python"] = replace(Fact.within(f"~={said['python'][2:]}.0"), text=said["python"][2:])
    if "cuda" in said:
        versions["cuda"] = Fact.exactly(said["cuda"][2:])
    return Question(said, Facts(packages, versions, NAMES, closed=False))
