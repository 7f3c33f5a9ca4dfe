"""The examples of docs/how-to/your-own-package.md are matrices of images with packages of the project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagegen import spec as matrix
from imagegen.core.data import shipped

PAGE = (Path(__file__).parents[2] / "docs/how-to/your-own-package.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```yaml\n# matrices/(\S+)\.yaml\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize(
    ("image", "package", "kind"), [("my-rl", "mypkg", "path"), ("my-kernels", "mykernels", "wheel")]
)
def test_an_example_takes_a_package_of_the_project(image: str, package: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"{image}.yaml"
    file.write_text(EXAMPLES[image], encoding="utf-8")
    cell = matrix.load([shipped("matrices"), tmp_path]).select_one(image)
    required = next(each for each in cell.requirements if each.component.name == package)
    assert required.own
    assert (required.own.kind, required.own.where.file) == (kind, file)
    assert EXAMPLES[image].splitlines()[(required.own.where.line or 0) - 1].strip().startswith(package)
