"""The examples of docs/how-to/change-a-shipped-image.md: they load, and do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from imagegen import spec as matrix
from imagegen.core.data import shipped

PAGE = (Path(__file__).parents[2] / "docs/how-to/change-a-shipped-image.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```yaml\n# (matrices/\S+)\n(.*?)```", PAGE, re.DOTALL))


def load(project: Path) -> matrix.Matrix:
    for name, text in EXAMPLES.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    return matrix.load([shipped("matrices"), project / "matrices"])


def test_the_image_is_the_shipped_one_with_the_changes(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    parent, own = loaded.select_one("cpu-grpo"), loaded.select_one("my-rl")
    before, after = ({each.component.name: each.specifier for each in cell.requirements} for cell in (parent, own))
    assert after.keys() - before.keys() == {"matplotlib"}
    assert before.keys() - after.keys() == {"hydra-core"}
    assert {name for name in after if after[name] != before.get(name, "")} == {"transformers"}
    assert {each.name: each.value for each in own.env}["WANDB_MODE"] == "disabled"
    assert (set(own.packages) - set(parent.packages), own.extends, own.base) == ({"git"}, "cpu-grpo", parent.base)


def test_a_package_that_nothing_declares_needs_no_ceremony(tmp_path: Path) -> None:
    own = load(tmp_path).select_one("my-eval")
    found = {each.component.name: each for each in own.requirements if not each.component.declared}
    assert {name: (each.pep508, each.index) for name, each in found.items()} == {
        "math-verify": ("math-verify==0.8.0", "pypi"),
        "pylatexenc": ("pylatexenc", "pypi"),
    }
    assert own.declarations.undeclared == ("math-verify", "pylatexenc")
    assert all(each.because for each in own.requirements)
