"""The evaluator against a naive one that tries every combination of a few versions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from imagegen.compat import Fact, Facts, Knowledge, evaluate_on_gpus, judge, minimum_version, rule_constraints
from imagegen.compat.evaluate import evaluate, implied_literals
from imagegen.compat.facts import on_each_gpu
from imagegen.compat.rule import Rule
from imagegen.compat.verdict import WORST_FIRST, Conflict, kind_of
from imagegen.core.gpu import Gpu
from imagegen.spec.cell_facts import facts_of_cell, nearest_cell
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.matrix_samples import RULE, SMALL, load

VERSIONS = ["1.0", "1.5", "2.0", "2.5", "3.0"]
PACKAGES = ["a", "b", "c"]
SURROUNDINGS = {"base": "deb", "cuda": "cpu", "platform": "linux/amd64"}


def rule(name: str, when: Mapping[str, str], then: Mapping[str, str] | None = None, **more: object) -> Rule:
    plain = Rule(name, when, then or {}, {}, "because", "source", "2026-11-20", "error", "measured", "fix")
    return replace(plain, **more)  # type: ignore[arg-type]


def facts(packages: Mapping[str, str], *, closed: bool = True) -> Facts:
    known = {
        name: Fact.exactly(text) if text[0].isdigit() else Fact.within("" if text == "any" else text)
        for name, text in packages.items()
    }
    versions = {"python": Fact.within("~=3.11.0"), "glibc": Fact.exactly("2.36")}
    return Facts(known, versions, SURROUNDINGS, closed=closed)


@pytest.mark.parametrize(
    ("when", "then", "known", "answer"),
    [
        ({"a": "<2"}, {"b": "<2"}, {"a": "1.0", "b": "1.0"}, "compatible"),
        ({"a": "<2"}, {"b": "<2"}, {"a": "1.0", "b": "2.0"}, "incompatible"),
        ({"a": "<2"}, {"b": "<2"}, {"a": "2.0", "b": "2.0"}, "compatible"),
        ({"a": "<2"}, {"b": "<2"}, {"a": "any", "b": "2.0"}, "unknown"),
        ({"a": "<2"}, {"b": "<2"}, {"a": ">=2,<3", "b": "any"}, "compatible"),
        ({"a": "<2"}, {"b": "<2"}, {"a": "1.0", "b": ">=2"}, "incompatible"),
        ({"a": "<2"}, {"b": "<2"}, {"a": "1.0"}, "compatible"),  # b is not installed
        ({"a": ""}, {"glibc": ">=2.36"}, {"a": "1.0"}, "compatible"),
        ({"a": ""}, {"glibc": ">=2.37"}, {"a": "1.0"}, "incompatible"),
        ({"python": "==3.11.*"}, {"a": ">=2"}, {"a": "1.0"}, "incompatible"),
        ({"python": ">=3.12"}, {"a": ">=2"}, {"a": "1.0"}, "compatible"),
        ({"cuda": "cpu"}, {"a": "+cpu"}, {"a": "1.0+cpu"}, "compatible"),
        ({"cuda": "cpu"}, {"a": "+cpu"}, {"a": "1.0"}, "incompatible"),
        ({"cuda": "cpu"}, {"a": "+cpu"}, {"a": "1.0+cu130"}, "incompatible"),
        ({"cuda": "cpu"}, {"a": "+cpu"}, {"a": ">=1"}, "unknown"),
        ({"a": "+cpu"}, {"cuda": ">=13.0"}, {"a": "1.0+cpu"}, "incompatible"),
        ({"base": "other"}, {"a": ">=2"}, {"a": "1.0"}, "compatible"),
        ({"a": "+*torch2.8*"}, {"b": ">=2"}, {"a": "1.0+cu12torch2.8cxx11abiTRUE", "b": "1.0"}, "incompatible"),
        ({"a": "+*torch2.8*"}, {"b": ">=2"}, {"a": "1.0+cu12torch2.9cxx11abiTRUE", "b": "1.0"}, "compatible"),
        ({"a": "+*torch2.8*"}, {"b": ">=2"}, {"a": "1.0", "b": "1.0"}, "compatible"),
        ({"a": "<2 +"}, {"b": ">=2"}, {"a": "1.0", "b": "1.0"}, "incompatible"),
        ({"a": "<2 +"}, {"b": ">=2"}, {"a": "1.0+x", "b": "1.0"}, "compatible"),
        ({"a": "<2 +"}, {"b": ">=2"}, {"a": "2.0", "b": "1.0"}, "compatible"),
        ({"a": "<2 +?*"}, {"b": ">=2"}, {"a": "1.0+x", "b": "1.0"}, "incompatible"),
        ({"a": "<2 +?*"}, {"b": ">=2"}, {"a": "1.0", "b": "1.0"}, "compatible"),
        ({"b": ""}, {"a": "<2 +x"}, {"a": "1.0+x", "b": "1.0"}, "compatible"),
        ({"b": ""}, {"a": "<2 +x"}, {"a": "1.0+y", "b": "1.0"}, "incompatible"),
        ({"b": ""}, {"a": "<2 +x"}, {"a": "2.0+x", "b": "1.0"}, "incompatible"),
    ],
)
def test_a_rule_has_three_answers(
    when: dict[str, str], then: dict[str, str], known: dict[str, str], answer: str
) -> None:
    verdict = evaluate([rule("r", when, then)], facts(known))
    assert verdict.answer == answer
    assert bool(verdict.conflicts) == (answer == "incompatible")


@pytest.mark.parametrize(
    ("known", "answer"),
    [
        ({"a": "1.0", "b": "1.0", "c": "1.0+cu130"}, "compatible"),
        ({"a": "1.0", "b": "2.0", "c": "1.0"}, "incompatible"),
        ({"a": "1.0", "b": "1.0", "c": "1.0.post1+cu130"}, "incompatible"),
        ({"a": "1.0", "c": "1.0"}, "compatible"),  # b is not installed
        ({"b": "1.0", "c": "2.0"}, "compatible"),  # a, which they would follow, is not
        ({"a": "<2", "b": ">=2"}, "incompatible"),
        ({"a": "1.0", "b": "any"}, "unknown"),
    ],
)
def test_packages_that_must_have_the_same_version(known: dict[str, str], answer: str) -> None:
    assert evaluate([rule("r", {"a": ""}, same=("b", "c"))], facts(known)).answer == answer


def test_a_package_that_may_come_later_leaves_the_answer_open() -> None:
    bound = rule("r", {"a": ""}, {"b": "<2"})
    assert evaluate([bound], facts({"a": "1.0"}, closed=False)).answer == "unknown"
    assert evaluate([bound], facts({"a": "1.0"}, closed=True)).answer == "compatible"


def test_what_is_only_remembered_or_a_warning_refuses_nothing() -> None:
    known = facts({"a": "1.0", "b": "2.0"})
    sure = rule("r", {"a": "<2"}, {"b": "<2"})
    assert evaluate([replace(sure, evidence="documented")], known).answer == "incompatible"
    remembered = evaluate([replace(sure, evidence="remembered")], known)
    assert (remembered.answer, [conflict.severity for conflict in remembered.conflicts]) == ("unknown", ["suspicion"])
    warned = evaluate([replace(sure, severity="warning")], known)
    assert (warned.answer, [conflict.severity for conflict in warned.conflicts]) == ("compatible", ["warning"])


def test_a_remembered_rule_that_waits_does_not_hold_up_the_answer() -> None:
    known = facts({"a": "1.0", "b": "any"})
    sure = rule("r", {"a": "<2"}, {"b": "<2"})
    assert evaluate([sure], known).answer == "unknown"
    assert evaluate([replace(sure, evidence="remembered")], known).answer == "compatible"


def test_undecidable_rules_are_an_error_of_the_matrix() -> None:
    """Eight packages, of which no two may have the same one of seven versions."""
    versions = [f">={number}.dev0,<{number + 1}.dev0" for number in range(7)]
    pairs = itertools.combinations([f"p{number}" for number in range(8)], 2)
    rules = [
        rule(f"{one}-{two}-{number}", {one: version}, conflict={two: version})
        for one, two in pairs
        for number, version in enumerate(versions)
    ]
    with raises("matrix-too-complex"):
        evaluate(rules, facts({f"p{number}": ">=0.dev0,<7.dev0" for number in range(8)}))


def test_binding_rules_are_blamed_before_a_remembered_one_that_fits_as_well() -> None:
    rules = [
        rule("a-guess", {"a": ""}, {"b": ">=2"}, evidence="remembered"),
        rule("high", {"a": ""}, {"b": ">=2.5"}),
        rule("low", {"a": ""}, {"b": "<1.5"}),
    ]
    verdict = evaluate(rules, facts({"a": "1.0", "b": "any"}))
    assert verdict.answer == "incompatible"
    assert [[each.id for each in conflict.rules] for conflict in verdict.conflicts] == [["high", "low"]]


def test_the_nearest_cell_that_works_differs_on_the_fewest_axes(tmp_path: Path) -> None:
    axes = 'purpose: p\n    axes: {cuda: [cpu, cu130], python: ["3.11", "3.12"], platform: [linux/amd64, linux/arm64]}'
    refused = RULE.replace('{torch: "<2.3"}', '{cuda: cpu, python: ">=3.12"}').replace('{numpy: ">=2"}', '{torch: ""}')
    loaded = load(tmp_path, SMALL.replace("purpose: p", axes), refused)
    (bad,) = loaded.select("small-cpu-py312-linux-arm64")
    assert evaluate(loaded.rules, facts_of_cell(bad)).answer == "incompatible"
    best = nearest_cell(loaded.rules, bad, loaded.cells())
    assert best is not None
    assert best.id == "small-cpu-py311-linux-arm64"
    assert nearest_cell(loaded.rules, bad, [bad]) is None


def test_rules_that_conflict_only_together_are_named_together_and_alone() -> None:
    rules = [
        rule("one", {"a": ""}, {"b": ">=2"}),
        rule("two", {"b": ">=2"}, {"c": "<2"}),
        rule("three", {"a": ""}, {"c": ">=2"}),
        rule("other", {"a": ""}, {"b": "<3"}),
    ]
    verdict = evaluate(rules, facts({"a": "1.0", "b": "any", "c": "any"}))
    assert verdict.answer == "incompatible"
    (conflict,) = verdict.conflicts
    assert [each.id for each in conflict.rules] == ["one", "three", "two"]
    assert conflict.facts == {"a": "1.0", "b": "any version", "c": "any version"}


def test_a_conflict_reads_as_facts_reason_source_and_fix(golden: Golden) -> None:
    (conflict,) = evaluate([rule("r", {"a": "<2"}, {"b": "<2"})], facts({"a": "1.0", "b": "2.0", "c": "1.0"})).conflicts
    golden.check(str(conflict))


@pytest.mark.parametrize(
    ("kinds", "more", "kind"),
    [
        (("breaks",), {}, "breaks"),
        (("pip-refuses",), {}, "pip-refuses"),
        (("breaks",), {"evidence": "remembered"}, "unknown"),
        (("degrades",), {"severity": "warning"}, "degrades"),
        (("breaks", "pip-refuses"), {}, "breaks"),  # pip installs what the requirement admits
        (("degrades", "pip-refuses"), {"severity": "warning"}, "degrades"),
        (("breaks", "degrades"), {"severity": "warning"}, "degrades"),
    ],
)
def test_a_conflict_is_of_the_weakest_kind_of_its_rules_besides_requirements(
    kinds: tuple[str, ...], more: Mapping[str, object], kind: str
) -> None:
    names = ["a", *(f"between{place}" for place in range(len(kinds) - 1)), "b"]
    chain = [
        rule(one, {one: ""}, {two: "<2" if two == "b" else ""}, kind=each, **more)
        for each, one, two in zip(kinds, names, names[1:], strict=False)
    ]
    known = facts(dict.fromkeys([*names[:-1]], "1.0") | {"b": "2.0"}, closed=False)
    made = Conflict(tuple(chain), {name: fact.text for name, fact in known.packages.items()})
    assert made.kind == kind
    answer = {"unknown": "unknown", "degrades": "compatible"}.get(kind, "incompatible")
    assert kind_of(answer, [made]) == kind  # type: ignore[arg-type]


def test_a_conflict_that_rules_alone_make_between_packages_not_named_has_their_kind() -> None:
    """Two rules want different releases of b where a is, and c requires a."""
    wants = [rule("r1", {"a": ""}, {"b": ">=2"}), rule("r2", {"a": ""}, {"b": "<2"}), rule("r3", {"b": ""}, {"a": ""})]
    made = Conflict(tuple(wants), {"c": "1.0"})
    assert made.kind == wants[0].kind


def test_an_answer_breaks_where_one_reason_does_and_has_no_kind_without_reasons() -> None:
    refused = Conflict((rule("pin", {"a": ""}, {"b": "<2"}, kind="pip-refuses"),), {})
    broken = Conflict((rule("symbols", {"a": ""}, {"b": "<2"}),), {})
    partly = Conflict((rule("slow", {"a": ""}, {"b": "<2"}, severity="warning"),), {})
    assert kind_of("incompatible", [refused, partly]) == "pip-refuses"
    assert kind_of("incompatible", [refused, broken]) == "breaks"
    assert kind_of("compatible", [partly]) == "degrades"
    assert kind_of("compatible", []) is None


def test_a_direct_rule_only_warns_where_its_packages_come_with_others() -> None:
    direct = rule("r", {"a": ""}, {"b": "<2"}, direct=True)
    known = {"a": "1.0", "b": "2.0"}
    assert evaluate([direct], facts(known, closed=False)).answer == "incompatible"
    assert evaluate([direct], facts(known)).answer == "compatible"  # a lock asks for none of its packages
    chain = [direct, rule("s", {"c": ""}, {"a": ""})]
    assert evaluate(chain, facts({"c": "1.0", "b": "2.0"}, closed=False)).answer != "incompatible"


def test_an_accepted_rule_only_warns_of_its_cell(tmp_path: Path) -> None:
    tied = RULE.replace('conflict: {numpy: ">=2"}', 'then: {numpy: "<1"}').replace('"<2.3"', '">=2"')
    (cell,) = load(tmp_path, SMALL).cells()[:1]
    rules = load(tmp_path / "rules", SMALL, tied).rules
    assert judge(Knowledge(rules), facts_of_cell(cell)).answer == "unknown"
    lock = Facts({"torch": Fact.exactly("2.13.0"), "numpy": Fact.exactly("2.0")}, {}, SURROUNDINGS, closed=True)
    assert judge(Knowledge(rules), lock).answer == "incompatible"
    assert judge(Knowledge(rules), replace(lock, accepts=("old-torch",))).answer == "compatible"


def test_constraints_carry_what_follows_for_the_resolver(tmp_path: Path) -> None:
    older = SMALL.replace("==2.13.0", "==2.2.0")
    tied = RULE.replace('conflict: {numpy: ">=2"}', 'then: {numpy: "<1.25"}')
    cells = {
        name: load(tmp_path / name, *texts)
        for name, texts in {"new": (SMALL, RULE), "old": (older, RULE), "then": (older, tied)}.items()
    }
    given_to_uv = {
        name: rule_constraints(loaded.rules, facts_of_cell(loaded.cells()[0])) for name, loaded in cells.items()
    }
    assert given_to_uv["new"] == ()
    assert given_to_uv["then"] == ("numpy<1.25",)
    (text,) = given_to_uv["old"]
    allowed = SpecifierSet(text.removeprefix("numpy"))
    assert [version for version in ("1.26.4", "2.0.0", "2.4.6") if version in allowed] == ["1.26.4"]
    doubted = load(tmp_path / "doubt", older, tied.replace("measured", "remembered"))
    assert rule_constraints(doubted.rules, facts_of_cell(doubted.cells()[0])) == ()


SPECIFIERS = st.sampled_from(["", "<2", ">=2", "==1.5", "!=2.0", "<1.5", ">2.0", "~=2.0", ">=1.5,<3", "<=2.5"])
CONDITIONS = st.dictionaries(st.sampled_from(PACKAGES), SPECIFIERS, min_size=1, max_size=2)
RULES = st.lists(
    st.builds(
        lambda when, other, kind, evidence: rule("", when, evidence=evidence, **{kind: other}),
        CONDITIONS,
        CONDITIONS,
        st.sampled_from(["then", "conflict"]),
        st.sampled_from(["measured", "measured", "remembered"]),
    ),
    max_size=5,
).map(lambda rules: [replace(each, id=f"r{position}") for position, each in enumerate(rules)])
KNOWN = st.dictionaries(st.sampled_from(PACKAGES), st.sampled_from([*VERSIONS, "any", ">=2", "<2", ">=1.5,<3"]))


def _choices(known: Facts) -> list[dict[str, str]]:
    """Every installation of the sampled versions that fits the facts."""
    options = []
    for name in PACKAGES:
        fact = known.packages.get(name)
        fitting = [version for version in VERSIONS if fact is None or version in fact.range]
        options.append([None] if fact is None and known.closed else [*fitting, None] if fact is None else fitting)
    return [
        {name: version for name, version in zip(PACKAGES, chosen, strict=True) if version}
        for chosen in itertools.product(*options)
    ]


def _obeys(chosen: Mapping[str, str], each: Rule) -> bool:
    def fits(conditions: Mapping[str, str]) -> list[bool]:
        return [n in chosen and SpecifierSet(text).contains(chosen[n]) for n, text in conditions.items()]

    if not all(fits(each.when)):
        return True
    if each.conflict:
        return not all(fits(each.conflict))
    # A bound in `then` is one for a package that is installed; without a bound, `then` requires the package.
    return all(fits({name: text for name, text in each.then.items() if name in chosen or not text}))


@given(RULES, KNOWN, st.booleans())
def test_every_answer_is_true_of_every_choice_of_versions(
    rules: list[Rule], known: dict[str, str], closed: bool
) -> None:
    about = facts(known, closed=closed)
    verdict = evaluate(rules, about)
    binding = [each for each in rules if each.evidence != "remembered"]
    obeyed = [all(_obeys(chosen, each) for each in binding) for chosen in _choices(about)]
    if verdict.answer == "compatible":
        assert all(obeyed)
    if verdict.answer == "incompatible":
        assert not any(obeyed)
    if closed and all(text[0].isdigit() for text in known.values()):  # one choice: nothing may stay open
        severities = {conflict.severity for conflict in verdict.conflicts}
        assert verdict.answer != "unknown" or "suspicion" in severities
        assert (verdict.answer == "incompatible") == (not obeyed[0])


@given(RULES, KNOWN, st.booleans())
def test_a_reported_conflict_is_real_and_smallest(rules: list[Rule], known: dict[str, str], closed: bool) -> None:
    about = facts(known, closed=closed)
    for conflict in evaluate(rules, about).conflicts:
        sure = [replace(each, evidence="measured") for each in conflict.rules]
        assert evaluate(sure, about).answer == "incompatible"
        for left_out in sure:
            assert evaluate([each for each in sure if each is not left_out], about).answer != "incompatible"


@given(RULES, KNOWN, st.randoms())
def test_the_order_of_rules_does_not_matter(rules: list[Rule], known: dict[str, str], chance: object) -> None:
    shuffled = list(rules)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert evaluate(shuffled, facts(known)) == evaluate(rules, facts(known))


GPUS = [Gpu("sm_90", "9.0", "hopper", ()), Gpu("sm_120", "12.0", "blackwell", ())]
LINKED = {"a": SPECIFIERS, "b": SPECIFIERS, "gpu": st.sampled_from([">=12", "<12"]), "driver": st.just(">=580")}
LINKED_RULES = st.lists(
    st.tuples(*(st.sampled_from(sorted(LINKED)).flatmap(lambda n: st.tuples(st.just(n), LINKED[n])) for _ in "12")),
    max_size=6,
).map(lambda rows: [rule(f"r{n}", dict([when]), dict([then])) for n, (when, then) in enumerate(rows)])


@example([rule("r0", {"gpu": ">=12"}, {"a": ">=2"}), rule("r1", {"b": ""}, {"a": "<2"})], {"a": "any", "b": "1.0"})
@given(LINKED_RULES, KNOWN)
def test_rules_that_no_gpu_can_touch_are_judged_once(rules: list[Rule], known: dict[str, str]) -> None:
    about = replace(facts(known), names={"base": "deb", "platform": "linux/amd64"})
    about = replace(about, versions={**about.versions, "cuda": Fact.exactly("13.0")})
    about = replace(about, gpus=GPUS)
    verdict = evaluate_on_gpus(rules, about)
    each = [evaluate(rules, one) for one in on_each_gpu(about)]
    assert verdict.answer == min((one.answer for one in each), key=WORST_FIRST.index)
    blamed = {conflicting.id for one in each for conflict in one.conflicts for conflicting in conflict.rules}
    assert {conflicting.id for conflict in verdict.conflicts for conflicting in conflict.rules} == blamed
    if verdict.answer != "incompatible":
        implied = [implied_literals(rules, one) for one in on_each_gpu(about)]
        bounded = all(any((bound.name, bound.specifier) == ("driver", ">=580") for bound in one) for one in implied)
        assert minimum_version(rules, about, "driver") == ("580" if bounded else None)
