"""Answer a typed question: parse it, ask the index for unknown names, explain it, and find alternatives.

It stands above imagegen.spec and imagegen.wheels, which the rest of imagegen.compat does not import.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple, Protocol

from packaging.version import Version

from imagegen.compat.completion import complete, complete_names
from imagegen.compat.examined import Examined, compared_releases, examined_data, unread_releases, with_unread
from imagegen.compat.facts import Facts
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.knowledge_files import KnowledgeFiles
from imagegen.compat.question import PinnedFile, Question, missing_metadata, requested_extras, requirements
from imagegen.compat.rule import Rule, is_surrounding
from imagegen.compat.suggestions import suggest
from imagegen.compat.why import Explanation, explain
from imagegen.compat.witness import Witness, find_witness
from imagegen.core.context import Context
from imagegen.spec.cells import Matrix
from imagegen.spec.questions import parse_question, platform_choices, vocabulary_of
from imagegen.wheels.compiling import NeededBuild, needed_builds

if TYPE_CHECKING:
    from imagegen.wheels.catalogue import Catalogue

_NEIGHBOURS = 3  # releases before a pinned one that are enough for suggestions
_ROUNDS = 2  # of questions to the index: the second is about releases that packages of the first one require


class Sources(Protocol):
    """The data that answers come from. The context is needed only to ask the index."""

    @property
    def matrix(self) -> Matrix: ...
    @property
    def knowledge(self) -> Knowledge: ...
    @property
    def knowledge_files(self) -> KnowledgeFiles: ...
    @property
    def wheel_catalogue(self) -> Catalogue: ...
    @property
    def context(self) -> Context: ...


class WorkingCombination(NamedTuple):
    """A combination that works, with its changes by name, the command that asks about it, and its builds."""

    changes: dict[str, str]
    command: str
    builds: tuple[NeededBuild, ...]


class QuestionAnswer(NamedTuple):
    """The answer to a question, with the nearest combinations that work."""

    question: Question
    explanation: Explanation
    nearest: Sequence[WorkingCombination]
    examined: Mapping[str, Sequence[Examined]]  # by package
    witness: Witness | None = None  # an image that has the combination, if all packages are free

    @property
    def exit_code(self) -> int:
        """Return 0 if nothing speaks against the combination, 1 if it cannot work, and 2 if that is unknown."""
        return {"compatible": 0, "incompatible": 1, "unknown": 2}[self.explanation.answer]


def answer(
    sources: Sources,
    words: Sequence[str],
    sets: Sequence[str] = (),
    model: str = "",
    facts: Facts | None = None,
    file: PinnedFile | None = None,
) -> QuestionAnswer:
    """Return the answer about the words and `--set` options for a model type ("": none).

    `facts` and `file` are as in `parse_question`. Raises UsageError, MatrixError.
    """
    question = _parse(sources, words, sets, facts, file)
    question = replace(complete(question, sources.knowledge), model=model)
    answered = _explained(sources, question)
    explanation = with_unread(answered.explanation, question, answered.unread)
    if explanation.answer == "compatible":
        return QuestionAnswer(question, explanation, [], answered.examined, find_witness(question, sources.matrix))
    nearest = _nearest(sources, _changeable(question, answered.knowledge), answered)
    return QuestionAnswer(question, explanation, nearest, answered.examined)


class _Explained(NamedTuple):
    """An answer, the knowledge that it rests on, what was examined, and pinned releases of which no file was read."""

    explanation: Explanation
    knowledge: Knowledge
    examined: Mapping[str, Sequence[Examined]]
    unread: Mapping[str, str]


def _explained(sources: Sources, question: Question) -> _Explained:
    knowledge, imports_read = _with_imports(sources, question)
    explanation = explain(question, knowledge)
    asked: set[str] = set()
    while explanation.answer == "unknown" and _read_older(sources, question, explanation.unread - asked):
        asked |= explanation.unread
        explanation = explain(question, knowledge)
    examined = examined_data(question, knowledge, imports_read)
    return _Explained(explanation, knowledge, examined, unread_releases(question, knowledge.metadata, examined))


def _with_imports(sources: Sources, question: Question) -> tuple[Knowledge, Mapping[str, Examined]]:
    """Return the knowledge with the imports between pinned packages, and by package which imports were compared.

    Wheels are read for imports of optional parts, which are not harvested.
    """
    knowledge = sources.knowledge
    pins = compared_releases(question, knowledge.metadata)
    if not pins:
        return knowledge, {}
    from imagegen.index_metadata.import_rules import read_imports  # late, for the network

    harvested = {
        (one, other)
        for one, other in permutations(pins, 2)
        if sources.knowledge_files.examined(one, pins[one], other, pins[other])
    }
    required = {(statement.package, statement.name) for statement in requirements(question, knowledge.metadata)}
    imports = read_imports(pins, required, question.facts, sources.context)

    def shared_names(packages: Collection[str] | None) -> Iterable[Rule]:
        return [*knowledge.shared_names(packages), *imports.rules]

    unread = pins.keys() - imports.read
    compared: dict[str, Examined] = {
        name: "top-level imports"
        for name in unread
        if all((name, other) in harvested for other in pins.keys() - {name})
    }
    compared |= dict.fromkeys(imports.read, "imports")
    return knowledge._replace(shared_names=shared_names), compared


def _changeable(question: Question, knowledge: Knowledge) -> Question | None:
    """Return the question whose versions a proposal changes; for a resolved file, only the project's own requirements.

    None if these work, so that only pins of other packages conflict. The fixes of the conflicts name them.
    """
    if question.file is None or not question.file.direct:
        return question
    direct = complete(question.direct, knowledge)
    return None if explain(direct, knowledge).answer == "compatible" else direct


def _parse(
    sources: Sources, words: Sequence[str], sets: Sequence[str], facts: Facts | None, file: PinnedFile | None
) -> Question:
    """Return the question; the index is asked for the packages and releases that are not known here."""
    matrix = sources.matrix
    parse = partial(parse_question, words, sets, matrix, facts=facts, file=file)
    metadata, harvested = sources.knowledge_files.metadata, sorted(sources.knowledge_files.harvested)
    typed = question = complete_names(parse(vocabulary_of(matrix, harvested)), metadata)
    asked: set[str] = set()
    for _ in range(_ROUNDS):
        missing = missing_metadata(question, metadata)
        missing = {name: specifier for name, specifier in missing.items() if name not in asked}
        if not missing:
            break
        asked |= missing.keys()
        harvested += _read(sources, question, missing)
        question = complete_names(parse(vocabulary_of(matrix, harvested)), metadata)
    names = file.specifiers if file else ()
    similar = (
        name for name in typed.unknown if name.suggestion and name not in question.unknown and name.name not in names
    )
    assumed = (
        f"{name.name} is the package of that name in the index; did you mean {name.suggestion}?" for name in similar
    )
    return replace(question, assumed=(*question.assumed, *assumed))


def _read(sources: Sources, question: Question, missing: Mapping[str, str], *, spread: bool = False) -> Collection[str]:
    """Add releases that the specifiers in `missing` admit, by package, to the metadata; return the packages."""
    today = str(dt.datetime.now(dt.UTC).date())
    extras = requested_extras(question, sources.knowledge_files.metadata)
    from imagegen.index_metadata import on_demand  # late, for the network

    packages = on_demand.look_up(missing, sources.context, today, extras, spread=spread)
    for package in packages.values():
        sources.knowledge_files.metadata.add(package, missing[package.name])
    return packages.keys()


def _read_older(sources: Sources, question: Question, names: Collection[str]) -> bool:
    """Ask the index for releases of packages before those that are known; return whether it has any."""
    metadata, bounds = sources.knowledge_files.metadata, {}
    for name in sorted(names):
        if (releases := metadata.of(name)) and releases.older:
            text = question.facts.packages[name].text if name in question.facts.packages else ""
            requested = "" if text[:1].isalnum() else text
            bounds[name] = ",".join(filter(None, [f"<{releases.package.since}", requested]))
    return bool(bounds and _read(sources, question, bounds, spread=True))


def _nearest(sources: Sources, question: Question | None, answered: _Explained) -> Sequence[WorkingCombination]:
    """Return the nearest combinations that work as questions, and add no failing imports or unread files."""
    nearest: list[WorkingCombination] = []
    if question is None or question.unknown:  # no change makes these names known
        return nearest
    metadata = sources.knowledge_files.metadata
    if neighbours := _neighbours(sources, question, answered.explanation):
        _read(sources, question, neighbours, spread=True)
    around = platform_choices(sources.matrix)
    for suggestion in suggest(question, answered.knowledge, around, answered.explanation.conflicts):
        changed = question.changed(suggestion.changes)
        if missing := missing_metadata(changed, metadata):  # a release from the index may require others
            _read(sources, changed, missing)
        changed = complete(changed, sources.knowledge)
        proposed = _explained(sources, changed)
        works = proposed.explanation.answer == "compatible" and proposed.unread.keys() <= answered.unread.keys()
        if works and _failing_imports(proposed) <= _failing_imports(answered):
            builds = tuple(needed_builds(changed, sources.matrix, lambda: sources.wheel_catalogue))
            command = question.command(suggestion.changes)
            nearest.append(WorkingCombination(dict(suggestion.changes), command, builds))
    return nearest


def _failing_imports(explained: _Explained) -> set[str]:
    """Return the rules about imports that an answer breaks; a search for proposals does not know those of wheels."""
    rules = (rule.id for conflict in explained.explanation.conflicts for rule in conflict.rules)
    return {rule for rule in rules if rule.startswith("imports-")}


def _neighbours(sources: Sources, question: Question, explanation: Explanation) -> dict[str, str]:
    """Return package -> specifier of the releases that the index should be asked for before suggestions are searched.

    These are releases that another package in a conflict requires, if none is known, or those around the pinned one of
    a package that is not shipped, or of which few older ones are known.
    """
    conflicts = [conflict for conflict in explanation.conflicts if conflict.severity != "warning"]
    required = {
        name: specifier
        for conflict in conflicts
        for rule in conflict.rules
        for name, specifier in rule.then.items()
        if specifier and not is_surrounding(name)
    }
    neighbours, harvested = {}, sources.knowledge_files.harvested
    for name in sorted({name for conflict in conflicts for name in conflict.facts} & question.facts.packages.keys()):
        fact, releases = question.facts.packages[name], sources.knowledge_files.metadata.of(name)
        if releases is None or fact.built or not fact.text[:1].isdigit():
            continue
        pinned = Version(fact.text).public
        if name in required and not releases.fitting(required[name]):
            neighbours[name] = required[name]
        elif name not in harvested or (releases.older and releases.fitting(f"<{pinned}").bit_count() < _NEIGHBOURS):
            neighbours[name] = f"!={pinned}"
    return neighbours
