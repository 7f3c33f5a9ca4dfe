"""The example of docs/how-to/several-environments.md: an image of locked cells, within the bytes that ADR 10 allows."""

from __future__ import annotations

import re
from pathlib import Path

from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.image.layers.plan import plan
from imagegen.lock.environments import combine, locked_environments, shared_wheels
from imagegen.lock.file import read

PAGE = (Path(__file__).parents[2] / "docs/how-to/several-environments.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```yaml\n# matrices/rl-stack\.yaml\n(.*?)```", PAGE, re.DOTALL)
_OVERLAY = 127  # layers that a mount can have; users add their own


def test_the_example_is_an_image_that_shares_its_wheels(tmp_path: Path) -> None:
    (tmp_path / "rl-stack.yaml").write_text(EXAMPLE, encoding="utf-8")
    (cell,) = matrix.load([shipped("matrices"), tmp_path]).select("rl-stack")
    assert cell.id.removeprefix("rl-stack-") in PAGE
    locks = [read(shipped("locks") / f"{each.cell.id}.toml") for each in cell.environments]
    assert all(one.foundation == locks[0].foundation for one in locks)
    lock = combine(cell.id, cell.image, locked_environments(cell.environments, locks), None)
    assert 1 < shared_wheels(lock).ratio < 1.2
    assert len(plan(lock)) < _OVERLAY / 2
    for each in lock.environments:
        assert f"{each.prefix}/bin/activate" in PAGE
