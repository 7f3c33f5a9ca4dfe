"""The recipe that docs/how-to/source-builds.md shows is one, and the page's exit from it is the plan's own sentence."""

from __future__ import annotations

import re
from pathlib import Path

from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.wheels import throttle

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/source-builds.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_is_a_recipe(tmp_path: Path) -> None:
    for name, text in EXAMPLES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    own = [tmp_path / "matrices", tmp_path / "wheels"]
    loaded = matrix.load([shipped("matrices"), shipped("wheels"), *own])
    recipe = loaded.recipes["my-kernels"]
    assert (recipe.modules, list(recipe.releases)) == (("my_kernels_cuda",), ["1.4"])
    (cell,) = loaded.select("my-k")
    assert cell.id == "my-k-cu130-py311"
    assert cell.recipes["my-kernels"] == recipe
    native = loaded.select_one("my-scorer").recipes["scorer"]
    assert native.prefix and native.prefix.files == ("bin/scorer", "lib/libscorer.so.1")
    network = loaded.select_one("hopper-network")
    assert {name: bool(each.prefix) for name, each in network.recipes.items()} == {"nccl-tests": True, "ucx": True}
    assert {"autoconf", "libibverbs-dev", "make"} <= set(network.packages)


def test_the_plan_that_both_pages_show_is_the_one_of_such_a_machine() -> None:
    cost = matrix.load([shipped("matrices"), shipped("wheels")]).recipes["flash-attn"].cost
    host = throttle.Machine(cores=2, memory=25 * 10**9, available=20 * 10**9, limited=False)
    sentence = throttle.plan(throttle.BuildJob(cost, architectures=1, threads=True), host).sentence("flash-attn")
    assert sentence in PAGE
    assert sentence in (ROOT / "README.md").read_text(encoding="utf-8")
