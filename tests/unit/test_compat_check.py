"""Rules that contradict each other are reported with file and line, and only these."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from imagegen.compat import atoms, check, check_rules
from imagegen.compat.atoms import cut_line
from imagegen.compat.check import find_contradictions
from imagegen.compat.facts import versions_in
from imagegen.compat.rule import Rule
from imagegen.core.errors import MatrixErrors
from tests.support.golden import Golden
from tests.support.matrix_samples import RULE, SMALL, load, shipped_matrix
from tests.support.package_metadata import rule


def reported(*rules: Rule) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(clash.premise, clash.about, clash.rules) for clash in find_contradictions(rules)]


def test_two_rules_that_leave_nothing_of_a_package_clash() -> None:
    rules = [rule("high", {"a": ">=2"}, {"b": ">=2"}), rule("low", {"a": ">=2,<3"}, {"b": "<2"})]
    assert reported(*rules) == [("a <3,>=2", "b", ("high", "low"))]
    assert reported(rules[0], rule("low", {"a": "<2"}, {"b": "<2"})) == []


def test_a_surrounding_can_be_what_is_left_without_a_way() -> None:
    rules = [rule("new", {"a": ""}, {"cuda": ">=13"}), rule("old", {"a": "<2"}, {"cuda": "<12.8"})]
    assert [(about, names) for _, about, names in reported(*rules)] == [("cuda", ("new", "old"))]


def test_a_circle_that_comes_back_to_forbid_where_it_began_is_a_clash() -> None:
    circle = [rule("there", {"a": ">=2"}, {"b": "<1"}), rule("back", {"b": "<1"}, {"a": "<2"})]
    assert ("a >=2", "b", ("back", "there")) in reported(*circle)
    harmless = [rule("one", {"a": ">=2"}, {"b": ">=2"}), rule("two", {"b": ">=2"}, {"a": ">=2"})]
    assert reported(*harmless) == []


def test_one_rule_may_forbid_two_packages_beside_each_other() -> None:
    assert reported(rule("apart", {"a": ""}, conflict={"b": ""})) == []
    assert reported(rule("apart", {"a": ""}, conflict={"b": ""}), rule("more", {"a": ""}, {"b": ">=2"})) == []


def test_what_merely_does_not_fit_is_no_clash() -> None:
    """A library for CUDA 13 does not go with a build for 12.8: that is what rules are for."""
    assert (
        reported(rule("library", {"b": ""}, {"cuda": ">=13"}), rule("build", {"a": "+cu128"}, {"cuda": "==12.8"})) == []
    )


@pytest.mark.parametrize("weak", [{"evidence": "remembered"}, {"severity": "warning"}])
def test_what_does_not_bind_contradicts_nothing(weak: dict[str, str]) -> None:
    assert reported(rule("high", {"a": ""}, {"b": ">=2"}), rule("low", {"a": ""}, {"b": "<2"}, **weak)) == []


RANGES = st.sampled_from(["", "<2", ">=2", "<1.5", ">=1.5,<3"])


@given(st.lists(st.tuples(st.sampled_from("abc"), RANGES, st.sampled_from("abc"), RANGES), max_size=4))
def test_a_clash_needs_each_of_its_rules(made: list[tuple[str, str, str, str]]) -> None:
    rules = [
        rule(f"r{number}", {name: text}, {other: needed})
        for number, (name, text, other, needed) in enumerate(made)
        if name != other
    ]
    for clash in find_contradictions(rules):
        blamed = [each for each in rules if each.id in clash.rules]
        assert len(blamed) > 1
        assert clash.rules in {each.rules for each in find_contradictions(blamed)}
        for left_out in blamed:
            assert clash.rules not in {
                each.rules for each in find_contradictions([each for each in rules if each is not left_out])
            }


def test_the_error_names_both_places(tmp_path: Path, golden: Golden) -> None:
    low = RULE.replace('conflict: {numpy: ">=2"}', 'then: {numpy: ">=2"}').replace("old-torch", "older-torch")
    loaded = load(tmp_path, SMALL, RULE, low)
    with pytest.raises(MatrixErrors) as caught:
        check_rules(loaded.rules, loaded.places)
    text = str(caught.value).replace(f"{tmp_path}/", "")
    golden.check(text)


def test_the_shipped_rules_do_not_contradict_each_other() -> None:
    matrix = shipped_matrix()
    check_rules(matrix.rules, matrix.places)


# Thousands of rules about one package: its line of versions is cut once at each bound, and few atoms are tried.

VERSIONS = [Version(text) for text in ("0", "1.dev0", "1a1", "1", "1.post1", "1+cu1", "1.5", "2rc1", "2", "3", "1!1")]
CUTS = st.sampled_from(
    ["", ">=1", "<1", "==1", "!=1", ">1", "<=1", "==1.*", "!=1.*", "~=1.5", ">=1a1,<2", "==1+cu1", "!=2,!=3"]
)


@given(st.lists(CUTS, unique=True))
def test_pieces_of_the_line_agree_about_each_version(texts: list[str]) -> None:
    ranges = tuple({versions_in(text): None for text in texts})
    line = cut_line(ranges)
    for version in VERSIONS:
        (place,) = [place for place, piece in enumerate(line.pieces) if piece.range and version in piece.range]
        assert [line.inside[cut] >> place & 1 for cut in ranges] == [version in cut for cut in ranges]


@given(st.lists(CUTS, unique=True))
def test_pieces_are_those_of_cutting_by_one_range_after_the_other(texts: list[str]) -> None:
    """In their order, too, on which answers depend."""
    pieces = [versions_in("")]
    ranges = tuple({versions_in(text): None for text in texts})
    for cut in ranges:
        halves = [half for piece in pieces for half in (piece.intersection(cut), piece.difference(cut))]
        pieces = [half for half in halves if not half.is_empty]
    for piece, expected in zip(cut_line(ranges).pieces, pieces, strict=True):
        assert piece.range is not None
        assert piece.range.is_subset(expected) and expected.is_subset(piece.range)


def work_for(monkeypatch: pytest.MonkeyPatch, form: str, count: int) -> int:
    """The number of comparisons of ranges with pieces that cutting at `count` versions takes."""
    comparisons = 0
    cut = atoms.cut_pieces

    def counted(piece: object, inside: int, ranges: list[object], versions: object) -> object:
        nonlocal comparisons
        comparisons += len(ranges)
        return cut(piece, inside, ranges, versions)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(atoms, "cut_pieces", counted)
        line = atoms.cut_line(tuple(versions_in(form.format(f"{number}.0.7")) for number in range(1, count + 1)))
    assert len(line.pieces) == count + 1
    return comparisons


@pytest.mark.fault("Matrices, rules, locks", "4,000 rules about the versions of one package", "judged within seconds")
@pytest.mark.parametrize("form", [">={}", "=={}", "!={}", "<{}", "~={}", ">={},<99999"])
def test_the_work_for_many_ranges_is_about_linear(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert work_for(monkeypatch, form, 400) < 6 * work_for(monkeypatch, form, 100)


def test_few_atoms_are_tried_for_many_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    loses = check.AtomTrials.loses
    monkeypatch.setattr(check.AtomTrials, "loses", lambda *call: tried.append(call[1]) or loses(*call))
    rules = [rule(f"r{number}", {"a": f">={number}"}, {"b": ">=1"}) for number in range(1, 200)]
    assert reported(*rules) == []
    assert tried.count("a") == 1
    clashes = reported(*rules, rule("none", {"a": ">=150"}, {"b": "<1"}))
    assert [(about, names) for _, about, names in clashes] == [("b", ("none", "r1"))]
