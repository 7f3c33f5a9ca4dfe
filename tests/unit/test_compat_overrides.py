"""Declared requirements that projects override: which projects a conflict names, and how to override."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen.compat import Explanation, Question, explain
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.rule import Override, PinOverride
from imagegen.spec.cell_facts import in_cell
from tests.support.matrix_samples import shipped_matrix
from tests.support.package_metadata import library, package, question, rule

FIELD = library(
    package("engine", {"1.0": ["models<5"], "2.0": ["models<5", "vision>=2"]}),
    package("trainer", {"1.0": ["numpy<2"]}),
    package("vision", {"2.0": ["numpy>=2"]}),
    package("models", {"4.0": (), "5.0": (), "6.0": ()}),
    package("numpy", {"1.26": (), "2.3": ()}),
)
SHIPS = PinOverride(
    "shipper", "shipper 1", "engine", ">=1,<2", "models", "==5.*", "overrides", "https://example.org", "2026-11-24"
)
NUMPY = PinOverride("old", "old shipper", "trainer", "", "numpy", "", "--no-deps", "https://example.org", "2026-11-24")


def why(*overrides: PinOverride, **requested: str) -> Explanation:
    return explain(question(**requested), Knowledge([], FIELD, overrides=overrides))


def test_a_project_is_named_that_installs_such_versions() -> None:
    refused = why(SHIPS, NUMPY, engine="==1.0", models="==5.0")
    assert (refused.answer, refused.kind, refused.overridden_by) == ("incompatible", "pip-refuses", ("shipper 1",))
    (conflict,) = refused.conflicts
    assert (conflict.override, conflict.overridden_by) == ("models==5.0", (SHIPS,))


@pytest.mark.parametrize("requested", [{"engine": "==2.0", "models": "==5.0"}, {"engine": "==1.0", "models": "==6.0"}])
def test_no_project_is_named_for_other_versions(requested: dict[str, str]) -> None:
    refused = why(SHIPS, **requested)
    assert (refused.kind, refused.overridden_by) == ("pip-refuses", ())
    assert refused.conflicts[0].override == f"models{requested['models']}"


def test_a_chain_is_overridden_where_one_of_its_requirements_is() -> None:
    refused = why(NUMPY, engine="==2.0", trainer="==1.0")
    assert refused.overridden_by == ("old shipper",)
    assert len(refused.conflicts[0].rules) == 3


def test_an_answer_breaks_if_pip_installs_the_release_that_a_requirement_names() -> None:
    symbols = rule("symbols", {"models": ">=4,<5"}, {"numpy": "<2"})
    asked = question(engine="==1.0", models="", numpy="==2.3")
    refused = explain(asked, Knowledge([symbols], FIELD, overrides=[SHIPS]))
    (conflict,) = refused.conflicts
    assert (refused.kind, conflict.override, len(conflict.rules)) == ("breaks", "", 2)


def test_nothing_overrides_what_breaks() -> None:
    symbols = rule("symbols", {"engine": ""}, {"models": "<5"})
    refused = explain(question(engine="==1.0", models="==5.0"), Knowledge([symbols], FIELD, overrides=[SHIPS]))
    assert (refused.kind, refused.overridden_by) == ("breaks", ())
    overrides = {conflict.kind: conflict.override for conflict in refused.conflicts}
    assert overrides == {"breaks": "", "pip-refuses": "models==5.0"}


@pytest.mark.parametrize(
    ("specifier", "version", "answer"),
    [
        ("==2.3.*", "2.3", "compatible"),
        ("==2.3+cu130", "2.3", "compatible"),
        ("", "2.3", "compatible"),
        ("==2.3.*", "1.26", "incompatible"),  # what trainer requires does not count any more
        (None, "2.3", "incompatible"),
    ],
)
def test_an_override_of_a_cell_binds_in_place_of_what_is_declared(
    specifier: str | None, version: str, answer: str
) -> None:
    matrix = shipped_matrix()
    (chosen,) = (each for each in matrix.cells() if each.id == "prime-rl-cu130-py312")
    own = replace(chosen, overrides=(Override("numpy", specifier, because="It works."),))
    facts = in_cell(question(trainer="==1.0", numpy=f"=={version}").facts, own)
    explanation = explain(Question({"numpy": f"=={version}"}, replace(facts, gpus=())), Knowledge([], FIELD))
    assert explanation.answer == answer
    assert [each.kind for each in explanation.conflicts] == ["pip-refuses"] * (answer == "incompatible")


def test_each_shipped_override_has_a_source_that_names_a_release_or_a_commit() -> None:
    known = shipped_matrix().pin_overrides
    assert known
    for each in known:
        assert "/blob/" in each.source, each.project
        assert not each.source.split("/blob/")[1].startswith(("main/", "master/"))


def test_numpy_1_beside_an_opencv_that_declares_numpy_2_is_known() -> None:
    shipped = {(each.package, each.requires) for each in shipped_matrix().pin_overrides}
    assert {("verl", "numpy"), ("vllm", "transformers"), ("sglang", "transformers")} <= shipped
