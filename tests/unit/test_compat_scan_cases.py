"""What the shipped scans say about combinations whose outcome is known, and of the rules that are written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from packaging.version import Version

from imagegen.compat import Fact, Facts, MetadataCache, ScanCache, load_demands, scans
from imagegen.compat.evaluate import evaluate
from imagegen.compat.facts import versions_in
from imagegen.compat.knowledge import Knowledge, RuleSubject
from imagegen.compat.rule import Rule
from imagegen.compat.scans import PREFIX
from imagegen.compat.wheel_scans import CAPABILITIES
from imagegen.core.data import shipped
from tests.support.matrix_samples import shipped_matrix
from tests.support.rule_cases import Case
from tests.support.rule_cases.scanned import CASES

SCANS = ScanCache(lambda package: load_demands([shipped("matrices")], package))
KNOWLEDGE = Knowledge(metadata=MetadataCache(lambda _: None, SCANS))
RULES = {rule.id: rule for rule in shipped_matrix().rules}


def said(facts: Facts) -> list[str]:
    """Return the ids of the scans' rules that reject the facts."""
    conflicts = evaluate([*RULES.values(), *scans.locked_rules(RuleSubject("lock", facts, KNOWLEDGE))], facts).conflicts
    return [rule.id for each in conflicts for rule in each.rules if rule.id.startswith(PREFIX)]


@pytest.mark.parametrize("name", CASES)
def test_a_combination_that_failed_is_rejected_by_its_wheel(name: str) -> None:
    for facts in CASES[name].fails:
        assert said(facts)


@pytest.mark.parametrize("name", CASES)
def test_a_combination_that_works_is_not_rejected(name: str) -> None:
    each: Case = CASES[name]
    for facts in (each.works, *each.silent):
        assert not said(facts)


# A rule that is written by hand may know more than a wheel, and may not know otherwise.

VALUES: Mapping[str, tuple[str, ...]] = {
    "gpu": CAPABILITIES,
    "cuda": ("12.4", "12.8", "12.9", "13.0", "13.2"),
    "glibc": ("2.17", "2.27", "2.28", "2.31", "2.34", "2.36"),
    "torch": tuple(f"2.{minor}.0" for minor in range(4, 16)),
}
_COMPILER = "its compiler runs later, and its wheel has no GPU code"
KNOWS_MORE = {
    **dict.fromkeys(["triton-blackwell", "triton-gb10", "triton-3.3-b300", "triton-3.5.0-b300"], _COMPILER),
    "triton-3.3-rubin": _COMPILER,
    "vllm-b300": "its kernels for FP8 and FP4 are missing, and all others are there",
    "vllm-gb10": "its kernels for FP8 and FP4 are missing, and all others are there",
    "torchcodec-torch2.7": "torch has every symbol, and the process aborts or finds no operator",
    "torchcodec-torch2.8": "torch has every symbol, and the process aborts or finds no operator",
    "torchcodec-torch2.9": "torch has every symbol, and the process aborts",
}


def subjects(rule: Rule) -> Iterator[tuple[str, Facts]]:
    """Yield (release, facts) for each scanned release of the rule's one package and each value that it rejects."""
    (package,) = rule.leaders
    (name,) = [*rule.then, *rule.conflict]
    known = SCANS.of(package)
    for version in known.releases if known else ():
        if Version(version) in versions_in(rule.when[package].partition("+")[0].strip()):
            for value in VALUES[name]:
                packages, versions = {package: Fact.exactly(version)}, {}
                (packages if name == "torch" else versions)[name] = Fact.exactly(value)
                facts = Facts(packages, versions, {"platform": "linux/amd64"}, closed=True, env={})
                if evaluate([rule], facts).answer == "incompatible":
                    yield f"{version} with {name} {value}", facts


def is_comparable(rule: Rule) -> bool:
    about = [*rule.then, *rule.conflict]
    alone = len(rule.leaders) == len(rule.when) == len(about) == 1 and about[0] in VALUES
    return alone and rule.severity == "error" and SCANS.of(rule.leaders[0]) is not None


COMPARABLE = [name for name, rule in RULES.items() if is_comparable(rule)]


def test_there_are_rules_to_compare() -> None:
    assert set(KNOWS_MORE) <= set(COMPARABLE)
    assert len(COMPARABLE) > len(KNOWS_MORE)


@pytest.mark.parametrize("name", [name for name in COMPARABLE if name not in KNOWS_MORE])
def test_a_scan_does_not_contradict_a_rule(name: str) -> None:
    wrong = [about for about, facts in subjects(RULES[name]) if not said(facts)]
    assert not wrong, f"{name} rejects what the wheels allow: {wrong}"


@pytest.mark.parametrize("name", KNOWS_MORE)
def test_a_rule_that_knows_more_does_know_more(name: str) -> None:
    assert [about for about, facts in subjects(RULES[name]) if not said(facts)]
