"""Declared requirements among the packages of a question, and against the torch of a base image."""

from __future__ import annotations

from dataclasses import replace

from packaging.version import Version

from imagegen.plan.matrix.model import NgcImage
from imagegen.plan.rules import atoms
from imagegen.plan.rules.evaluate import minimal_core
from imagegen.plan.rules.problem import FreeNames, Problem
from imagegen.plan.rules.question import Question
from imagegen.plan.rules.statements import MetadataCache, holding, machine_of


def required_by_others(question: Question, library: MetadataCache) -> frozenset[str]:
    """Return the named packages that some release in question of another named one requires."""
    facts, machine, found = question.facts, machine_of(question.facts), set[str]()
    pythons = atoms.pythons(facts.versions.get("python"), ())
    for name, fact in facts.packages.items():
        known = None if fact.built else library.of(name)
        if known:
            stated = known.statements(known.within(fact), machine, question.extras.get(name, frozenset()))
            named = (each for each in stated if each.name in facts.packages)
            found.update(each.name for each in named if any(holding(each, pythons, machine)))
    return frozenset(found)


def replace_base_torch(question: Question, library: MetadataCache) -> Question:
    """Return the question without the base image's torch and CUDA, if what is installed on the base replaces its torch.

    The CUDA of the stack is then that of the new torch, unless the question names one.
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
    """Return whether the question names another torch, or what is declared of its packages excludes the base's."""
    if "torch" in question.requested:
        return Version(image.torch) not in question.facts.packages["torch"].range
    problem = Problem((), question.facts, library, FreeNames(extras=question.extras))
    core = minimal_core(problem, [each for each in problem.clauses if not each.origin.startswith("wheels ")])
    return core is not None and "fact torch" in core
