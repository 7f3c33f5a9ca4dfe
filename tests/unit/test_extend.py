"""The worked example of docs/how-to/extend-the-matrix.md: what it adds is there, and does what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagegen import spec as matrix
from imagegen.cli.commands import cli
from imagegen.core.data import shipped
from imagegen.spec import Matrix

PAGE = (Path(__file__).parents[2] / "docs/how-to/extend-the-matrix.md").read_text(encoding="utf-8")
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
    required = {each.component.name: each.specifier for each in default.requirements}
    assert required["torch"] == "==2.11.0"
    assert required["nvidia-cuda-nvcc"] == "==13.0.*"  # from the stack
    assert {each.component.name: each.specifier for each in newest.requirements}["torch"] == "==2.13.0"
    assert {each.name for each in default.env} >= {"NVIDIA_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST"}


def test_the_rule_refuses_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path)
    (words,) = re.findall(r"^    imagegen (why .*)$", PAGE, re.MULTILINE)
    for gpu, code, rules in (("A100", 1, ["cce-needs-fp8"]), ("H100", 0, [])):
        requested = words.replace("gpu=A100", f"gpu={gpu}").split()
        ended = CliRunner().invoke(cli, ["--project", str(tmp_path), *requested, "--json"], standalone_mode=False)
        assert (ended.return_value, ended.exception) == (code, None)
        assert [each["rule"] for each in json.loads(ended.stdout)["conflicts"] if each["severity"] == "error"] == rules
