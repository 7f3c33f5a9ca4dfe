"""Verdicts over rules and metadata, their reasons, and the nearest combinations that work."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from imagegen.compat import (
    Explanation,
    Fact,
    Facts,
    MetadataCache,
    PlatformChoices,
    Question,
    explain,
    suggest,
    table_of,
)
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.problem import Problem
from imagegen.compat.rule import Rule
from imagegen.compat.statements import Releases
from imagegen.core.gpu import Gpu
from tests.support.golden import Golden
from tests.support.package_metadata import library, package, question, rule, with_facts

FIELD = library(
    package("torch", {"2.8.0": (), "2.9.0": (), "2.9.1": ()}, python=">=3.10"),
    package("vllm", {"0.11.0": ["torch==2.8.0"], "0.12.0": ["torch==2.9.0"], "0.13.0": ["torch==2.9.1", "cv>=2"]}),
    package("mcore", {"0.15": ["numpy<2"], "0.16": ["numpy"]}),
    package("cv", {"1.0": (), "2.0": ["numpy>=2; python_version >= '3.9'"], "2.1": ["numpy>=2"]}),
    package("numpy", {"1.26": (), "2.0": (), "2.3": ()}),
    package("wheels", {"1.0": ()}, wheels=("cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_31_x86_64")),
    package("later", {"1.0": ["torch==2.99"], "0.9": ["torch"]}),
    package("odd", {"1.0": ["torch==2.8.0; sys_platform ~= 'linux'", "numpy"]}),
    package("some", {"1.0": ["gone>=3"]}, extras={"fast": ("torch==2.8.0; extra == 'fast'",)}),
)


ARM64 = {"platform": "linux/arm64"}


def why(*rules: Rule, known: MetadataCache = FIELD, **requested: str) -> Explanation:
    return explain(question(**requested), Knowledge(rules, known))


def reasons(explanation: Explanation) -> list[list[str]]:
    return [[each.because for each in conflict.rules] for conflict in explanation.conflicts]


def test_what_a_release_requires_binds(golden: Golden) -> None:
    assert why(torch="==2.8.0", vllm="==0.11.0").answer == "compatible"
    refused = why(torch="==2.9.1", vllm="==0.11.0")
    assert refused.answer == "incompatible"
    (conflict,) = refused.conflicts
    assert conflict.facts == {"torch": "2.9.1", "vllm": "0.11.0"}
    (stated,) = conflict.rules
    assert stated.because == "vllm 0.11.0 requires torch==2.8.0."
    golden.check(stated.source)
    assert stated.date == "2026-11-21"


def test_a_chain_through_packages_that_the_query_does_not_name_is_shown_whole(golden: Golden) -> None:
    refused = why(vllm="==0.13.0", mcore="==0.15")
    assert refused.answer == "incompatible"
    golden.check(reasons(refused))
    assert why(vllm="==0.13.0", mcore="==0.16").answer == "compatible"


def test_a_range_is_refused_when_each_of_its_releases_is() -> None:
    refused = why(vllm="<0.13", torch="==2.9.1")
    assert reasons(refused) == [["vllm 0.11.0 requires torch==2.8.0.", "vllm 0.12.0 requires torch==2.9.0."]]
    assert why(vllm=">=0.12", torch="==2.9.1").answer == "compatible"


def test_pinned_candidates_and_removed_releases_exist() -> None:
    known = library(
        package("engine", {"1.0": ["kernels==0.2.9rc1", "grammar==0.1.14"], "2.0": ["kernels>=0.3", "grammar"]}),
        package("kernels", {"0.2.8": (), "0.3.0": ()}),
        package("grammar", {"0.1.13": (), "0.1.17": ()}),
    )
    assert why(known=known, engine="==1.0").answer == "compatible"
    assert why(known=known, engine="==2.0").answer == "compatible"
    assert why(known=known, engine="==1.0", kernels="==0.3.0").answer == "incompatible"


@given(
    st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "~="]),
    st.sampled_from(["1.0", "1.0rc1", "1.0.dev1", "1.0.post1", "1.1", "1.1a2", "2.0", "3.0.0", "1.0+cu12", "2.*"]),
    st.sampled_from(["", ",!=1.1", ",<2", ",>=1.0"]),
)
def test_specifiers_admit_the_releases_that_packaging_says(operator: str, version: str, more: str) -> None:
    named = ["0.9", "1.0.dev1", "1.0a1", "1.0rc1", "1.0", "1.0.post1", "1.1a2", "1.1", "2.0rc1", "2.0", "2.1", "3.0"]
    known = Releases(table_of(package("pack", dict.fromkeys(named, ()))))
    try:
        specifier = SpecifierSet(f"{operator}{version}{more}", prereleases=True)
    except InvalidSpecifier:
        assume(False)
    expected = sum(1 << place for place, each in enumerate(named) if each in specifier)
    assert known.fitting(f"{operator}{version}{more}") == expected


@pytest.mark.parametrize(
    ("required", "counts"),
    [
        ({"engine": [["leaf>=2"]], "kernels": [["leaf>=3,!=4"]]}, False),
        ({"engine": [["leaf>=2"]], "kernels": [["leaf<2"]]}, True),
        ({"engine": [["leaf==1"], ["leaf==2"]], "kernels": [["leaf"]]}, False),  # of different releases
        ({"engine": [["leaf==1", "leaf<1; python_version < '3.11'"]]}, True),
        ({"engine": [["leaf>2,<1"]]}, True),
        ({"engine": [["leaf<3"], ["leaf<4"]], "kernels": [["leaf>=1"]]}, True),
    ],
)
def test_requirements_that_no_conflict_can_be_about_are_dropped(required: dict[str, Any], counts: bool) -> None:
    made = [package(name, {f"{n}.0": each for n, each in enumerate(every, 1)}) for name, every in required.items()]
    about = question(**dict.fromkeys(required, ">=1"))
    assert ("leaf" in Problem((), about.facts, library(*made)).atoms) is counts
    named = question(**dict.fromkeys(required, ">=1"), leaf="==5")
    assert "leaf" in Problem((), named.facts, library(*made)).atoms
    ruled = rule("r", {"engine": ">=1"}, {"leaf": ">=1"})
    assert "leaf" in Problem((ruled,), about.facts, library(*made)).atoms


def test_a_marker_counts_for_a_patch_release_of_python_that_is_named() -> None:
    known = library(package("engine", {"1.0": ["leaf<2; python_full_version < '3.12.4'"]}))
    old = replace(question(engine="==1.0", leaf="==2"), facts=_with_python("3.12.3"))
    new = replace(question(engine="==1.0", leaf="==2"), facts=_with_python("3.12.4"))
    assert [explain(each, Knowledge([], known)).answer for each in (old, new)] == ["incompatible", "unknown"]


def _with_python(version: str) -> Facts:
    facts = question(engine="==1.0", leaf="==2").facts
    return replace(facts, versions={"python": Fact.exactly(version)})


def test_extras_of_extras_are_followed() -> None:
    extras = {"srt": ("torch==2.8.0; extra == 'srt'", "sglang[common]"), "common": ("numpy==2.3; extra == 'common'",)}
    known = library(
        package("sglang", {"0.5.2": ()}, extras=extras),
        package("torch", {"2.8.0": ()}),
        package("numpy", {"1.26": (), "2.3": ()}),
    )
    assert why(known=known, sglang="==0.5.2", numpy="==2.3").answer == "compatible"
    assert why(known=known, sglang="==0.5.2", numpy="==1.26").answer == "incompatible"


def test_proposals_avoid_what_warnings_forbid_and_candidates() -> None:
    known = library(
        package("torch", {"2.8.0": (), "2.9.0": (), "2.9.1": (), "2.10.0rc1": ()}),
        package("vllm", {"0.13.0": ["torch!=2.8.0"]}),
    )
    slow = rule("slow", {"torch": "==2.9.0"}, {"vllm": "<0.13"}, severity="warning")
    asked = question(torch="==2.8.0", vllm="==0.13.0")
    (near,) = suggest(asked, Knowledge([slow], known), PlatformChoices())
    assert near.changes == {"torch": "==2.9.1"}
    everywhere = rule("everywhere", {"vllm": ""}, {"torch": "<2"}, severity="warning")
    (near,) = suggest(asked, Knowledge([slow, everywhere], known), PlatformChoices())
    assert near.changes == {"torch": "==2.9.0"}  # nothing is without a warning


def test_a_warning_that_the_question_has_stays_in_proposals_that_do_not_touch_it() -> None:
    known = library(
        package("torch", {"2.8.0": (), "2.9.0": (), "2.9.1": ()}),
        package("torchao", {"0.14": (), "0.15": ()}),
        package("peft", {"0.17": ["transformers<5"], "0.18": (), "0.19": ()}),
        package("transformers", {"4.57": (), "5.0": ()}),
    )
    slow = rule("slow", {"torchao": "==0.15"}, {"torch": ">=2.9"}, severity="warning")
    requested = question(peft="==0.17", transformers="==5.0", torch="==2.8.0", torchao="==0.15")
    conflicts = explain(requested, Knowledge([slow], known)).conflicts
    assert [conflict.severity for conflict in conflicts] == ["error", "warning"]
    near = suggest(requested, Knowledge([slow], known), PlatformChoices(), conflicts)
    assert [suggestion.changes for suggestion in near] == [{"peft": "==0.18"}, {"transformers": "==4.57"}]
    # Another release of torch touches the warning, and has to avoid it.
    needs = rule("needs", {"peft": ""}, {"torch": ">2.8.0"})
    requested = question(peft="==0.18", torch="==2.8.0", torchao="==0.15")
    conflicts = explain(requested, Knowledge([slow, needs], known)).conflicts
    slower = rule("slower", {"torchao": "==0.15"}, {"torch": ">=2.9.1"}, severity="warning")
    near = suggest(requested, Knowledge([slower, needs], known), PlatformChoices(), conflicts)
    assert [suggestion.changes for suggestion in near] == [{"torch": "==2.9.1"}]
    # A new warning is avoided as long as an old one, touched, is the alternative.
    never = rule("never", {"torchao": ""}, {"torch": ">3"}, severity="warning")
    new = rule("new", {"torch": "==2.9.0"}, conflict={"peft": "==0.18"}, severity="warning")
    rules = [never, new, needs]
    conflicts = explain(requested, Knowledge(rules, known)).conflicts
    near = suggest(requested, Knowledge(rules, known), PlatformChoices(), conflicts)
    assert [suggestion.changes for suggestion in near] == [{"torch": "==2.9.1"}]


def test_releases_after_the_last_that_was_examined_are_not_proposed() -> None:
    trainer = package("trainer", {"1.0": (), "1.1": (), "1.2": ()})
    days = {"1.0": "2026-01-01", "1.1": "2026-02-01", "1.2": "2026-12-01"}
    releases = {version: replace(trainer.releases[version], uploaded=day) for version, day in days.items()}
    known = library(
        replace(trainer, releases=dict(reversed(releases.items()))), package("vllm", {"0.11": (), "0.12": ()})
    )
    requested = question(trainer="==1.0", vllm="==0.12")
    for last, offered in (("1.0", [{"trainer": "==1.1"}, {"vllm": "==0.11"}]), ("1.1", [{"vllm": "==0.11"}])):
        names = rule("names", {"trainer": f"<={last}"}, conflict={"vllm": ">=0.12"}, date="2026-11-24")
        conflicts = explain(requested, Knowledge([names], known)).conflicts
        near = suggest(requested, Knowledge([names], known), PlatformChoices(), conflicts)
        assert [suggestion.changes for suggestion in near] == offered


def test_releases_before_the_only_one_that_a_rule_is_about_were_examined_if_they_are_shipped() -> None:
    engine = package("engine", {"1.0": (), "2.0": (), "3.0": (), "4.0": ["kernels<2"]})
    known = library(replace(engine, since="2.0"), package("kernels", {"1.0": (), "2.0": ()}))
    one = rule("one", {"engine": "==3.0"}, conflict={"kernels": ">=2"})
    for last, offered in (("==3.0", {"engine": "==2.0"}), ("==2.0", None)):
        requested = question(engine=last, kernels="==2.0")
        one = replace(one, when={"engine": last})
        conflicts = explain(requested, Knowledge([one], known)).conflicts
        changes = [near.changes for near in suggest(requested, Knowledge([one], known), PlatformChoices(), conflicts)]
        assert {"engine": "==1.0"} not in changes
        assert offered is None or offered in changes


def test_a_package_that_a_proposal_requires_may_have_a_release_that_was_not_read() -> None:
    kernels = replace(package("kernels", {"2.0": (), "3.0": ()}), since="2.0")
    known = library(package("engine", {"1.0": ["kernels==1.0"], "2.0": ["kernels==2.0"]}), kernels)
    broken = rule("broken", {"engine": ">=2"}, conflict={"python": "<3.13"})
    requested = question(engine="==2.0", python="==3.12")
    knowledge = Knowledge([broken], known)
    near = suggest(requested, knowledge, PlatformChoices(), explain(requested, knowledge).conflicts)
    assert [suggestion.changes for suggestion in near] == [{"engine": "==1.0"}]


def test_an_error_hides_no_warning() -> None:
    slow = rule("slow", {"torch": ""}, {"cuda": ">=12.9"}, severity="warning", kind="degrades")
    found = why(slow, torch="==2.9.1", vllm="==0.11.0", cuda="==12.8")
    assert [each.severity for each in found.conflicts] == ["error", "warning"]
    assert found.kind == "pip-refuses"


def test_a_rule_takes_part_in_a_chain() -> None:
    needs_cuda = rule("r", {"torch": ">=2.9.1"}, {"cuda": ">=12.8"})
    refused = why(needs_cuda, vllm="==0.13.0", cuda="==12.6")
    assert reasons(refused) == [["because r", "vllm 0.13.0 requires torch==2.9.1."]]
    assert refused.conflicts[0].facts == {"cuda": "12.6", "vllm": "0.13.0"}
    assert why(needs_cuda, vllm="==0.13.0", cuda="==12.8").answer == "compatible"
    assert why(needs_cuda, vllm="==0.12.0", cuda="==12.6").answer == "compatible"


def test_it_must_work_on_each_gpu() -> None:
    blackwell = rule("r", {"gpu": ">=10"}, {"torch": ">=2.9"})
    hopper, newer = Gpu("sm_90", "9.0", "hopper", ()), Gpu("sm_120", "12.0", "blackwell", ())
    requested = question(torch="==2.8.0")
    assert explain(with_facts(requested, gpus=(hopper,)), Knowledge([blackwell], FIELD)).answer == "compatible"
    both = explain(with_facts(requested, gpus=(hopper, newer)), Knowledge([blackwell], FIELD))
    assert both.answer == "incompatible"
    assert both.conflicts[0].facts == {"gpu": "sm_120", "torch": "2.8.0"}


@pytest.mark.parametrize(
    ("requested", "said"),
    [
        ({"vllm": "==0.40.0"}, "vllm 0.40.0: no such release is known here; those of 0.11.0 to 0.13.0 are"),
        ({"vllm": "==0.11.0", "stranger": "==1.0"}, "stranger 1.0: nothing is known here of the releases of stranger"),
        ({"later": "==1.0"}, "it needs a release of torch that is not known here: those of 2.8.0 to 2.9.1 are"),
    ],
)
def test_what_is_outside_what_is_known_is_unknown(requested: Mapping[str, str], said: str) -> None:
    explanation = why(**requested)
    assert explanation.answer == "unknown"
    assert said in explanation.unknown[0]


def test_a_package_that_no_version_was_asked_of_may_be_unknown() -> None:
    assert why(unknown="", torch="==2.8.0").answer == "compatible"
    assert why(some="==1.0").answer == "compatible"  # gone, which it requires, was never harvested


def test_a_proof_counts_even_beside_what_is_not_known() -> None:
    assert why(vllm="==0.11.0", torch="==2.99").answer == "incompatible"
    assert why(vllm="==0.11.0", torch="==2.9.1", unknown="==1.0").answer == "incompatible"


def test_extras_count_where_they_are_asked_for() -> None:
    requested = question(some="==1.0", torch="==2.9.1")
    assert explain(requested, Knowledge([], FIELD)).answer == "compatible"
    assert (
        explain(with_facts(requested, extras={"some": frozenset({"fast"})}), Knowledge([], FIELD)).answer
        == "incompatible"
    )


def test_an_extra_counts_with_those_that_it_includes() -> None:
    extras = {
        "all": ("nested[fast]; extra == 'all'",),
        "fast": ("torch==2.8.0; extra == 'fast'", "nested[all]; extra == 'fast'"),
    }
    known = library(package("nested", {"1.0": ()}, extras=extras), package("torch", {"2.8.0": (), "2.9.1": ()}))
    requested = question(torch="==2.9.1", nested="==1.0")
    assert explain(requested, Knowledge([], known)).answer == "compatible"
    assert (
        explain(with_facts(requested, extras={"nested": frozenset({"all"})}), Knowledge([], known)).answer
        == "incompatible"
    )


@pytest.mark.parametrize(
    ("requested", "answer"),
    [
        ({"user": "==1.0"}, "incompatible"),
        ({"top": "==1.0"}, "incompatible"),  # it requires another package, all of whose releases require the extra
        ({"user": "==2.0"}, "compatible"),
        ({"user": ">=1"}, "compatible"),
        ({"user": "==3.0"}, "compatible"),  # on Windows alone
        ({"nested": "==1.0"}, "compatible"),
    ],
)
def test_an_extra_counts_that_another_package_requires(requested: dict[str, str], answer: str) -> None:
    windows = "nested[fast]; sys_platform == 'win32'"
    releases = {"1.0": ["nested[fast]"], "2.0": ["nested"], "3.0": ["nested", windows]}
    known = library(
        package("user", releases),
        package("top", {"1.0": ["middle"]}),
        package("middle", {"1.0": ["nested[fast]"]}),
        package("nested", {"1.0": ()}, extras={"fast": ("torch==2.8.0; extra == 'fast'",)}),
        package("torch", {"2.8.0": (), "2.9.1": ()}),
    )
    assert explain(question(torch="==2.9.1", **requested), Knowledge([], known)).answer == answer


def test_an_undecidable_marker_refuses_nothing() -> None:
    assert why(torch="==2.9.1", odd="==1.0").answer == "compatible"


def test_what_is_only_remembered_gives_unknown_and_a_warning_is_shown() -> None:
    doubt = rule("doubt", {"torch": "<2.9"}, {"vllm": ">=1"}, evidence="remembered")
    explanation = why(doubt, torch="==2.8.0", vllm="==0.11.0")
    assert explanation.answer == "unknown"
    assert reasons(explanation) == [["because doubt"]]
    warning = rule("slow", {"torch": "<2.9"}, {"vllm": ">=1"}, severity="warning")
    explanation = why(warning, torch="==2.8.0", vllm="==0.11.0")
    assert explanation.answer == "compatible"
    assert [each.severity for each in explanation.conflicts] == ["warning"]
    assert not why(warning, torch="==2.9.1").conflicts


def test_a_missing_wheel_is_a_doubt_since_sources_could_be_built(golden: Golden) -> None:
    assert why(wheels="==1.0", python="==3.11").answer == "compatible"
    doubted = why(wheels="==1.0", python="==3.13")
    assert doubted.answer == "unknown"
    golden.check(reasons(doubted))
    assert why(torch="==2.8.0", python="==3.9").answer == "incompatible"  # what a release requires is no doubt


def test_a_missing_wheel_for_the_platform_is_a_doubt_too(golden: Golden) -> None:
    arm64 = replace(question(wheels="==1.0"), facts=replace(question(wheels="==1.0").facts, names=ARM64))
    answer = explain(arm64, Knowledge([], FIELD))
    assert answer.answer == "unknown"
    ((stated,),) = (conflict.rules for conflict in answer.conflicts)
    golden.check(stated.because)


def test_torchs_own_libraries_are_those_of_the_build_on_the_index() -> None:
    known = library(
        package("torch", {"2.9.0": ["nvidia-cudnn-cu12==9.10", "cuda-bindings==12.9", "sympy>=1"]}),
        package("vllm", {"1.0": ["nvidia-cudnn-cu12==9.10"]}),
        package("nvidia-cudnn-cu12", {"9.10": (), "9.15": ()}),
        package("sympy", {"0.9": (), "1.0": ()}),
    )
    assert why(known=known, torch="==2.9.0", nvidia_cudnn_cu12="==9.15").answer == "compatible"
    assert why(known=known, vllm="==1.0", nvidia_cudnn_cu12="==9.15").answer == "incompatible"
    assert why(known=known, torch="==2.9.0", sympy="<1").answer == "incompatible"


def near(*rules: Rule, known: MetadataCache = FIELD, **requested: str) -> list[dict[str, str]]:
    around = PlatformChoices(cuda=("12.6", "12.8", "13.0"), python=("3.10", "3.11", "3.12"))
    return [dict(each.changes) for each in suggest(question(**requested), Knowledge(rules, known), around)]


def test_the_nearest_is_offered_first_and_no_detour_over_it() -> None:
    assert near(torch="==2.9.1", vllm="==0.11.0") == [{"torch": "==2.8.0"}, {"vllm": "==0.13.0"}]
    assert near(vllm="==0.13.0", mcore="==0.15") == [{"mcore": "==0.16"}, {"vllm": "==0.12.0"}]
    assert near(vllm="==0.40.0") == [{"vllm": "==0.13.0"}]


def test_a_surrounding_changes_only_where_components_do_not_help() -> None:
    needs_cuda = rule("r", {"torch": ">=2.9.1"}, {"cuda": ">=12.8"})
    assert near(needs_cuda, torch="==2.9.1", cuda="==12.6") == [{"torch": "==2.9.0"}, {"cuda": "==12.8"}]
    assert near(torch="==2.8.0", python="==3.9") == [{"python": "==3.10"}]


def test_no_suggestion_has_a_suspected_conflict_or_a_yanked_release() -> None:
    doubt = rule("doubt", {"torch": "==2.8.0"}, {"vllm": ">=1"}, evidence="remembered")
    assert near(doubt, torch="==2.9.1", vllm="==0.11.0") == [{"vllm": "==0.13.0"}]
    some = package("a", {"1.0": ["b==1.0"], "1.1": ["b==2.0"], "1.2": ["b==2.0"]})
    yanked = replace(some, releases=some.releases | {"1.1": replace(some.releases["1.1"], yanked=True)})
    known = library(yanked, package("b", {"1.0": (), "2.0": ()}))
    assert {"a": "==1.2"} in near(known=known, a="==1.0", b="==2.0")
    assert {"a": "==1.1"} not in near(known=known, a="==1.0", b="==2.0")


VERSIONS = ("1.0", "2.0", "3.0")
NAMES = ("a", "b", "c")
RANGES = ("", "<2", ">=2", "==1.0", "==2.0", "!=2.0", ">2")
REQUIRES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(RANGES)), max_size=2)
WORLDS = st.fixed_dictionaries({name: st.fixed_dictionaries(dict.fromkeys(VERSIONS, REQUIRES)) for name in NAMES})
RULES = st.lists(
    st.builds(
        lambda when, then, name: rule(name, {when[0]: when[1]}, {then[0]: then[1]}),
        st.tuples(st.just("a"), st.sampled_from(RANGES)),
        st.tuples(st.sampled_from(["b", "c"]), st.sampled_from(RANGES)),
        st.sampled_from(["r1", "r2"]),
    ),
    max_size=2,
    unique_by=lambda each: each.id,
)
ASKED = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([f"=={version}" for version in VERSIONS]), min_size=1)
World = Mapping[str, Mapping[str, list[tuple[str, str]]]]


def _library(world: World) -> MetadataCache:
    return library(
        *(
            package(name, {v: [f"{n}{s}" for n, s in requires if n != name] for v, requires in releases.items()})
            for name, releases in world.items()
        )
    )


def _possible(world: World, rules: list[Rule], requested: Mapping[str, str]) -> bool:
    """Return whether some choice of versions, or none, for every package satisfies everything."""
    for chosen in itertools.product(*([None, *VERSIONS] for _ in NAMES)):
        versions = {name: version for name, version in zip(NAMES, chosen, strict=True) if version}
        if all(name in versions and _in(versions[name], text) for name, text in requested.items()) and _obeys(
            world, rules, versions
        ):
            return True
    return False


def _obeys(world: World, rules: list[Rule], versions: Mapping[str, str]) -> bool:
    required = [
        other in versions and _in(versions[other], text)
        for name, version in versions.items()
        for other, text in world[name][version]
        if other != name
    ]
    ruled = [
        not all(name in versions and _in(versions[name], text) for name, text in each.when.items())
        or all(_in(versions[name], text) if name in versions else bool(text) for name, text in each.then.items())
        for each in rules
    ]
    return all(required) and all(ruled)


def _in(version: str, specifier: str) -> bool:
    return version in SpecifierSet(specifier)


def _ask(requested: Mapping[str, str]) -> Question:
    return question(**requested)


@given(WORLDS, RULES, ASKED)
def test_the_answer_is_that_of_trying_everything(world: World, rules: list[Rule], requested: dict[str, str]) -> None:
    explanation = explain(_ask(requested), Knowledge(rules, _library(world)))
    assert (explanation.answer == "incompatible") == (not _possible(world, rules, requested))
    assert explanation.answer != "unknown"


def test_the_releases_of_a_package_that_a_rule_requires_are_read() -> None:
    """`b` is named by the rule alone, and none of its known releases can be installed."""
    known = library(package("a", {"1.0": ()}), package("b", {"1.0": ["c"]}), package("c", {"1.0": ["b>1"]}))
    requires = rule("r", {"a": ""}, {"b": ""})
    assert explain(question(a="==1.0"), Knowledge([requires], known)).answer == "unknown"
    assert explain(question(a="==1.0"), Knowledge([], known)).answer == "compatible"


def test_rules_that_the_absence_of_a_package_satisfies_take_no_part() -> None:
    known = library(package("a", {"1.0": ["b"]}), package("b", {"1.0": ()}), package("x", {"1.0": ()}))
    rules = [
        rule("seen", {"a": ""}, {"b": ">=1"}),
        rule("when", {"x": ""}, {"b": ">=1"}),
        rule("then", {"a": ""}, {"x": ">=1"}),
        rule("conflict", {"a": ""}, conflict={"x": ">=1"}),
        rule("required", {"b": ""}, {"y": ""}),
        rule("surrounding", {"a": ""}, {"x": ">=1", "cuda": ">=12"}),
    ]
    problem = Problem(rules, question(a="==1.0").facts, known)
    assert set(problem.rules) == {"seen", "required", "surrounding"}


@given(WORLDS, RULES, ASKED)
def test_a_reported_conflict_follows_from_what_it_lists_alone(
    world: World, rules: list[Rule], requested: dict[str, str]
) -> None:
    for conflict in explain(_ask(requested), Knowledge(rules, _library(world))).conflicts:
        rule_ids = {each.id for each in conflict.rules}
        left = {
            name: {
                version: [
                    (n, s)
                    for n, s in requires
                    if any(f":{name}-" in each and each.endswith(f":{n}") for each in rule_ids)
                ]
                for version, requires in releases.items()
            }
            for name, releases in world.items()
        }
        named = {name: requested[name] for name in conflict.facts}
        assert not _possible(left, [each for each in rules if each.id in rule_ids], named)


# A rule that requires a package, of which no release can be installed.
@example(
    {
        "a": {"1.0": [("b", "")], "2.0": [("b", "<2")], "3.0": []},
        "b": {"1.0": [("c", "==2.0")], "2.0": [("a", "==2.0")], "3.0": [("a", "==2.0")]},
        "c": {"1.0": [], "2.0": [("b", ">=2")], "3.0": []},
    },
    [rule("r1", {"a": ""}, {"b": ""})],
    {"a": "==1.0"},
)
@given(WORLDS, RULES, ASKED)
def test_no_combination_that_works_is_nearer(world: World, rules: list[Rule], requested: dict[str, str]) -> None:
    if _possible(world, rules, requested):
        return
    found = suggest(_ask(requested), Knowledge(rules, _library(world)), PlatformChoices())
    costs = []
    for chosen in itertools.product(VERSIONS, repeat=len(requested)):
        other = {name: f"=={version}" for name, version in zip(requested, chosen, strict=True)}
        if _possible(world, rules, other):
            moved = [name for name in requested if other[name] != requested[name]]
            steps = sum(abs(VERSIONS.index(other[n][2:]) - VERSIONS.index(requested[n][2:])) for n in moved)
            costs.append((len(moved), steps))
    assert bool(found) == bool(costs)
    for each in found:
        assert explain(_ask({**requested, **each.changes}), Knowledge(rules, _library(world))).answer == "compatible"
    if found:
        assert (found[0].cost, found[0].distance) == min(costs)


def test_releases_before_the_oldest_that_was_read_are_unknown_and_not_absent() -> None:
    read = package("datasets", {"3.0": ["arrow>=15"], "4.0": ["arrow>=15"]})
    arrow = package("arrow", {"11.0": (), "15.0": ()})
    requested = question(datasets="", arrow="<12")
    assert explain(requested, Knowledge([], library(read, arrow))).answer == "incompatible"
    cut_off = library(replace(read, since="3.0"), arrow)
    found = explain(requested, Knowledge([], cut_off))
    assert (found.answer, found.unread) == ("unknown", {"datasets"})
    assert [conflict.severity for conflict in found.conflicts] == ["suspicion"]
    assert explain(question(datasets="<4", arrow="<12"), Knowledge([], cut_off)).answer == "unknown"
    assert explain(question(datasets=">=3", arrow="<12"), Knowledge([], cut_off)).answer == "incompatible"
    assert explain(question(datasets="==3.0", arrow="<12"), Knowledge([], cut_off)).answer == "incompatible"


def test_a_rule_about_all_known_releases_does_not_refuse_older_ones() -> None:
    read = replace(package("trl", {"0.9": (), "1.0": ()}), since="0.9")
    rules = [rule("new", {"trl": ">=0.9"}, {"torch": ">=2"})]
    requested = question(trl="", torch="==1.13")
    known = library(read, package("torch", {"1.13": (), "2.0": ()}))
    assert explain(requested, Knowledge(rules, known)).answer == "unknown"
    assert explain(question(trl=">=0.9", torch="==1.13"), Knowledge(rules, known)).answer == "incompatible"


def test_older_releases_that_were_read_count_and_those_between_them_are_unknown() -> None:
    metadata = library(replace(package("pack", {"3.0": ["arrow>=15"]}), since="3.0"), package("arrow", {"11.0": ()}))
    metadata.add(replace(package("pack", {"2.0": ["arrow>=14"], "1.0": ["arrow>=13"]}), since="1.0"), "<3.0")
    requested = question(pack="", arrow="==11.0")
    found = explain(requested, Knowledge([], metadata))
    assert (found.answer, [text for text in found.unknown if "3.0 to 3.0" in text]) == ("unknown", list(found.unknown))
    metadata.add(package("pack", {"1.0": ["arrow>=13"]}), "<3.0")  # these are all
    assert explain(requested, Knowledge([], metadata)).answer == "incompatible"
    metadata.add(package("pack", {"0.5": ["arrow"]}), "==0.5")
    assert explain(requested, Knowledge([], metadata)).answer == "compatible"
