"""The worked example of docs/extend.md: what it adds is there, and does what the page says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import compat, matrix
from imagegen.data import shipped
from imagegen.matrix import Matrix

PAGE = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n# (matrices/\S+)\n(.*?)```", PAGE, re.DOTALL)


def write(project: Path) -> None:
    for name, text in EXAMPLES:
        file = project / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


@pytest.fixture
def extended(tmp_path: Path) -> Matrix:
    write(tmp_path)
    return matrix.load([shipped("matrices"), tmp_path / "matrices"])


def test_the_page_has_the_three_examples() -> None:
    assert [name for name, _ in EXAMPLES] == [
        "matrices/components.yaml",
        "matrices/images.yaml",
        "matrices/rules.yaml",
    ]


def test_the_image_has_the_cells_that_the_page_names(extended: Matrix) -> None:
    default, newest = extended.select("my-sft*")
    assert (default.id, newest.id) == ("my-sft-cu130-py311", "my-sft-cu130-py311-newest")
    assert f"`{default.id}` and `{newest.id}`" in PAGE
    wanted = {each.component.name: each.specifier for each in default.requirements}
    assert wanted["torch"] == "==2.11.0"
    assert wanted["nvidia-cuda-nvcc"] == "==13.0.*"  # from the stack
    assert {each.component.name: each.specifier for each in newest.requirements}["torch"] == "==2.13.0"
    assert {each.name for each in default.env} >= {"NVIDIA_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST"}


def test_the_rule_refuses_what_the_page_says(extended: Matrix) -> None:
    rule = next(rule for rule in extended.rules if rule.id == "cce-needs-ampere")
    facts = compat.facts_of_cell(extended.select("my-sft")[0])
    for capability, answer in (("7.5", "incompatible"), ("9.0", "compatible")):
        gpu = {"gpu": compat.Fact.exactly(capability)}
        assert compat.judge([rule], replace(facts, versions={**facts.versions, **gpu})).answer == answer
