"""The builds that a question is about: a version without a label means PyPI's build.

PyPI has one build of each release. If a question names a CUDA release, or a label that names one, it is about the
builds for that CUDA of any index.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from packaging.version import Version

from imagegen.compat.derived import derived_rule, release_span
from imagegen.compat.facts import Facts
from imagegen.compat.metadata import ReleaseMetadata
from imagegen.compat.published_builds import LEADER, Builds
from imagegen.compat.question import Question
from imagegen.compat.rule import NO_CUDA, Rule
from imagegen.compat.scans import PLATFORM, ScanCache, of_any_build
from imagegen.compat.statements import MetadataCache, Releases

if TYPE_CHECKING:
    from imagegen.compat.knowledge import Knowledge, RuleSubject

_PIN = re.compile(r"==\s*([^,*+\s]+)(?:\+[\w.]+)?")
_OF_TORCH, _OF_CUDA = ("torch", "c++-abi"), ("cuda", "driver")  # demands of wheel scans, by the end of their ids
_ARM = "linux/arm64"
_NAMED = 6  # labels that a reason names
# The source for PyPI's refusal of uploads with a label, and the day on which it was read.
_UPLOADS = ("https://packaging.python.org/en/latest/specifications/version-specifiers/", "2026-11-28")
_ANY = "?*"  # glob over labels: at least one character
_CUDA_LABEL = re.compile(r"(?<![a-z])cu[1-9][0-9][0-9](?![0-9])")  # cu128; cu12 is only a major version


def choose_builds(question: Question, knowledge: Knowledge) -> Question:
    """Return the question with the builds that its versions without a label mean, and a sentence about each."""
    facts, builds = question.facts, knowledge.builds
    if builds is None:
        return question
    packages = dict(facts.packages)
    if not _names_cuda(question):
        for name in builds.family() & packages.keys():
            fact = packages[name]
            if fact.local is None and question.requested.get(name) and not fact.built:
                packages[name] = replace(fact, local="")
    chosen = replace(question, facts=replace(facts, packages=packages))
    return replace(chosen, assumed=(*question.assumed, *_sentences(chosen, knowledge.metadata, builds)))


def rules(subject: RuleSubject) -> tuple[Rule, ...]:
    """Return the rules about builds in the question: PyPI's, those that are PyPI's too, those that do not exist."""
    question, metadata, builds = subject.question, subject.knowledge.metadata, subject.knowledge.builds
    if question is None or builds is None:
        return ()
    leader = metadata.of(LEADER) if builds.family() & question.facts.packages.keys() else None
    of_pypi = _of_pypi(leader) if leader else ()
    missing = (*_missing(question, metadata, builds), *_elsewhere(question, builds))
    return (*of_pypi, *_scanned(question, metadata, builds), *missing)


def _names_cuda(question: Question) -> bool:
    facts = question.facts
    labels = (fact.local or "" for name, fact in facts.packages.items() if name in question.requested)
    is_requested = "cuda" in facts.versions and (question.image is None or "cuda" in question.requested)
    return is_requested or facts.names.get("cuda") == NO_CUDA or any(map(_CUDA_LABEL.search, labels))


def pinned_release(question: Question, name: str) -> str | None:
    """Return the release that the question pins, without its label; None for a range, and for a commit."""
    fact, pin = question.facts.packages.get(name), _PIN.fullmatch(question.requested.get(name, ""))
    return Version(pin[1]).public if pin and fact and not fact.built else None


def _sentences(question: Question, metadata: MetadataCache, builds: Builds) -> Iterator[str]:
    """Yield which build of the leader its version without a label means, if that is known."""
    release, fact = pinned_release(question, LEADER), question.facts.packages.get(LEADER)
    if release is None or fact is None or fact.local:
        return
    of_pypi, cuda = _cuda_of_pypi(LEADER, release, question, metadata, builds), question.facts.versions.get("cuda")
    requested_cuda = cuda.text if cuda and fact.local is None else None
    build = next(
        (
            candidate
            for candidate in builds.of(LEADER, release)
            if candidate.labels and candidate.cuda == requested_cuda
        ),
        None,
    )
    if of_pypi and (fact.local == "" or requested_cuda == of_pypi):
        labels = ", ".join(f"+{label}" for label in builds.labels(LEADER, release))
        yield f"{LEADER} {release} (PyPI's build, {_spoken(of_pypi)}); other builds have a label: {labels or 'none'}"
    elif build:
        yield f"{LEADER} {release}+{build.labels[0]} ({build.location}, CUDA {build.cuda})"


def _spoken(cuda: str) -> str:
    return "without CUDA" if cuda == NO_CUDA else f"CUDA {cuda}"


def _cuda_of_pypi(name: str, release: str, question: Question, metadata: MetadataCache, builds: Builds) -> str | None:
    """Return the CUDA release of PyPI's build for the platform of the question, if it is known."""
    releases = metadata.of(name) if name == LEADER else None
    entry = releases.package.releases.get(release) if releases else None
    if entry:
        applies = question.facts.names.get("platform") == PLATFORM or _is_everywhere(entry)
        return entry.cuda if applies or entry.cuda is None else NO_CUDA
    build = builds.build(name, release, "")
    return build.cuda if build else None


def _of_pypi(leader: Releases) -> Iterator[Rule]:
    """Yield the rules about each run of releases whose builds on PyPI are for the same CUDA."""
    for (cuda, everywhere), run in groupby(leader.all, lambda release: (release.cuda, _is_everywhere(release))):
        releases = [release.version for release in run]
        if cuda and everywhere:
            yield _for_cuda(leader, releases, cuda)
        elif cuda:
            rule = _for_cuda(leader, releases, cuda)
            yield replace(rule, when={**rule.when, "platform": PLATFORM})
            yield _without_cuda(rule)


def _for_cuda(leader: Releases, releases: Sequence[str], cuda: str) -> Rule:
    span, specifier = release_span(releases)
    return derived_rule(
        f"build:{LEADER}-{releases[0]}",
        f"PyPI's {LEADER} {span}, which has no label, is built for CUDA {cuda}.",
        when={LEADER: f"{specifier} +"},
        then={"cuda": f"=={cuda}"},
        source=f"PyPI metadata of {LEADER} {span}: the CUDA runtime that it requires",
        date=leader.package.read or "",
        fix=f"Name the build for another CUDA by its label, or {LEADER}'s index.",
    )


def _without_cuda(rule: Rule) -> Rule:
    """Return the rule about PyPI's builds of the same releases for arm64, which require no CUDA."""
    return replace(
        rule,
        id=f"{rule.id}:arm64",
        when={**rule.when, "platform": _ARM},
        then={},
        conflict={"gpu": ">=1.0"},
        because=rule.because.partition(" is built ")[0] + f" is built without CUDA for {_ARM}.",
    )


def _scanned(question: Question, metadata: MetadataCache, builds: Builds) -> Iterator[Rule]:
    """Yield the rules of wheel scans that also hold for builds with a label or with an open label.

    The leader's build for the CUDA of PyPI's build is PyPI's build. All builds of another package's release are
    compiled with the one torch that it requires. Source of the first:
    https://github.com/pytorch/pytorch/blob/2f805b59/scripts/release/promote/prep_binary_for_pypi.sh, 2026-11-24
    """
    if question.facts.names.get("platform") != PLATFORM:
        return
    leader = question.facts.packages.get(LEADER)
    # Built as torch's build with the same label, which may have another ABI than PyPI's.
    of_torch = {(name, leader.local) for name in builds.family() if leader and leader.local}
    for name, fact in question.facts.packages.items():
        release, scans = pinned_release(question, name), metadata.scans.of(name)
        if scans is None or fact.built:
            continue
        build = builds.build(name, release, fact.local) if release and fact.local else None
        of_pypi = _cuda_of_pypi(name, release, question, metadata, builds) if name == LEADER and release else None
        for rule in metadata.scans.rules(
            name, [version for version in scans.releases if Version(version) in fact.range]
        ):
            if build and (name, fact.local) in of_torch and _demand(rule) == "c++-abi":
                continue
            if build and (build.cuda == of_pypi or _demand(rule) in _OF_TORCH):
                yield _labelled(rule, name, fact.local or "")
            elif fact.local is None:
                yield from _open_labels([rule], name)


def open_label_rules(facts_of_cells: Iterable[Facts], scans: ScanCache) -> Iterator[Rule]:
    """Yield the rules of wheel scans that hold for every build of a package whose label a cell leaves open."""
    names = {name for facts in facts_of_cells for name, fact in facts.packages.items() if fact.local is None}
    for name in sorted(names):
        yield from _open_labels(scans.rules(name), name)


def _open_labels(rules: Iterable[Rule], name: str) -> Iterator[Rule]:
    for rule in rules:
        if _demand(rule) in _OF_TORCH:
            yield replace(of_any_build(rule, name), id=f"{rule.id}+*")


def unscanned_rules(subject: RuleSubject) -> Iterator[Rule]:
    """Yield the rules of wheel scans that other builds of these releases probably break too.

    A suggestion obeys them: a build that was not scanned is known to differ from PyPI's only in its CUDA.
    """
    builds, scans = subject.knowledge.builds or Builds(), subject.knowledge.metadata.scans
    for name in subject.facts.packages:
        for rule in scans.rules(name) if name not in builds.family() and builds.of(name) else ():
            if not _demand(rule).startswith(_OF_CUDA):
                yield _labelled(rule, name, _ANY)


def _demand(rule: Rule) -> str:
    return rule.id.rpartition(":")[2]


def _labelled(rule: Rule, name: str, label: str) -> Rule:
    """Return the rule about PyPI's build of a package as one about the build with the label."""
    when = {**rule.when, name: f"{rule.when[name]}{label}"}
    return replace(rule, id=f"{rule.id}+{label}", when=when)


def _is_everywhere(release: ReleaseMetadata) -> bool:
    """Return whether the release requires CUDA on every platform of Linux; before 2.11, torch did only on x86-64."""
    of_cuda = (text for text in release.requires or () if text.startswith(("nvidia-", "cuda-")))
    return not any("platform_machine" in text for text in of_cuda)


def _missing(question: Question, metadata: MetadataCache, builds: Builds) -> Iterator[Rule]:
    """Yield a rule for each label in the question that no known build of the release has.

    It only doubts labels that may exist: of a publisher that adds builds, or of another form.
    """
    for name, fact in question.facts.packages.items():
        release = pinned_release(question, name)
        if release is None or not fact.local or builds.build(name, release, fact.local):
            continue
        statements = builds.of(name, release)
        cuda = _cuda_of_pypi(name, release, question, metadata, builds)
        labels = builds.labels(name, release)
        available = [f"PyPI's{f' ({_spoken(cuda)})' if cuda else ''}"] if cuda or not labels else []
        available += [f"+{label}" for label in labels[:_NAMED]]
        available += [f"{len(labels) - _NAMED} more"] if len(labels) > _NAMED else []
        doubtful = any(statement.open_ended for statement in statements) or not builds.is_missing(
            name, release, fact.local
        )
        yield derived_rule(
            f"build:{name}-{release}+{fact.local}",
            f"No build {name} {release}+{fact.local} is known; builds of {release} are {', '.join(available)}.",
            when={name: f"=={release}"},
            conflict={name: f"+{fact.local}"},
            source="; ".join(dict.fromkeys(statement.source for statement in statements)) or _UPLOADS[0],
            date=max((statement.date for statement in statements), default=_UPLOADS[1]),
            evidence="remembered" if doubtful else "documented",
            message=f"No matching distribution found for {name}=={release}+{fact.local}",
            fix=f"Name one of these builds{', or the address of the wheel' if doubtful else ''}.",
        )


def _elsewhere(question: Question, builds: Builds) -> Iterator[Rule]:
    """Yield a rule for each label in the question that the release has only for other platforms."""
    platform = question.facts.names.get("platform")
    for name, fact in question.facts.packages.items():
        release = pinned_release(question, name)
        matches = [build for build in builds.of(name, release) if fact.local and fact.local in build.labels]
        if release is None or platform is None or not matches or any(build.is_for(platform) for build in matches):
            continue
        platforms = sorted({platform for build in matches for platform in build.platforms})
        other_labels = builds.labels(name, release, platform)
        fix = f"Use +{other_labels[0]}, or {platforms[0]}" if other_labels else f"Use {platforms[0]}"
        yield derived_rule(
            f"build:{name}-{release}+{fact.local}:platform",
            f"{matches[0].location} has {name} {release}+{fact.local} for {' and '.join(platforms)} alone.",
            when={name: f"=={release} +{fact.local}"},
            then={"platform": platforms[0]} if len(platforms) == 1 else {},
            conflict={} if len(platforms) == 1 else {"platform": platform},
            source="; ".join(dict.fromkeys(build.source for build in matches)),
            date=max(build.date for build in matches),
            message=f"{name}-{release}+{fact.local} has no wheel with a matching platform tag",
            fix=f"{fix}, or compile it.",
        )
