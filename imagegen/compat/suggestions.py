"""Find the nearest combinations that rules accept to one that they refuse."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import combinations
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.compat.facts import Fact, Facts, on_each_gpu
from imagegen.compat.knowledge import Knowledge, RuleSubject
from imagegen.compat.metadata import ReleaseMetadata
from imagegen.compat.problem import FreeNames, Problem
from imagegen.compat.published_builds import Builds
from imagegen.compat.question import Question
from imagegen.compat.rule import BASE_LIBRARIES, NO_CUDA
from imagegen.compat.solve import Clause, ClauseOrigin, Contradiction, GaveUpError, State, search
from imagegen.compat.sources import rules_about
from imagegen.compat.systems import System
from imagegen.compat.verdict import Conflict
from imagegen.core.deferred import dataclass

_AT_MOST = 3  # suggestions
_FURTHEST = 4  # the highest cost of a suggestion
_COST = {"cuda": 2, "python": 2, "base": 2}  # a component costs 1; GPUs and drivers are bought, not chosen


class PlatformChoices(NamedTuple):
    """The values that a question's environment may be changed to, in their natural order."""

    cuda: tuple[str, ...] = ()  # versions
    python: tuple[str, ...] = ()  # minor versions
    systems: tuple[System, ...] = ()


@dataclass(frozen=True)
class Suggestion:
    """A combination that works; `distance` counts the releases between the requested and the suggested versions."""

    cost: int
    distance: int
    changes: Mapping[str, str] = field(compare=False)  # name -> specifier

    @property
    def text(self) -> str:
        return ", ".join(f"{name}{specifier}" for name, specifier in sorted(self.changes.items()))


@dataclass(frozen=True)
class _Unexamined:
    """Releases that were not examined for the faults of the question."""

    scanned: Mapping[str, Collection[str]]  # package of whose wheels a scan found the fault -> the scanned releases
    last: Mapping[str, Sequence[tuple[Version, str]]]  # package -> last releases that a rule is about, and its date
    since: Mapping[str, Version]  # package of which a rule is about one release -> the first shipped one

    @classmethod
    def of(cls, conflicts: Sequence[Conflict], knowledge: Knowledge) -> _Unexamined:
        scanned: dict[str, Collection[str]] = {}
        last: dict[str, list[tuple[Version, str]]] = {}
        since: dict[str, Version] = {}
        builds = knowledge.builds or Builds()  # of a package with several builds, PyPI's is scanned
        for rule in (rule for conflict in conflicts if conflict.severity == "error" for rule in conflict.rules):
            for name in rule.leaders if rule.id.startswith("scan:") else ():
                demands = knowledge.metadata.scans.of(name)
                scanned |= {name: demands.releases} if demands and not builds.of(name) else {}
            for name in rule.packages & {*rule.when, *rule.conflict} if rule.kind == "breaks" else ():
                specifier = {**rule.when, **rule.conflict}[name].partition("+")[0]
                ends = {part.operator: part.version for part in SpecifierSet(specifier)}
                if "<=" in ends:
                    last.setdefault(name, []).append((Version(ends["<="]), rule.last_checked))
                releases = knowledge.metadata.of(name) if "==" in ends else None
                if releases and releases.package.since:
                    since[name] = Version(releases.package.since)
        return cls(scanned, last, since)

    def has(self, name: str, release: ReleaseMetadata) -> bool:
        version, day = Version(release.version), release.uploaded or ""
        is_later = any(version > end and day > checked for end, checked in self.last.get(name, ()))
        is_earlier = name in self.since and version < self.since[name]
        return is_later or is_earlier or release.version not in self.scanned.get(name, (release.version,))


class _Choice(NamedTuple):
    distance: int
    specifier: str
    masks: Mapping[str, int]  # name of atoms -> the mask that it is narrowed to


def suggest(
    question: Question,
    knowledge: Knowledge,
    surroundings: PlatformChoices,
    conflicts: Sequence[Conflict] = (),
    *,
    at_most: int = _AT_MOST,
) -> tuple[Suggestion, ...]:
    """Return at most `at_most` combinations that work, sorted; none contains the changes of another.

    Rules that only warn and remembered rules count too, so that no suggestion has a warning or a suspected conflict.
    A warning among `conflicts`, which the question has, may stay if a suggestion changes none of its names. If nothing
    else works, these warnings are ignored, then required packages may have releases that were not read, then all
    warnings are ignored.
    """
    try:
        search = _Search(question, knowledge, surroundings, conflicts)
        nothing, warned = frozenset[ClauseOrigin](), frozenset(search.warned)
        runs = ((nothing, True), (warned, True), (nothing, False), (search.warnings(), True))
        for ignored, is_known in dict.fromkeys(runs):
            if suggestions := search.run(at_most, ignored, is_known=is_known):
                return tuple(sorted(suggestions, key=_order)[:at_most])
    except GaveUpError:
        pass
    return ()


def _order(near: Suggestion) -> tuple[int, int, str]:
    return near.cost, near.distance, near.text


class _Search:
    """A problem with open facts, and for each GPU the state of the problem on it."""

    def __init__(
        self,
        question: Question,
        knowledge: Knowledge,
        surroundings: PlatformChoices,
        conflicts: Sequence[Conflict] = (),
    ) -> None:
        self.question = question
        metadata = knowledge.metadata
        self.builds = builds = knowledge.builds or Builds()
        self.surroundings = surroundings
        facts = question.facts
        self.costs = dict.fromkeys((name for name in facts.packages if metadata.of(name)), 1)
        self.costs |= {name: _COST[name] for name in ("cuda", "python") if name in facts.versions}
        if "base" in question.requested and "base" in facts.names and not question.requested.keys() & {*BASE_LIBRARIES}:
            self.costs["base"] = _COST["base"]
        if question.image:  # it stays, with its torch, and with its Python and CUDA unless the question names them
            built = (name for name, fact in facts.packages.items() if fact.built)
            for name in ("base", *built, *({"cuda", "python"} - question.requested.keys())):
                self.costs.pop(name, None)
        # The question is about one build of these packages, and another build may replace it.
        several = (name for name, fact in facts.packages.items() if fact.local is not None and not fact.built)
        self.labels = {name: ("", *builds.labels(name)) for name in several if name in self.costs and builds.of(name)}
        candidates = _candidates(surroundings) | {"gpu": tuple(gpu.capability for gpu in facts.gpus)}
        candidates |= {f"{name}+": labels for name, labels in self.labels.items()}
        scope = FreeNames(frozenset({*self.costs, *BASE_LIBRARIES}), candidates=candidates, extras=facts.extras)
        rules = rules_about(RuleSubject.of_question(question, knowledge, "suggestion"))
        self.problem = Problem(rules, facts, metadata, scope)
        self.masks = self.problem.masks_of(facts)
        self.commits = {name for name, fact in facts.packages.items() if fact.built}
        self.unexamined = _Unexamined.of(conflicts, knowledge)
        self.warned: dict[ClauseOrigin, frozenset[str]] = {}  # rule -> the names of the warning that the question has
        for conflict in conflicts:
            names = frozenset[str]().union(conflict.facts, *(rule.names for rule in conflict.rules))
            about = (origin for origin in self.warnings() if self.problem.rules[origin.name].names <= names)
            for origin in about if conflict.severity == "warning" else ():
                self.warned[origin] = self.warned.get(origin, names) | names
        self.states: list[State] = []
        self.choices = {name: sorted(self._choices(name), key=lambda choice: choice.distance) for name in self.costs}

    def _on(self, facts: Facts, ignored: Collection[ClauseOrigin], *, is_known: bool) -> State | None:
        """Return the state of the clauses that no change lifts: rules, statements and the facts about this GPU.

        None if the unchangeable facts, as GPU and driver, are refused by themselves. `ignored` are origins of clauses.
        """
        clauses = (self._while_touched(clause) for clause in self.problem.clauses if clause.origin not in ignored)
        lasting = [clause for clause in clauses if clause.origin.kind not in ("fact", "known")]
        built = {name: self.masks[name] for name in self.commits & self.masks.keys()}
        known = (*self.problem.known_clauses(built), *self._without_removed())
        unread = {name for name, releases in self.problem.releases.items() if releases.older} - facts.packages.keys()
        lasting += [clause for clause in known if is_known or clause.origin.name not in unread]
        if "gpu" in facts.versions:
            lasting += self.problem.clauses_of({"gpu": self.problem.admitted("gpu", facts.versions["gpu"])})
        switches = {_switch(origin).name: 0b11 for origin in self.warned}
        state = State.of({**self.problem.domains, **switches}, lasting)
        return None if state.propagate(lasting) else state

    def _while_touched(self, clause: Clause) -> Clause:
        """Return the clause of a rule that warns of the question with a switch: at its first value it holds anyway."""
        if clause.origin not in self.warned:
            return clause
        return Clause(clause.origin, (*clause.literals, (_switch(clause.origin).name, 0b01)))

    def warnings(self) -> frozenset[ClauseOrigin]:
        """Return the origins of rules that only warn."""
        warn = (rule for rule in self.problem.rules.values() if rule.severity == "warning")
        return frozenset(ClauseOrigin("rule", rule.id) for rule in warn if rule.evidence != "remembered")

    def _without_removed(self) -> Iterator[Clause]:
        """Yield clauses that exclude releases which others require and the index no longer has."""
        for name, releases in self.problem.releases.items():
            first = len(releases.versions) + 1  # after the atom of its absence
            removed = [
                position
                for position, atom in enumerate(self.problem.atoms[name][first:], first)
                if atom.version and not atom.version.is_prerelease
            ]
            if removed:
                remaining = self.problem.domains[name] & ~sum(1 << position for position in removed)
                yield Clause(ClauseOrigin("known", name), ((name, remaining),))

    def run(self, at_most: int, ignored: Collection[ClauseOrigin], *, is_known: bool) -> list[Suggestion]:
        """Return suggestions for which the rules in `ignored` do not count, those that change least first.

        With `is_known`, required packages have no releases but those that were read.
        """
        suggestions: list[Suggestion] = []
        states = [self._on(facts, ignored, is_known=is_known) for facts in on_each_gpu(self.question.facts)]
        self.states = [state for state in states if state]
        if len(self.states) < len(states):
            return suggestions
        cores = [frozenset({name}) for name in self.costs if name not in self.commits and self._unknown(name)]
        if not cores and self._assign(())[1]:
            return suggestions  # the unknown releases are out of reach of these changes
        for cost in range(1, _FURTHEST + 1):
            for names in self._subsets(cost):
                useful = all(core & set(names) for core in cores)
                if not useful or any(set(near.changes) <= set(names) for near in suggestions):
                    continue
                core, near = self._assign(names)
                if near:
                    suggestions.append(Suggestion(cost, near.distance, near.changes))
                elif core is not None:
                    cores.append(core)
            if len(suggestions) >= at_most:
                break
        return suggestions

    def _subsets(self, cost: int) -> Iterator[tuple[str, ...]]:
        for size in range(1, cost + 1):
            for names in combinations(sorted(self.costs), size):
                if sum(self.costs[name] for name in names) == cost:
                    yield names

    def _unknown(self, name: str) -> bool:
        """Return whether a version is requested that is not known: then it has to change."""
        if name in self.commits:
            return False
        mask = self.masks.get(name, 0)
        requested = [atom for position, atom in enumerate(self.problem.atoms[name]) if mask >> position & 1]
        return bool(requested) and all(atom.opaque for atom in requested)

    def _assign(self, names: tuple[str, ...]) -> tuple[frozenset[str] | None, Suggestion | None]:
        """Return (None, the nearest choice for all of the names) or (the facts that make it impossible, None)."""
        fixed = self._fixed_clauses(names)
        marks = [len(state.steps) for state in self.states]
        try:
            for state in self.states:
                broken = state.propagate(fixed)
                failed = state.explain(broken.literals, broken.origin) if broken else _failed(state)
                if failed:
                    if any(_switch(origin) in failed.origins for origin in self.warned):
                        return None, None  # it says nothing of other names, which may not touch this warning
                    return frozenset(origin.name for origin in failed.origins if origin.kind == "fact"), None
            best = _Best()
            fewest_first = sorted(names, key=lambda name: len(self.choices[name]))  # then bounds are known early
            self._descend(self.states, tuple(fewest_first), 0, {}, best)
            return None, best.near
        finally:
            for state, mark in zip(self.states, marks, strict=True):
                state.undo(mark)

    def _fixed_clauses(self, freed: Iterable[str]) -> list[Clause]:
        """Return the clauses of the facts that stay; changed packages stay installed.

        A base changes together with its libraries. A label that stays with another version of its package does not
        count as a fact: that change does not lift it.
        """
        names = set(freed) | ({*BASE_LIBRARIES} if "base" in freed else set())
        changed = self.commits | self.labels.keys()
        names |= {f"{name}+" for name in names & changed}
        fixed = self.problem.clauses_of({name: mask for name, mask in self.masks.items() if name not in names})
        fixed += [Clause(ClauseOrigin("present"), ((name, ~1),)) for name in names if name in self.problem.releases]
        for switch, warned_names in ((_switch(origin), about) for origin, about in self.warned.items()):
            value = 0b01 if names.isdisjoint(warned_names) else 0b10
            fixed.append(Clause(switch, ((switch.name, value),)))
        origins = {ClauseOrigin("fact", name): ClauseOrigin("fact", "base") for name in BASE_LIBRARIES}
        origins |= {ClauseOrigin("fact", name): ClauseOrigin("label") for name in names - changed}
        return [Clause(origins.get(clause.origin, clause.origin), clause.literals) for clause in fixed]

    def _descend(
        self, states: Sequence[State], names: tuple[str, ...], distance: int, chosen: dict[str, str], best: _Best
    ) -> None:
        if not names:
            if not any(_failed(state) for state in states):
                best.near = Suggestion(0, distance, dict(chosen))
            return
        name, *remaining_names = names
        remaining_distance = sum(
            self._least(states, other_name) for other_name in remaining_names
        )  # the least distance of the other names
        for choice in self.choices[name]:
            if best.near and distance + choice.distance + remaining_distance >= best.near.distance:
                return
            marks = [len(state.steps) for state in states]
            if not any(_narrowed_away(state, choice) for state in states):
                further = distance + choice.distance
                self._descend(states, tuple(remaining_names), further, {**chosen, name: choice.specifier}, best)
            for state, mark in zip(states, marks, strict=True):
                state.undo(mark)

    def _least(self, states: Sequence[State], name: str) -> int:
        """Return the distance of the nearest choice of a name that none of the states excludes; choices are sorted."""
        open_ = (choice.distance for choice in self.choices[name] if all(_is_open(state, choice) for state in states))
        return next(open_, 0)

    def _choices(self, name: str) -> Iterator[_Choice]:
        """Yield the values that a name may be changed to, without the requested one."""
        facts, problem = self.question.facts, self.problem
        if name == "cuda":
            yield from self._points(name, self.surroundings.cuda, facts.versions[name])
        elif name == "python":
            yield from self._points(name, self.surroundings.python, facts.versions[name])
        elif name == "base":
            yield from self._systems(problem)
        else:
            yield from self._releases(name, problem)

    def _points(self, name: str, versions: Sequence[str], fact: Fact) -> Iterator[_Choice]:
        problem = self.problem
        requested = problem.admitted(name, fact)
        version_facts = [
            Fact.within(f"~={version}.0") if name == "python" else Fact.exactly(version) for version in versions
        ]
        masks = [problem.admitted(name, version_fact) for version_fact in version_facts]
        inside = [position for position, mask in enumerate(masks) if mask & requested] or [_among(versions, fact)]
        for index, mask in enumerate(masks):
            if not mask & requested:
                yield _Choice(_away(index, inside, len(versions)), f"=={versions[index]}", {name: mask})

    def _systems(self, problem: Problem) -> Iterator[_Choice]:
        systems = self.surroundings.systems
        requested = self.question.facts.names["base"]
        current = [position for position, system in enumerate(systems) if system.name == requested]
        values = [atom.text for atom in problem.atoms["base"]]
        for index, system in enumerate(systems):
            if system.name != requested and system.name in values:
                versions = {name: version for name in BASE_LIBRARIES if (version := getattr(system, name))}
                masks = {name: problem.admitted(name, Fact.exactly(version)) for name, version in versions.items()}
                masks["base"] = 1 << values.index(system.name)
                yield _Choice(_away(index, current, len(systems)), f"=={system.name}", masks)

    def _releases(self, name: str, problem: Problem) -> Iterator[_Choice]:
        releases, fact = problem.releases[name], self.question.facts.packages[name]
        requested = releases.within(fact)
        inside = [position for position in range(len(releases.all)) if requested >> position & 1]
        if not inside:
            inside = [_among([release.version for release in releases.all], fact)]
        released = Facts({name: Fact.within("", "")}, {}, {}, closed=False)
        unlabelled = {f"{name}+": problem.masks_of(released).get(f"{name}+", 0)} if fact.built else {}
        masks = {key: mask for key, mask in unlabelled.items() if mask}
        for index, release in enumerate(releases.all):
            is_requested = bool(requested >> index & 1)
            if release.yanked or (releases.versions[index].is_prerelease and not is_requested):
                continue
            if not is_requested and self.unexamined.has(name, release):
                continue
            away = _away(index, inside, len(releases.all))
            if fact.built or not (is_requested or name in self.labels):
                label = f"+{fact.local}" if fact.local and not fact.built else ""
                yield _Choice(away, f"=={release.version}{label}", {name: 2 << index, **masks})
            elif name in self.labels:
                yield from self._builds(name, index, release, away, is_requested=is_requested)

    def _builds(
        self, name: str, position: int, release: ReleaseMetadata, away: int, *, is_requested: bool
    ) -> Iterator[_Choice]:
        """Yield the builds of a release: of another release the same label first, then PyPI's."""
        asked = self.question.facts.packages[name].local or ""
        known_labels = self.builds.labels(name, release.version, self.question.facts.names.get("platform"))
        labels = (label for label in known_labels if label != NO_CUDA or asked == NO_CUDA)
        exist = [*([""] if release.wheels else []), *labels]
        for label in sorted(exist, key=lambda candidate: (candidate != asked, candidate != "")):
            if not (is_requested and label == asked):
                facts = Facts({name: Fact.within("", label)}, {}, {}, closed=False)
                mask = self.problem.mask_of_fact(f"{name}+", facts) or 0
                choice = f"=={release.version}{f'+{label}' if label else ''}"
                further = 0 if is_requested or label == asked else 1
                yield _Choice(away + further, choice, {name: 2 << position, f"{name}+": mask})


def _switch(origin: ClauseOrigin) -> ClauseOrigin:
    """Return the premise whether a suggestion changes a name of this rule, which warns of the question.

    Its name has two values: 0b01 for an untouched warning, 0b10 for a touched one.
    """
    return ClauseOrigin("given", f"~{origin.name}")


@dataclass
class _Best:
    near: Suggestion | None = None


def _failed(state: State) -> Contradiction | None:
    mark = len(state.steps)
    failed = search(state)
    state.undo(mark)
    return failed


def _is_open(state: State, choice: _Choice) -> bool:
    return all(state.domains[name] & mask for name, mask in choice.masks.items())


def _narrowed_away(state: State, choice: _Choice) -> bool:
    """Narrow to the choice; return whether that contradicts the state."""
    return any(
        not state.domains[name] & mask or (state.domains[name] & ~mask and state.decide(name, mask) is not None)
        for name, mask in choice.masks.items()
    )


def _away(position: int, inside: Sequence[int], most: int) -> int:
    return min((abs(position - other) for other in inside), default=most)


def _among(versions: Sequence[str], fact: Fact) -> int:
    """Return the position of an exact version among the others; the end for a range."""
    return sum(Version(version) in Fact.within(_older(fact)).range for version in versions)


def _older(fact: Fact) -> str:
    """Return the specifier of releases older than an exact version; of all releases for a range."""
    return f"<{Version(fact.text).public}" if fact.text[:1].isdigit() else ""


def _candidates(surroundings: PlatformChoices) -> dict[str, tuple[str, ...]]:
    return {
        "cuda": (NO_CUDA, *surroundings.cuda),
        "python": surroundings.python,
        "base": tuple(system.name for system in surroundings.systems),
        **{
            name: tuple(dict.fromkeys(version for system in surroundings.systems if (version := getattr(system, name))))
            for name in BASE_LIBRARIES
        },
    }
