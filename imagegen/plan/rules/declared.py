"""Declared requirements among the packages of a question or against a base's torch, and their overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TypeVar

from packaging.version import Version

from imagegen.plan.matrix.model import NO_CUDA, Cell, NgcImage, Override, PinOverride, Rule, is_surrounding
from imagegen.plan.rules import atoms
from imagegen.plan.rules.evaluate import minimal_core
from imagegen.plan.rules.facts import Facts, rules_in_context, versions_in
from imagegen.plan.rules.problem import FreeNames, Problem
from imagegen.plan.rules.question import Question
from imagegen.plan.rules.solve import ClauseOrigin
from imagegen.plan.rules.statements import MetadataCache, cuda_of_stack, machine_of
from imagegen.plan.rules.torch_pins import LIBRARIES, TORCH
from imagegen.plan.rules.verdict import Conflict

T = TypeVar("T")


def rules_about(question: Question, rules: Iterable[Rule], library: MetadataCache) -> list[Rule]:
    """Return the rules in the context of a question, with the rules of the cell's overrides and of the cards' hosts."""
    accepts = question.cell.accepts if question.cell else ()
    overrides = override_rules(question.cell) if question.cell else ()
    in_context = rules_in_context(rules, question.facts, accepts, required_by_others(question, library))
    return [*in_context, *overrides, *question.hosts]


def required_by_others(question: Question, library: MetadataCache) -> frozenset[str]:
    """Return the named packages that some release in question of another named one requires."""
    facts, machine, required = question.facts, machine_of(question.facts), set[str]()
    pythons = list(map(str, atoms.pythons(facts.versions.get("python"), ())))
    for name, fact in facts.packages.items():
        releases = None if fact.built else library.of(name)
        if releases:
            stated = releases.statements(releases.within(fact), machine, question.extras.get(name, frozenset()))
            requirements = (statement for statement in stated if statement.name in facts.packages)
            required.update(
                statement.name
                for statement in requirements
                if any(releases.holding(statement.marker, statement.extra, pythons, machine))
            )
    return frozenset(required)


def replace_base_torch(question: Question, library: MetadataCache) -> Question:
    """Return the question without the base image's torch and CUDA, if its packages replace that torch.

    The new torch then decides the CUDA of the stack, unless the question names one.
    """
    image = question.image
    if image is None or not _is_replaced(image, question, library):
        return question
    facts, requested = question.facts, question.requested
    packages = {name: fact for name, fact in facts.packages.items() if name != "torch" or name in requested}
    versions = {name: fact for name, fact in facts.versions.items() if name != "cuda" or name in requested}
    sentence = f"torch {image.torch} of the base: pip replaces it, and CUDA is that of the new torch"
    facts = replace(facts, packages=packages, versions=versions)
    return replace(question, facts=facts, assumed=(*question.assumed, sentence))


def _is_replaced(image: NgcImage, question: Question, library: MetadataCache) -> bool:
    """Return whether the question names another torch, or requirements of its packages exclude the base's torch.

    An installer uses neither rules nor scans of wheels.
    """
    if "torch" in question.requested:
        return Version(image.torch) not in question.facts.packages["torch"].range
    problem = Problem((), question.facts, library, FreeNames(extras=question.extras))
    core = minimal_core(problem, [clause for clause in problem.clauses if clause.origin.kind not in ("wheels", "rule")])
    return core is not None and ClauseOrigin("fact", "torch") in core


def complete_names(question: Question, library: MetadataCache) -> Question:
    """Return the question with the full names of NVIDIA packages that it names in short ("cudnn")."""
    major = _cuda_major(question, library) if question.short else None
    if major is None:
        return question
    siblings = {pair: name for name, pair in LIBRARIES.items()}
    renamed = {name: siblings.get((LIBRARIES[name][0], major), name) for name in question.short}
    renamed = {name: other for name, other in renamed.items() if other not in question.requested}
    facts = replace(question.facts, packages=_renamed(question.facts.packages, renamed))
    extras = _renamed(question.extras, renamed)
    return replace(question, requested=_renamed(question.requested, renamed), facts=facts, extras=extras)


def _renamed(by_package: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    return {names.get(name, name): value for name, value in by_package.items()}


def _cuda_major(question: Question, library: MetadataCache) -> int | None:
    """Return the major version of the CUDA that the question names, or of the CUDA of the torch that it requires."""
    cuda = cuda_of_stack(question.facts)
    if cuda:
        return next((major for major in (12, 13) if cuda.range.is_subset(versions_in(f"=={major}.*"))), None)
    torch = library.of(TORCH)
    if torch is None or question.facts.names.get("cuda") == NO_CUDA:
        return None
    possible = torch.within(question.facts.packages.get(TORCH))
    for name, fact in question.facts.packages.items():
        releases = None if fact.built else library.of(name)
        for statement in releases.statements(releases.within(fact), machine_of(question.facts)) if releases else ():
            if statement.name == TORCH:
                possible &= reduce(or_, map(torch.fitting, statement.choices))
    newest = torch.all[possible.bit_length() - 1].cuda if possible else None
    return int(newest.partition(".")[0]) if newest else None


_LABEL = re.compile(r"\+[\w.]+")  # of a version in a specifier; facts keep labels apart


def override_rules(cell: Cell) -> Iterator[Rule]:
    """Yield a rule for each override of a cell; it replaces the declared requirements."""
    for override in cell.overrides:
        if override.specifier is None:
            yield _override_rule(cell, override, {}, {override.package: ""})
        elif override.specifier:
            yield _override_rule(cell, override, {override.package: _LABEL.sub("", override.specifier)}, {})


def _override_rule(cell: Cell, override: Override, then: dict[str, str], conflict: dict[str, str]) -> Rule:
    return Rule(
        id=f"override:{override.package}",
        when={},
        then=then,
        conflict=conflict,
        because=f"{cell.image} has {override}: {override.because}",
        source=override.source or f"the overrides of {cell.image} in the matrix",
        date="",
        severity="error",
        evidence="documented",
        kind="pip-refuses",
        fix=f"Leave {override.package} to the override, or change it in the matrix.",
    )


def add_overrides(conflict: Conflict, pin_overrides: Iterable[PinOverride], facts: Facts) -> Conflict:
    """Return the conflict with how to override its requirements, and the projects that do so with such versions.

    A conflict that overrides cannot end is returned unchanged.
    """
    if conflict.kind != "pip-refuses":
        return conflict
    stated = tuple(_requirements(conflict))
    names = dict.fromkeys(name for _, _, name in stated)
    pins = [f"{name}{_pin(facts, name)}" for name in names]
    shipped = tuple(
        override
        for override in pin_overrides
        if any(_overrides(override, *requirement) for requirement in stated) and _installs(override, facts)
    )
    return replace(conflict, override=", ".join(pins), overridden_by=shipped)


def _requirements(conflict: Conflict) -> Iterator[tuple[str, str, str]]:
    """Yield (package, its releases as a specifier, required package) for each declared requirement in the conflict."""
    for rule in conflict.rules:
        if rule.kind == "pip-refuses":
            for name in (*rule.then, *rule.conflict):
                if not is_surrounding(name):
                    yield from ((package, rule.when[package], name) for package in rule.leaders)


def _overrides(override: PinOverride, package: str, releases: str, name: str) -> bool:
    same = (override.package, override.requires) == (package, name)
    return same and not versions_in(override.releases).is_disjoint(versions_in(releases.partition(" +")[0]))


def _installs(override: PinOverride, facts: Facts) -> bool:
    fact = facts.packages.get(override.requires)
    return fact is None or not fact.range.is_disjoint(versions_in(override.installs))


def _pin(facts: Facts, name: str) -> str:
    fact = facts.packages.get(name)
    if fact is None or fact.text == "any version":
        return ""
    return f"=={fact.text}" if fact.version is not None or fact.text[:1].isdigit() else fact.text
