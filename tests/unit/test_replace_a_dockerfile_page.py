"""The examples of docs/how-to/replace-a-dockerfile.md: they load, and do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from imagegen.core.data import shipped
from imagegen.plan import matrix
from imagegen.plan.matrix.model import Cell

PAGE = (Path(__file__).parents[2] / "docs/how-to/replace-a-dockerfile.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n# matrices/own.yaml\n(.*?)```", PAGE, re.DOTALL)


def example(project: Path, image: str) -> Cell:
    """Return the cell of the example that defines `image`."""
    (text,) = (each for each in EXAMPLES if f"  {image}:\n" in each)
    (project / "matrices").mkdir()
    (project / "matrices/own.yaml").write_text(text, encoding="utf-8")
    return matrix.load([shipped("matrices"), shipped("wheels"), project / "matrices"]).select_one(image)


def test_overrides(tmp_path: Path) -> None:
    cell = example(tmp_path, "my-overrides")
    assert [(each.package, each.specifier, bool(each.source)) for each in cell.overrides] == [
        ("fsspec", "==2026.2.*", True),
        ("hf-xet", None, False),
    ]
    lines = (tmp_path / "matrices/own.yaml").read_text().splitlines()
    assert {name: lines[(where.line or 0) - 1].strip() for name, where in cell.override_places.items()} == {
        "fsspec": "fsspec:",
        "hf-xet": "hf-xet:",
    }
