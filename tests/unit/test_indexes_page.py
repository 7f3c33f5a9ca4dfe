"""The example of docs/how-to/indexes.md is a matrix that takes a component from an index of its own."""

from __future__ import annotations

import re
from pathlib import Path

from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.core.net.package_index import variable

PAGE = (Path(__file__).parents[2] / "docs/how-to/indexes.md").read_text(encoding="utf-8")


def test_the_example_takes_its_component_from_the_index(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "acme.yaml").write_text(example, encoding="utf-8")
    (cell,) = matrix.load([shipped("matrices"), tmp_path]).select("acme-rl")
    (mine,) = [each for each in cell.requirements if each.component.name == "acme-rewards"]
    assert mine.index == "acme"
    assert str(cell.indexes["acme"].url) in PAGE
    assert variable("acme") in PAGE
