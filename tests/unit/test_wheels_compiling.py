"""Source builds that a combination needs."""

from __future__ import annotations

import pytest

from imagegen.spec.questions import parse_question, vocabulary_of
from imagegen.wheels import catalogue
from imagegen.wheels.compiling import needed_builds
from tests.support.matrix_samples import SHIPPED, shipped_matrix_and_recipes

WHEELS = SHIPPED.parent / "wheels"
MATRIX = shipped_matrix_and_recipes()
VOCABULARY = vocabulary_of(MATRIX, ["numpy"])
CATALOGUE = catalogue.load([WHEELS])


def builds(*words: str) -> dict[str, int]:
    """Return the core seconds of each source build that the words need."""
    question = parse_question(words, [], MATRIX, VOCABULARY)
    return {each.component: round(each.work.seconds) for each in needed_builds(question, MATRIX, lambda: CATALOGUE)}


@pytest.mark.parametrize(
    ("words", "components"),
    [
        (("torch==2.14.0", "flash-attn==2.8.3"), {"flash-attn"}),
        (("torch==2.8.0", "flash-attn==2.8.3"), set()),
        (("torch==2.14.0", "flash-attn==2.8.3+cu130torch2.13"), set()),  # a wheel is named
        (("flash-attn==2.8.3",), set()),  # of some torch there is a wheel
        (("torch==2.14.0", "flash-attn>=2.8"), set()),
        (("torch==2.14.0", "numpy==2.0.0"), set()),
        (("torch==2.11.0", "transformer-engine-torch==2.11.0"), {"transformer-engine-torch"}),
        (("torch==2.8.0", "transformer-engine-torch==2.9.0"), set()),  # the catalogue may have one for any torch
    ],
)
def test_a_release_without_a_wheel_for_the_torch_is_compiled(words: tuple[str, ...], components: set[str]) -> None:
    assert set(builds(*words)) == components


def test_each_gpu_costs_its_time() -> None:
    asked = ("torch==2.14.0", "flash-attn==2.8.3")
    one = builds(*asked)["flash-attn"]
    assert one > 3600
    assert builds(*asked, "H100")["flash-attn"] == one
    assert builds(*asked, "H100", "B200")["flash-attn"] == 2 * one
    te = ("torch==2.11.0", "transformer-engine-torch==2.11.0")
    assert builds(*te, "H100", "B200") == builds(*te)  # nothing in it is for a GPU
