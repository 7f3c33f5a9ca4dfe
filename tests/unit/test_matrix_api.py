"""matrices/api/*.json: the file, spans of releases, and the rules that follow from it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from imagegen.audit.api import RequiredName
from imagegen.compat import import_names
from imagegen.compat import package_names as api
from imagegen.compat.api import api_rules, rules_of
from imagegen.compat.package_names import PackageNames, SharedName
from imagegen.compat.rule import Rule
from imagegen.core.data import shipped
from imagegen.core.errors import MatrixError
from tests.support.command_line import Run
from tests.support.golden import Golden
from tests.support.matrix_samples import shipped_matrix
from tests.support.shipped_locks import NAMES as NAMES_OF_LOCKS
from tests.support.shipped_locks import shipped_lock
from tools.harvest.api import shared
from tools.harvest.names_files import dump_names, spans

VERSIONS = ["0.4.1", "0.4.1.post5", "0.5.0", "0.5.1", "0.6", "0.10.0"]
SPECIFIERS = st.lists(st.sampled_from(["<0.5", ">=0.4,<0.5", "==0.6", ">=0.1"]), max_size=2).map(tuple)
TEXTS = st.text(max_size=6)
NAMES = st.builds(
    SharedName, TEXTS, TEXTS, st.booleans(), TEXTS, st.integers(1, 9), st.booleans(), SPECIFIERS, SPECIFIERS, TEXTS
)
WHEELS = st.dictionaries(TEXTS, st.dictionaries(st.sampled_from(VERSIONS), TEXTS, max_size=2), max_size=2)


@given(TEXTS, st.lists(NAMES, max_size=3), WHEELS)
def test_what_is_written_is_read(name: str, names: list[SharedName], wheels: dict[str, dict[str, str]]) -> None:
    table = PackageNames(name, "2026-11-24", wheels, tuple(sorted(names)))
    assert api.parse(dump_names(table)) == table


@given(
    st.binary(max_size=100)
    | st.sampled_from([b"[]", b'{"package": 1, "read": ""}', b'{"package": "", "read": "", "names": [1]}'])
)
def test_another_file_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them
        api.parse(raw)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert api.load([tmp_path], "verl") is None
    api.path_of(tmp_path, "verl").parent.mkdir()
    api.path_of(tmp_path, "verl").write_text("{")
    with pytest.raises(MatrixError) as caught:
        api.load([tmp_path], "verl")
    assert "verl.json" in str(caught.value.where)


@given(st.sets(st.sampled_from(VERSIONS)), st.booleans())
def test_spans_hold_the_chosen_releases_and_no_other_known_one(chosen: set[str], open_ended: bool) -> None:
    found = [SpecifierSet(each) for each in spans(chosen, VERSIONS, open_ended=open_ended)]
    assert {version for version in VERSIONS if any(version in each for each in found)} == chosen


def test_open_spans_go_on_beyond_the_known_releases() -> None:
    assert spans(VERSIONS[:3], VERSIONS, open_ended=True) == ("<0.5.1",)
    assert spans(VERSIONS[4:], VERSIONS, open_ended=True) == (">=0.6",)
    assert spans([VERSIONS[2]], VERSIONS, open_ended=True) == (">=0.5.0,<0.5.1",)
    assert spans(VERSIONS[4:], VERSIONS, open_ended=False) == (">=0.6,<=0.10.0",)


# From names of releases to spans.


def required(name: str, modules: int = 2, *, path: str = "verl/a.py", certain: bool = True) -> RequiredName:
    return RequiredName(name, modules, path, 7, certain)


def test_names_that_a_release_lacks_are_shared_with_the_spans_of_both() -> None:
    names = (required("sglang.io.New"), required("sglang.io.Always"))
    lacking = {"0.4": {("sglang.io.New", 2, ""): ("sglang.io.New", "")}, "0.5": {}, "0.6": {}}
    (found,) = shared({"0.7.0": (), "0.7.1": names, "0.8.0": names}, {"sglang": lacking})
    assert found == SharedName("sglang", "sglang.io.New", False, "verl/a.py", 7, True, (">=0.7.1,<=0.8.0",), ("<0.5",))


def test_a_missing_module_lacks_all_of_its_names() -> None:
    lacking = {
        "1": {("vllm.a.X", 2, ""): ("vllm.a.X", "")},
        "2": {},
        "3": {("vllm.a.X", 2, ""): ("vllm.a", "")},
    }
    found = list(shared({"1": (required("vllm.a.X"),)}, {"vllm": lacking}))
    assert {(each.name, each.module, each.lacked_by) for each in found} == {
        ("vllm.a.X", False, ("<2", ">=3")),
        ("vllm.a", True, (">=3",)),
    }


def test_what_no_release_has_is_not_shared() -> None:
    assert list(shared({"1": (required("vllm.a.X"),)}, {"vllm": {"1": {("vllm.a.X", 2, ""): ("vllm.a.X", "")}}})) == []


def test_a_keyword_is_shared_beside_the_name_that_is_called() -> None:
    names = (required("vllm.LLM", 1), RequiredName("vllm.LLM", 1, "verl/a.py", 9, True, "model"))
    lacking = {
        "1": {("vllm.LLM", 1, ""): ("vllm.LLM", "")},
        "2": {("vllm.LLM", 1, "model"): ("vllm.LLM", "model")},
        "3": {},
    }
    found = {each.keyword: (each.name, each.line, each.lacked_by) for each in shared({"1": names}, {"vllm": lacking})}
    assert found == {"": ("vllm.LLM", 7, ("<2",)), "model": ("vllm.LLM", 9, (">=2,<3",))}


def test_a_certain_use_hides_the_uncertain_ones_of_the_same_release() -> None:
    names = (required("vllm.a.X", path="verl/b.py", certain=False), required("vllm.a.X"))
    lacking = {"1": {("vllm.a.X", 2, ""): ("vllm.a.X", "")}, "2": {}}
    found = list(shared({"1": names, "2": names[:1]}, {"vllm": lacking}))
    assert {(each.certain, each.required_by) for each in found} == {(True, ("==1",)), (False, ("==2",))}


# Rules.


def test_a_rule_speaks_for_all_names_of_the_same_releases(golden: Golden) -> None:
    rest = (("==1.0", ">=1.2,<=1.3"), ("<2",))
    names = tuple(SharedName("vllm", f"vllm.a.{name}", False, "verl/a.py", 7, True, *rest) for name in "XYZ")
    lazy = SharedName("vllm", "vllm.b", True, "verl/b.py", 1, False, ("==1.0",), (">=3,<4",))
    other = SharedName("sglang", "sglang.a", True, "verl/b.py", 1, True, ("==1.0",), ("<2",))
    table = PackageNames("verl", "2026-11-24", {}, (*names, lazy, other))
    found = {rule.id: rule for rule in rules_of(table)}
    assert list(found) == ["api-verl-vllm-X", "api-verl-vllm-X-2", "api-verl-vllm-b", "api-verl-sglang-a"]
    first = found["api-verl-vllm-X"]
    assert (first.when, first.conflict, first.severity) == ({"verl": "==1.0"}, {"vllm": "<2"}, "error")
    assert (first.kind, first.evidence, first.date) == ("breaks", "measured", "2026-11-24")
    assert found["api-verl-vllm-b"].severity == "warning"
    golden.check(first.message, found["api-verl-vllm-b"].message)


def test_a_refused_keyword_breaks_unless_the_same_releases_lack_a_name(golden: Golden) -> None:
    rest = (("==1.0",), ("<2",))
    keyword = SharedName("vllm", "vllm.LLM", False, "verl/a.py", 7, True, *rest, "model")
    (rule,) = rules_of(PackageNames("verl", "2026-11-24", {}, (keyword,)))
    assert (rule.id, rule.when, rule.conflict) == ("api-verl-vllm-model", {"verl": "==1.0"}, {"vllm": "<2"})
    assert (rule.severity, rule.kind) == ("error", "breaks")
    golden.check(rule.message)
    name = SharedName("vllm", "vllm.LLM", False, "verl/a.py", 7, True, *rest)
    assert [each.id for each in rules_of(PackageNames("verl", "", {}, (name, keyword)))] == ["api-verl-vllm-LLM"]


# The shipped files.

DIRECTORY = shipped("matrices")


def test_shipped_files_are_as_they_would_be_written_and_small() -> None:
    sizes = 0
    for name in api.names([DIRECTORY]):
        raw = api.path_of(DIRECTORY, name).read_bytes()
        assert dump_names(api.parse(raw)) == raw
        sizes += len(raw)
    assert 0 < sizes < 1 << 20


def shared_name_rules() -> list[Rule]:
    packages = {*api.names([DIRECTORY]), *import_names.names([DIRECTORY])}
    return [rule for name in sorted(packages) for rule in api_rules([DIRECTORY], name)]


def rejected(package: str, version: str, provider: str, other: str) -> set[str]:
    """Return the messages of the errors about two releases."""
    return {
        rule.message
        for rule in shared_name_rules()
        if rule.severity == "error"
        and package in rule.when
        and version in SpecifierSet(rule.when[package])
        and provider in rule.conflict
        and other in SpecifierSet(rule.conflict[provider])
    }


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        # https://github.com/verl-project/verl/issues/6028
        (("verl", "0.8.0"), ("sglang", "0.5.2"), "ContinueGenerationReqInput"),
        (("verl", "0.4.1"), ("sglang", "0.5.2"), "ReleaseMemoryOccupationReqInput"),
        # https://github.com/huggingface/trl/issues/4617
        (("trl", "0.25.0"), ("vllm", "0.12.0"), "GuidedDecodingParams"),
        (("verl", "0.6.1"), ("transformers", "5.0.0"), "AutoModelForVision2Seq"),
        # An import of both releases failed so on 2026-11-28
        (("peft", "0.17.1"), ("transformers", "5.0.0"), "HybridCache"),
        (("datasets", "5.2.0"), ("huggingface-hub", "1.30.0"), "httpx"),
    ],
)
def test_pairs_that_users_reported_are_errors(first: tuple[str, str], second: tuple[str, str], name: str) -> None:
    assert any(name in message for message in rejected(*first, *second))


@pytest.mark.parametrize(
    ("words", "severity", "name"),
    [
        # Only `trl vllm-serve` needs it; trl 0.17 has no other use of vLLM. https://github.com/huggingface/trl/issues/3304
        (["trl==0.27.2", "vllm==0.15.0"], "warning", "get_open_port"),
        (["trl==0.20.0", "vllm==0.7.3"], "warning", "worker_extension_cls"),
        (["trl==0.17.0", "vllm==0.7.2"], "error", "worker_extension_cls"),
        (["trl==0.16.1", "vllm==0.11.0"], "error", "vllm.worker"),
        (["trl==0.25.0", "vllm==0.12.0"], "error", "GuidedDecodingParams"),
        # verl and LLaMA-Factory do not import GRPOTrainer.
        (["verl==0.7.0", "trl==0.25.0", "vllm==0.12.0"], "warning", "GuidedDecodingParams"),
        (["llamafactory", "trl==0.24.0", "vllm==0.12.0"], "warning", "GuidedDecodingParams"),
        # Unsloth defines the name.
        (["unsloth==2025.12.1", "trl==0.24.0", "vllm==0.12.0"], None, "GuidedDecodingParams"),
        (["unsloth==2025.11.4", "trl==0.23.1", "vllm==0.12.0"], "error", "GuidedDecodingParams"),
        (["unsloth==2026.10.9", "torch==2.9.1", "torchao==0.18.0"], None, "ScalingType"),
    ],
)
def test_a_name_that_is_missing_counts_by_its_reach(
    run: Run, words: list[str], severity: str | None, name: str
) -> None:
    conflicts = json.loads(run("why", *words, "--json").out)["conflicts"]
    severities = {conflict["severity"] for conflict in conflicts if name in conflict["reason"]}
    assert min(severities, default=None) == severity


def lacking(package: str, version: str, provider: str, other: str) -> set[str]:
    """Return the names that one release requires, in normal use or in functions, and the other release lacks."""
    names = api.load([DIRECTORY], package)
    assert names
    return {
        each.name.rpartition(".")[2]
        for each in names.names
        if each.provider == provider
        and any(version in SpecifierSet(span) for span in each.required_by)
        and any(other in SpecifierSet(span) for span in each.lacked_by)
    }


def test_rules_about_a_shared_name_reject_no_release_that_has_it() -> None:
    """A rule of the matrix that gives a shared name as its reason is about releases that require and lack that name."""
    compared = []
    for rule in shipped_matrix().rules:
        pairs = [(one, two) for one in rule.when for two in rule.conflict if one in api.names([DIRECTORY])]
        for package, provider in pairs:
            names = api.load([DIRECTORY], package)
            assert names
            shared_names = {each.name.rpartition(".")[2] for each in names.names if each.provider == provider}
            said = shared_names & set(re.findall(r"\w+", rule.because)) - {provider}
            if not said:
                continue
            compared.append(rule.id)
            for version in SpecifierSet(rule.when[package]).filter(names.wheels[package]):
                for other in SpecifierSet(rule.conflict[provider]).filter(names.wheels[provider]):
                    assert said <= lacking(package, version, provider, other), (rule.id, version, other)
    assert "verl-transformers5" in compared


def test_no_committed_lock_breaks_a_rule_about_names() -> None:
    rules = [rule for rule in shared_name_rules() if rule.binding]
    for lock in map(shipped_lock, NAMES_OF_LOCKS):
        versions = {wheel.name: wheel.version for wheel in lock.wheels}
        for rule in rules:
            conditions = {**rule.when, **rule.conflict}
            broken = all(name in versions and versions[name] in SpecifierSet(conditions[name]) for name in conditions)
            assert not broken, (lock.cell, rule.id)
