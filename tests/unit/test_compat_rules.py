"""Each shipped rule against a fact from its source; removing or inverting any of them makes a case here fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from imagegen import matrix
from imagegen.compat import constraints, facts_of_cell, facts_of_lock, judge
from imagegen.compat.facts import Facts
from imagegen.matrix import Rule
from imagegen.matrix.model import EnvVar
from tests.unit.matrix_samples import SHIPPED

MATRIX = matrix.load([SHIPPED])
AXES = {"cuda": "cpu", "python": "3.11", "platform": "linux/amd64"}


@dataclass(frozen=True)
class Named:
    name: str
    version: str = ""
    debs: tuple[Named, ...] = ()


@dataclass(frozen=True)
class Locked:
    """As much of a lock as rules look at."""

    wheels: tuple[Named, ...]
    base: Named = Named("debian12", debs=(Named("libc6", "2.36-9+deb12u13"),))
    axes: Mapping[str, str] = field(default_factory=lambda: AXES)
    env: tuple[EnvVar, ...] = ()


def locked(glibc: str = "2.36-9", axes: Mapping[str, str] = AXES, **versions: str) -> Facts:
    wheels = tuple(Named(name.replace("_", "-"), version) for name, version in versions.items())
    return facts_of_lock(Locked(wheels, Named("debian12", debs=(Named("libc6", glibc),)), axes))


# rule -> a combination that its source says fails, and the nearest one that its source says works
CASES = {
    # 2026-11-20: PyPI's torch 2.13.0 is the CUDA 13.0 build; PyTorch's CPU index serves 2.13.0+cpu
    "torch-cpu-build": (locked(torch="2.13.0"), locked(torch="2.13.0+cpu")),
    # pytorch#123649: "ImportError: /lib64/libc.so.6: version `GLIBC_2.28' not found"; torch 2.6.0 needs 2.17 at most
    "torch-glibc": (locked("2.26-1", torch="2.7.0+cpu"), locked("2.28-1", torch="2.7.0+cpu")),
    # pytorch#107302: 2.3.0 validated with numpy 2.0.0rc1 and 1.26.4; TorchIO-project/torchio#1183: 2.2 fails with 2.0.0
    "torch-numpy2": (locked(torch="2.2.2+cpu", numpy="2.0.0"), locked(torch="2.3.0+cpu", numpy="2.0.0")),
    # Debian 12 has Python 3.11.2 alone
    "debian12-python": (locked(axes=AXES | {"python": "3.12"}), locked()),
    # pypa/pip#12205: hydra-core 1.2.0 does not import on Python 3.11; 1.3.0 does
    "hydra-core-python311": (locked(hydra_core="1.2.0"), locked(hydra_core="1.3.0")),
}


def test_every_shipped_rule_has_a_case() -> None:
    assert {rule.id for rule in MATRIX.rules} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_rule_alone_separates_what_fails_from_what_works(name: str) -> None:
    fails, works = CASES[name]
    verdict = judge(MATRIX.rules, fails)
    assert verdict.answer == "incompatible"
    assert [[rule.id for rule in conflict.rules] for conflict in verdict.conflicts] == [[name]]
    assert judge(MATRIX.rules, works).answer == "compatible"
    assert judge([rule for rule in MATRIX.rules if rule.id != name], fails).answer == "compatible"


def test_rules_stay_silent_outside_their_range() -> None:
    for known in (
        locked("2.26-1", torch="2.6.0+cpu"),
        locked(torch="2.2.2+cpu", numpy="1.26.4"),
        locked(axes=AXES | {"cuda": "cu130"}, torch="2.13.0"),
    ):
        assert judge(MATRIX.rules, known).answer == "compatible"


def _inverted(rule: Rule) -> Rule:
    return replace(rule, then=rule.conflict, conflict=rule.then)


@pytest.mark.parametrize("rule", MATRIX.rules, ids=lambda rule: rule.id)
def test_an_inverted_rule_answers_the_other_way(rule: Rule) -> None:
    fails, _ = CASES[rule.id]
    assert judge([_inverted(rule)], fails).answer == "compatible"


@pytest.mark.parametrize("cell", MATRIX.cells(), ids=lambda cell: cell.id)
def test_no_rule_refuses_a_shipped_cell_and_uv_hears_what_metadata_lacks(cell: matrix.Cell) -> None:
    verdict = judge(MATRIX.rules, facts_of_cell(cell))
    assert verdict.answer != "incompatible"
    assert not verdict.conflicts
    assert constraints(MATRIX.rules, cell) == ("hydra-core>=1.3",)
