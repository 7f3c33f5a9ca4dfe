"""Complete a question: full names of packages, the torch of the stack, and its builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TypeVar

from packaging.version import Version

from imagegen.compat.builds import choose_builds
from imagegen.compat.evaluate import minimal_core
from imagegen.compat.facts import Fact, cuda_of_stack, machine_of, versions_in
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.problem import FreeNames, Problem
from imagegen.compat.question import Question
from imagegen.compat.rule import NO_CUDA
from imagegen.compat.solve import ClauseOrigin
from imagegen.compat.statements import MetadataCache
from imagegen.compat.systems import NgcImage
from imagegen.compat.torch_pins import LIBRARIES, TORCH

T = TypeVar("T")


def complete(question: Question, knowledge: Knowledge) -> Question:
    """Return the question with the torch that it means: instead of the base's, and its build."""
    return choose_builds(replace_base_torch(question, knowledge.metadata), knowledge)


def replace_base_torch(question: Question, metadata: MetadataCache) -> Question:
    """Return the question without the base image's torch and CUDA, if its packages replace that torch.

    The new torch then decides the CUDA of the stack, unless the question names one.
    """
    image = question.image
    if image is None or not _is_replaced(image, question, metadata):
        return question
    facts, requested = question.facts, question.requested
    packages = {name: fact for name, fact in facts.packages.items() if name != TORCH}
    packages |= {TORCH: Fact.requested(requested[TORCH])} if TORCH in requested else {}
    versions = {name: fact for name, fact in facts.versions.items() if name != "cuda" or name in requested}
    sentence = f"torch {image.torch} of the base: pip replaces it, and CUDA is that of the new torch"
    facts = replace(facts, packages=packages, versions=versions)
    return replace(question, facts=facts, assumed=(*question.assumed, sentence))


def _is_replaced(image: NgcImage, question: Question, metadata: MetadataCache) -> bool:
    """Return whether the question names another torch, or requirements of its packages exclude the base's torch.

    An installer uses neither rules nor scans of wheels.
    """
    if Version(image.torch) not in Fact.requested(question.requested.get(TORCH, "")).range:
        return True
    problem = Problem((), question.facts, metadata, FreeNames(extras=question.facts.extras))
    core = minimal_core(problem, [clause for clause in problem.clauses if clause.origin.kind not in ("wheels", "rule")])
    return core is not None and ClauseOrigin("fact", TORCH) in core


def complete_names(question: Question, metadata: MetadataCache) -> Question:
    """Return the question with the full names of NVIDIA packages that it names in short ("cudnn")."""
    major = _cuda_major(question, metadata) if question.short else None
    if major is None:
        return question
    siblings = {pair: name for name, pair in LIBRARIES.items()}
    renamed = {name: siblings.get((LIBRARIES[name][0], major), name) for name in question.short}
    renamed = {name: other for name, other in renamed.items() if other not in question.requested}
    packages, extras = _renamed(question.facts.packages, renamed), _renamed(question.facts.extras, renamed)
    facts = replace(question.facts, packages=packages, extras=extras)
    return replace(question, requested=_renamed(question.requested, renamed), facts=facts)


def _renamed(by_package: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    return {names.get(name, name): value for name, value in by_package.items()}


def _cuda_major(question: Question, metadata: MetadataCache) -> int | None:
    """Return the major version of the CUDA that the question names, or of the CUDA of the torch that it requires."""
    cuda = cuda_of_stack(question.facts)
    if cuda:
        return next((major for major in (12, 13) if cuda.range.is_subset(versions_in(f"=={major}.*"))), None)
    torch = metadata.of(TORCH)
    if torch is None or question.facts.names.get("cuda") == NO_CUDA:
        return None
    possible = torch.within(question.facts.packages.get(TORCH))
    for name, fact in question.facts.packages.items():
        releases = None if fact.built else metadata.of(name)
        for statement in releases.statements(releases.within(fact), machine_of(question.facts)) if releases else ():
            if statement.name == TORCH:
                possible &= reduce(or_, map(torch.fitting, statement.choices))
    newest = torch.all[possible.bit_length() - 1].cuda if possible else None
    return int(newest.partition(".")[0]) if newest else None
