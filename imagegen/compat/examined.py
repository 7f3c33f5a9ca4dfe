"""The data of each named package that were examined for an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from packaging.version import Version

from imagegen.compat.builds import pinned_release
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.question import Question
from imagegen.compat.statements import MetadataCache
from imagegen.compat.why import Explanation

# Declared metadata of a release in question; the libraries of its wheel; imports of its modules, by it and others, or
# only imports by top-level modules, which are harvested; the builds that its project publishes for each torch; rules
# that name the package.
Examined = Literal["metadata", "wheel", "imports", "top-level imports", "builds", "rules"]


def compared_releases(question: Question, metadata: MetadataCache) -> dict[str, str]:
    """Return the known releases that a question pins together, without labels.

    None of a cell, whose audit reads all, and of a file, which pins too many for a question to read.
    """
    if question.cell or question.file:
        return {}
    pins = {name: release for name in question.facts.packages if (release := pinned_release(question, name))}
    compared = {
        name: release
        for name, release in pins.items()
        if (listed := metadata.of(name)) and release in listed.package.releases
    }
    return compared if len(compared) > 1 else {}


def examined_data(
    question: Question, knowledge: Knowledge, imports_read: Mapping[str, Examined]
) -> dict[str, tuple[Examined, ...]]:
    """Return the data that were read, by package; `imports_read` says which imports were compared."""
    return {name: tuple(_read(name, question, knowledge, imports_read)) for name in question.facts.packages}


def _read(name: str, question: Question, knowledge: Knowledge, imports_read: Mapping[str, Examined]) -> list[Examined]:
    fact, releases, scans = (
        question.facts.packages[name],
        knowledge.metadata.of(name),
        knowledge.metadata.scans.of(name),
    )
    scanned = map(Version, scans.releases) if scans and not fact.built else ()
    is_read: dict[Examined, bool] = {
        "metadata": releases is not None and not fact.built and bool(releases.within(fact)),
        "wheel": any(version in fact.range for version in scanned),
        "imports": imports_read.get(name) == "imports",
        "top-level imports": imports_read.get(name) == "top-level imports",
        "builds": knowledge.builds is not None and bool(knowledge.builds.of(name)),
        "rules": any(name in rule.packages for rule in knowledge.rules),
    }
    return [data for data, counts in is_read.items() if counts]


def unread_releases(
    question: Question, metadata: MetadataCache, examined: Mapping[str, Sequence[Examined]]
) -> dict[str, str]:
    """Return the releases with wheels that are pinned together and of which no file was read."""
    return {
        name: release
        for name, release in compared_releases(question, metadata).items()
        if not {"wheel", "imports", "top-level imports", "builds"} & set(examined[name])
        and (listed := metadata.of(name))
        and listed.package.releases[release].wheels
    }


def with_unread(explanation: Explanation, question: Question, unread: Mapping[str, str]) -> Explanation:
    """Return the explanation, unknown instead of compatible if files of a pinned release were never read."""
    if explanation.answer != "compatible" or not unread:
        return explanation
    sentences = (
        f"{name} {release}: its files were not read; `{question.command()}` reads them where an index can be asked"
        for name, release in unread.items()
    )
    return replace(explanation, answer="unknown", unknown=(*explanation.unknown, *sentences))
