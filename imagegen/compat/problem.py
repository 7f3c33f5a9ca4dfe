"""Rules, facts and package metadata as one set of clauses over atoms."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, cached_property, reduce
from itertools import chain
from operator import or_
from types import MappingProxyType
from typing import NamedTuple

from packaging.ranges import VersionRange
from packaging.version import Version

from imagegen.compat import atoms
from imagegen.compat.atoms import ABSENT, Atom
from imagegen.compat.clauses import Literal, clauses, literals
from imagegen.compat.facts import Fact, Facts, machine_of, versions_in
from imagegen.compat.knowledge import Knowledge, RuleSubject
from imagegen.compat.rule import ENV, NAMED, NO_CUDA, VERSIONED, Rule, is_surrounding
from imagegen.compat.solve import Clause, ClauseOrigin
from imagegen.compat.sources import rules_about
from imagegen.compat.statements import MetadataCache, Releases, Statement

_EXACTLY = re.compile(r"==([^,*+]+)\Z")
_EXACT = re.compile(r"==[0-9.]+\Z")
_ANOTHER = "another"


class FreeNames(NamedTuple):
    """The scope of a problem besides its facts: names whose facts may be changed, and to what.

    `candidates` maps a surrounding to versions or names that it may be changed to.
    """

    free: frozenset[str] = frozenset()
    facts: Mapping[str, tuple[Fact, ...]] = MappingProxyType({})  # package -> further facts that may restrict it
    candidates: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    extras: Mapping[str, frozenset[str]] = MappingProxyType({})  # package -> its extras that are requested
    every_extra: bool = False  # whether extras count that only some releases in question require


class Problem:
    """Domains and clauses of a query. `atoms` are the values of a name; `clauses` must hold."""

    def __init__(
        self, rules: Iterable[Rule], facts: Facts, metadata: MetadataCache | None = None, scope: FreeNames | None = None
    ) -> None:
        self.facts = facts
        self.scope = scope or FreeNames()
        self.rules = {rule.id: rule for rule in rules}
        self.machine = machine_of(facts)
        self.metadata = metadata
        self.releases: dict[str, Releases] = {}
        self.statements: dict[ClauseOrigin, list[Statement]] = {}
        if metadata:
            self._collect(metadata)
        literal_groups = [clause for rule in self.rules.values() for clause in (*clauses(rule), literals(rule.when))]
        self._texts = [literal for group in literal_groups for literal in group]
        self._drop_satisfiable()
        self._masks: dict[Literal, tuple[str, int]] = {}
        self._requirements: dict[tuple[str, str], int] = {}
        self._markers: dict[tuple[str | None, str], int | None] = {}
        self._rule_clauses: dict[str, tuple[Clause, ...]] = {}  # by rule id
        self._admitted: dict[tuple[str, str, bool], int] = {}
        self.atoms: dict[str, tuple[Atom, ...]] = {}
        self._lines: dict[str, atoms.VersionLine] = {}  # names whose last atoms are its pieces
        self._make_atoms()

    @cached_property
    def domains(self) -> dict[str, int]:
        return {name: (1 << len(choices)) - 1 for name, choices in self.atoms.items()}

    @cached_property
    def clauses(self) -> tuple[Clause, ...]:
        all_clauses = [*self.fact_clauses]
        for rule in self.rules.values():
            all_clauses += self.clauses_of_rule(rule)
        for origin, group in self.statements.items():
            for statement in group:
                all_clauses += self._of_statement(statement, origin)
        return tuple(all_clauses)

    def clauses_of_rule(self, rule: Rule) -> tuple[Clause, ...]:
        if rule.id not in self._rule_clauses:
            self._rule_clauses[rule.id] = tuple(self._translate(rule))
        return self._rule_clauses[rule.id]

    def _translate(self, rule: Rule) -> Iterator[Clause]:
        origin = ClauseOrigin("rule", rule.id)
        for clause in clauses(rule):
            yield Clause(origin, tuple(self.mask(literal) for literal in clause))
        for leader in rule.leaders:
            for name in rule.same:
                yield from (Clause(origin, disjunction) for disjunction in self._agreeing(rule, leader, name))

    def _agreeing(self, rule: Rule, leader: str, name: str) -> Iterator[tuple[tuple[str, int], ...]]:
        """Return clauses: for each version of the leader, the package is not installed or has that version too."""
        unless = [self.mask(literal) for literal in literals(rule.when, negated=True)]
        for position, agreeing in atoms.agreeing(self.atoms[leader], self.atoms[name]).items():
            clause = {leader: self.domains[leader] & ~(1 << position), name: agreeing}
            for other, mask in unless:
                clause[other] = clause.get(other, 0) | mask
            yield tuple(clause.items())

    def mask(self, literal: Literal) -> tuple[str, int]:
        """Return the literal as (name among the atoms, mask)."""
        if literal not in self._masks:
            self._masks[literal] = self._mask(literal)
        return self._masks[literal]

    def _mask(self, literal: Literal) -> tuple[str, int]:
        name = self._name(literal)
        if literal.name.startswith(ENV) and self.facts.env is None:
            return name, 0b10 if literal.negated else 0b01
        releases = self.releases.get(name)
        if releases is None or not literal.is_of_versions:
            return name, self._mask_of_pieces(name, literal)
        count = len(releases.all)
        fitting = releases.fitting(literal.text) ^ ((1 << count) - 1 if literal.negated else 0)
        unreleased = atoms.mask(self.atoms[name][count + 1 :], literal)  # after its absence and its known releases
        return name, (0 if literal.required else 1) | fitting << 1 | unreleased << (count + 1)

    def _mask_of_pieces(self, name: str, literal: Literal) -> int:
        choices, line = self.atoms[name], self._lines.get(name)
        pieces = line.mask(literal) if line else None
        if line is None or pieces is None:
            return atoms.mask(choices, literal)
        first = len(choices) - len(line.pieces)
        return atoms.mask(choices[:first], literal) | pieces << first

    def _name(self, literal: Literal) -> str:
        if literal.label is not None:
            return f"{literal.name}+"
        if literal.name.startswith(ENV) and self.facts.env is None:
            return f"{literal.name}={literal.text}"  # each glob over an unknown value is a name of its own
        return literal.name

    # --- metadata -------------------------------------------------------------------------------------------------

    def _collect(self, metadata: MetadataCache) -> None:
        """Collect the statements of the releases in question, and of all packages that these or rules require."""
        pending = list(self.facts.packages)
        seen = set(pending)
        installed = set(self.facts.packages) - self.scope.free  # and what all of their releases require
        extras = dict(self.scope.extras)
        pythons = list(map(str, atoms.pythons(self.facts.versions.get("python"), ())))
        knowledge = Knowledge(metadata=metadata)
        while pending or (pending := self._required_by_rules(seen)):
            name = pending.pop(0)
            seen.add(name)
            releases = metadata.of(name)
            fact = self.facts.packages.get(name)
            subject = RuleSubject("package", self.facts, knowledge, package=name, is_free=name in self.scope.free)
            self.rules |= {rule.id: rule for rule in rules_about(subject)}
            if releases is None:
                continue
            self.releases[name] = releases
            among = 0 if fact and fact.built else releases.within(None if name in self.scope.free else fact)
            for statement in releases.statements(among, self.machine, extras.get(name, frozenset())):
                if statement.name in self.facts.overridden:
                    continue
                collected = self.statements.setdefault(statement.origin, [])
                if statement not in collected:
                    collected.append(statement)
                if is_surrounding(statement.name):
                    continue
                is_required = (
                    name in installed
                    and statement.releases == among
                    and all(releases.holding(statement.marker, statement.extra, pythons, self.machine))
                )
                if is_required or self.scope.every_extra:
                    installed.add(statement.name)
                    if statement.extras - extras.get(statement.name, frozenset()):
                        extras[statement.name] = extras.get(statement.name, frozenset()) | statement.extras
                        seen.discard(statement.name)  # it is read again
                if statement.name not in seen:
                    seen.add(statement.name)
                    pending.append(statement.name)
        self.rules = {name: rule for name, rule in self.rules.items() if not _is_idle(rule, seen)}

    def _drop_satisfiable(self) -> None:
        """Drop the requirements of packages that no conflict can be about (pure literals).

        Such a package has no metadata, no rules and no facts. Whatever releases of other packages are chosen, some
        version of it satisfies all that they require.
        """
        if self.facts.closed:
            return
        relevant = {
            *self.facts.packages,
            *self.releases,
            *NAMED,
            *VERSIONED,
            *(literal.name for literal in self._texts),
        }
        relevant.update(name for rule in self.rules.values() for name in rule.same)
        required: dict[str, list[Statement]] = {}
        for statement in chain.from_iterable(self.statements.values()):
            if statement.name not in relevant:
                required.setdefault(statement.name, []).append(statement)
        relevant.update(name for name, stated in required.items() if not _is_satisfiable(stated))
        remaining = {
            origin: [member for member in group if member.name in relevant] for origin, group in self.statements.items()
        }
        self.statements = {origin: group for origin, group in remaining.items() if group}

    def _required_by_rules(self, seen: Collection[str]) -> list[str]:
        """Return the packages, not seen yet, that a rule about seen packages requires."""
        return [
            name
            for rule in self.rules.values()
            if all(is_surrounding(other) or other in seen for other in rule.when)
            for name, condition in rule.then.items()
            if not condition and not is_surrounding(name) and name not in seen
        ]

    def _of_statement(self, statement: Statement, origin: ClauseOrigin) -> Iterable[Clause]:
        literals = [(statement.package, self._except(statement.package, statement.releases))]
        if statement.marker is not None:
            unless = self._unless(statement)
            if unless is None:
                return
            literals += [("python", unless)] if unless else []
        union = 0
        for choice in statement.choices:
            union |= self._required(statement.name, choice)
        yield Clause(origin, (*literals, (statement.name, union)))

    def _unless(self, statement: Statement) -> int | None:
        """Return the mask of the Pythons for which a statement's marker does not hold; None if it holds for none."""
        key = statement.marker, statement.extra
        if key not in self._markers:
            pythons = [atom.text for atom in self.atoms["python"] if atom.version]
            holds = self.releases[statement.package].holding(*key, pythons, self.machine)
            unless = sum(1 << position for position, applies in enumerate(holds) if not applies)
            self._markers[key] = unless if any(holds) else None
        return self._markers[key]

    def _required(self, name: str, specifier: str) -> int:
        """Return the mask of the atoms of a name with which a statement that requires it is satisfied."""
        key = name, specifier
        if key not in self._requirements:
            literal = Literal(name, specifier, required=name not in VERSIONED)
            self._requirements[key] = self.mask(literal)[1]
        return self._requirements[key]

    def _except(self, package: str, releases: int) -> int:
        """Return the mask of all atoms of a package but these releases, which follow the atom of its absence."""
        return self.domains[package] & ~(releases << 1)

    # --- atoms ----------------------------------------------------------------------------------------------------

    def _make_atoms(self) -> None:
        cuts: dict[str, dict[str, None]] = {}  # name -> the specifiers of rules about it
        labels: dict[str, set[str]] = {}
        for literal in self._texts:
            if literal.is_of_versions:
                cuts.setdefault(literal.name, {})[literal.text] = None
            else:
                labels.setdefault(self._name(literal), set()).add(literal.text)
        for name, pins in self._leader_pins():
            cuts.setdefault(name, {}).update(pins)
        required = self._specifiers_of_statements()
        names = [*self.facts.packages, *required, *cuts]
        for name in dict.fromkeys(candidate for candidate in names if not is_surrounding(candidate)):
            self.atoms[name] = self._of_package(name, cuts.get(name, ()), required.get(name, ()))
        for name in VERSIONED:
            ranges = {*map(versions_in, (*cuts.get(name, ()), *required.get(name, ())))}
            self.atoms[name] = self._of_surrounding(name, ranges)
        for name, texts in labels.items():
            if name not in VERSIONED:
                self.atoms[name] = self._of_values(name, texts)
        for name in NAMED:
            self.atoms.setdefault(name, self._of_values(name, set()))

    def _specifiers_of_statements(self) -> dict[str, dict[str, None]]:
        """Return name -> the specifiers that releases in question require of it, without repetitions."""
        required: dict[str, dict[str, None]] = {}
        for statement in chain.from_iterable(self.statements.values()):
            if statement.name not in NAMED:
                required.setdefault(statement.name, {}).update(dict.fromkeys(statement.choices))
        return required

    def _leader_pins(self) -> Iterator[tuple[str, dict[str, None]]]:
        """Yield packages that share the version of another package, with the specifiers of the facts about that one."""
        for rule in self.rules.values():
            leaders = [self.facts.packages.get(name) for name in rule.leaders] if rule.same else []
            pins = [f"=={fact.version.public}" for fact in leaders if fact and fact.version]
            yield from ((name, dict.fromkeys(pins)) for name in rule.same)

    def _of_package(self, name: str, ruled: Iterable[str], required: Iterable[str]) -> tuple[Atom, ...]:
        """Return the atoms of a package, by the specifiers of rules about it and of releases that require it."""
        fact, releases = self.facts.packages.get(name), self.releases.get(name)
        if releases:
            pinned = sorted(self._pinned.get(name, set()) - releases.masks.keys())
            pinned = [pin for pin in pinned if pin < releases.versions[-1] or pin.is_prerelease]
            unknown = (versions_in(specifier) for specifier in required if not releases.fitting(specifier))
            unmatched = {
                version_range for version_range in unknown if not any(version in version_range for version in pinned)
            }
            return (
                ABSENT,
                *releases.points,
                *atoms.points(pinned),
                *self._beyond(releases, unmatched, self._requested_ranges(name)),
                *([releases.older] if releases.older and not (fact and _excludes(fact, releases.older)) else ()),
            )
        if fact is None and self.facts.closed:
            return (ABSENT,)
        if fact and fact.version is not None and name not in self.scope.free:
            return (ABSENT, Atom(fact.text, version=fact.version))
        return (ABSENT, *self._cut(name, {*map(versions_in, (*ruled, *required)), *self._requested_ranges(name)}))

    def _cut(self, name: str, ranges: Iterable[VersionRange]) -> tuple[Atom, ...]:
        self._lines[name] = line = atoms.cut_line(_sorted(ranges))
        return line.pieces

    @cached_property
    def _pinned(self) -> dict[str, set[Version]]:
        """Return the exact versions that releases in question require of each package: these exist or existed.

        They include release candidates and removed releases, which have no metadata.
        """
        pins: dict[str, set[Version]] = {}
        for statement in chain.from_iterable(self.statements.values()):
            exact = map(_exactly, statement.choices)
            pins.setdefault(statement.name, set()).update(version for version in exact if version)
        return pins

    def _requested_ranges(self, name: str) -> dict[VersionRange, bool]:
        """Return the ranges of facts about a package, each with whether it is built from a commit."""
        facts = [*self.scope.facts.get(name, ()), *([self.facts.packages[name]] if name in self.facts.packages else [])]
        return {fact.range: fact.built for fact in sorted(facts, key=lambda fact: fact.built)}

    @staticmethod
    def _beyond(releases: Releases, required: set[VersionRange], requested: Mapping[VersionRange, bool]) -> list[Atom]:
        """Return an atom for each range without a known release, of those required, which have none, and requested."""
        asked = (
            version_range
            for version_range in requested
            if not any(version in version_range for version in releases.versions)
        )
        ranges = [*{*required, *asked}]
        ranges += [commit for commit, built in requested.items() if built and commit not in ranges]
        return [Atom(atoms.UNREAD, range=version_range, opaque=True) for version_range in _sorted(ranges)]

    def _of_surrounding(self, name: str, ranges: set[VersionRange]) -> tuple[Atom, ...]:
        fact, candidates = self.facts.versions.get(name), self.scope.candidates.get(name, ())
        if name == "python":
            minors = atoms.pythons(fact, candidates)
            outside = fact is not None and not any(minor in fact.range for minor in minors)
            return (
                *atoms.points(minors),
                *([Atom(fact.text, range=fact.range, opaque=True)] if fact and outside else ()),
            )
        if name in {"gpu", "driver"} and self.facts.names.get("cuda") == NO_CUDA:
            return (ABSENT,)
        if fact and fact.version is not None and name not in self.scope.free:
            return (Atom(fact.text, version=fact.version),)
        if name == "cuda" and NO_CUDA in self.facts.names.values() and name not in self.scope.free:
            return atoms.values([NO_CUDA])
        if name == "gpu" and candidates and not fact:
            return atoms.points(Version(candidate) for candidate in candidates)
        singles = {Fact.exactly(candidate).range for candidate in candidates if candidate != NO_CUDA}
        cut = self._cut(name, ranges | singles | ({fact.range} if fact else set()))
        return (*self._without_cuda, *map(self._of_cuda, cut)) if name == "cuda" else cut

    @property
    def _without_cuda(self) -> tuple[Atom, ...]:
        """Return the atoms without CUDA; none for a query that names a GPU, which implies that CUDA is required."""
        on_gpu = "gpu" in self.facts.versions or bool(self.scope.candidates.get("gpu"))
        return () if on_gpu and NO_CUDA not in self.facts.names.values() else atoms.values([NO_CUDA])

    @cached_property
    def cudas(self) -> tuple[Version, ...]:
        """The CUDA versions that rules name exactly and releases are built for; empty if no rule names one."""
        versions = {
            literal.text[2:] for literal in self._texts if literal.name == "cuda" and _EXACT.match(literal.text)
        }
        return tuple(sorted(map(Version, versions))) if self.metadata else ()

    def _of_cuda(self, piece: Atom) -> Atom:
        """Mark a piece of the line of CUDA versions as opaque if no known version is in it."""
        inside = piece.range is None or any(version in piece.range for version in self.cudas)
        return piece if inside or not self.cudas else replace(piece, opaque=True)

    def _of_values(self, name: str, texts: set[str]) -> tuple[Atom, ...]:
        if name.startswith(ENV):
            if self.facts.env is None:
                return atoms.values(["yes", "no"])
            return atoms.values([self.facts.env.get(name.removeprefix(ENV), "")])
        if name.endswith("+"):
            return self._of_label(name[:-1], texts)
        value = self.facts.names.get(name)
        if value is not None and name not in self.scope.free:
            return atoms.values([value])
        choices = [*([value] if value is not None else []), *self.scope.candidates.get(name, ()), *sorted(texts)]
        return atoms.values(dict.fromkeys([*choices, _ANOTHER]))

    def _of_label(self, package: str, texts: set[str]) -> tuple[Atom, ...]:
        fact = self.facts.packages.get(package)
        if fact is None and self.facts.closed:
            return (ABSENT,)
        if fact and fact.local is not None and package not in self.scope.free:
            return atoms.values([fact.local])
        fact_labels = [fact.local] if fact and fact.local is not None else []
        other_labels = [*self.scope.candidates.get(f"{package}+", ()), *sorted(text[1:] for text in texts)]
        labels = atoms.values(dict.fromkeys([*fact_labels, *other_labels, _ANOTHER]))
        return labels if fact else (ABSENT, *labels)

    # --- facts ----------------------------------------------------------------------------------------------------

    @cached_property
    def fact_clauses(self) -> tuple[Clause, ...]:
        """One unit clause for each fact, and for each package that is restricted to its known releases."""
        masks = self.masks_of(self.facts)
        return (*self.clauses_of(masks), *self.known_clauses(masks))

    @staticmethod
    def clauses_of(masks: Mapping[str, int]) -> list[Clause]:
        return [Clause(ClauseOrigin("fact", name.rstrip("+")), ((name, mask),)) for name, mask in masks.items()]

    def known_clauses(self, masks: Mapping[str, int]) -> list[Clause]:
        """Return the clauses that restrict packages and CUDA to known releases, unless the facts name others."""
        opaque = {name: _mask(atom.opaque for atom in choices) for name, choices in self._opaque.items()}
        return [
            Clause(ClauseOrigin("given" if name in VERSIONED else "known", name), ((name, self.domains[name] & ~mask),))
            for name, mask in opaque.items()
            if masks.get(name, ~mask) & ~mask
        ]

    @cached_property
    def _opaque(self) -> dict[str, tuple[Atom, ...]]:
        return {name: choices for name, choices in self.atoms.items() if any(atom.opaque for atom in choices)}

    def masks_of(self, facts: Facts) -> dict[str, int]:
        """Return for each name in the facts the bitset of the atoms that the facts allow."""
        labels = (f"{name}+" for name in facts.packages)
        variables = (name for name in self.atoms if name.startswith(ENV))
        names = dict.fromkeys((*facts.packages, *labels, *facts.versions, *facts.names, *variables))
        masks = {name: self.mask_of_fact(name, facts) for name in names if name in self.atoms}
        return {name: mask for name, mask in masks.items() if mask is not None}

    def mask_of_fact(self, name: str, facts: Facts) -> int | None:
        """Return the mask of the facts about a name; None if they leave it open."""
        choices = self.atoms[name]
        if choices == (ABSENT,) and name in VERSIONED:  # no CUDA, so whatever GPU and driver there are do not matter
            return None
        if name.endswith("+"):
            label = fact.local if (fact := facts.packages.get(name[:-1])) else None
            return None if label is None else _mask(atom.text == label for atom in choices) or _another(choices)
        fact = facts.versions.get(name) or facts.packages.get(name)
        if fact is not None:
            return self.admitted(name, fact)
        if name in facts.names:
            return _mask(atom.text == facts.names[name] for atom in choices)
        if name.startswith(ENV) and facts.env is not None and self.facts.env is None:
            variable, _, glob = name.removeprefix(ENV).partition("=")
            return 0b01 if fnmatchcase(facts.env.get(variable, ""), glob) else 0b10
        return None

    def admitted(self, name: str, fact: Fact) -> int:
        """Return the mask of a fact about the name.

        It has opaque atoms only if no other atom fits, and for releases that were not read.
        """
        key = (name, fact.text, fact.built)
        if key not in self._admitted:
            self._admitted[key] = self._admit(name, fact)
        return self._admitted[key]

    def _admit(self, name: str, fact: Fact) -> int:
        if fact.built and any(atom.opaque for atom in self.atoms[name]):
            return _mask(atom.opaque and atom.range == fact.range for atom in self.atoms[name])
        admitted = _mask(not atom.opaque and _inside(atom, fact) for atom in self.atoms[name])
        if not admitted:
            return _mask(atom.opaque and _covered(atom, fact, name) for atom in self.atoms[name])
        older = self.releases[name].older if name in self.releases else None
        return admitted | _mask(atom is older and not _excludes(fact, atom) for atom in self.atoms[name])


def _is_satisfiable(stated: Iterable[Statement]) -> bool:
    """Return whether some version satisfies these requirements of one package, whichever releases make them.

    True if none has an upper bound, or if at most one of them holds at a time because each is stated by other releases
    of one package. In other cases the answer is False.
    """
    limits = [requirement for requirement in stated if requirement.choices != ("",)]
    if all(_is_unbounded(choice) for limit in limits for choice in limit.choices):
        return True
    apart = sum(limit.releases for limit in limits) == reduce(
        or_, (limit.releases for limit in limits)
    )  # no common bit
    return (
        apart
        and len({limit.package for limit in limits}) == 1
        and all(_is_possible(limit.choices[0]) for limit in limits)
    )


@cache
def _is_unbounded(specifier: str) -> bool:
    """Return whether a specifier admits every version that is new enough."""
    return all(part.lstrip().startswith((">", "!=")) for part in specifier.split(",") if part.strip())


def _is_possible(specifier: str) -> bool:
    """Return whether any version fits a specifier."""
    return _is_unbounded(specifier) or _exactly(specifier) is not None or not versions_in(specifier).is_empty


@cache
def _exactly(specifier: str) -> Version | None:
    """Return the version that a specifier pins; None if it admits others."""
    match = _EXACTLY.match(specifier)
    return Version(match[1]) if match else None


def _inside(atom: Atom, fact: Fact) -> bool:
    if atom.version is not None:
        return atom.version in fact.range or atom.version == fact.version
    return atom.range is not None and atom.range.is_subset(fact.range)


def _excludes(fact: Fact, older: Atom) -> bool:
    return fact.built or (older.range is not None and fact.range.is_disjoint(older.range))


def _covered(atom: Atom, fact: Fact, name: str) -> bool:
    """Return whether a fact covers an opaque atom. A fact about CUDA may cover several: rules cut its line too."""
    return _inside(atom, fact) if name == "cuda" else atom.range == fact.range


def _another(choices: Sequence[Atom]) -> int:
    return _mask(atom.text == _ANOTHER for atom in choices)


def _mask(bits: Iterable[bool]) -> int:
    return sum(1 << position for position, bit in enumerate(bits) if bit)


def _sorted(ranges: Iterable[VersionRange]) -> tuple[VersionRange, ...]:
    """Return the ranges in an order that does not depend on hashes."""
    return tuple(sorted(ranges, key=repr))


def _is_idle(rule: Rule, seen: Collection[str]) -> bool:
    """Return whether no package that is not `seen` has to be installed for the rule, and their absence satisfies it."""

    def is_absent(name: str) -> bool:
        return not is_surrounding(name) and name not in seen

    if any(map(is_absent, (*rule.when, *rule.conflict))):
        return True
    results = (*rule.then, *rule.same)
    return bool(results) and not rule.conflict and all(map(is_absent, results))
