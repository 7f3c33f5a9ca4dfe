"""The chooser of a report: for each card and each value of a field, an image for the platform of the card's hosts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from imagegen.app import site_view
from imagegen.app.site_view import ChooserValues
from imagegen.core.data import shipped
from imagegen.spec.model import Cell
from tests.support.matrix_samples import shipped_matrix

MATRIX = shipped_matrix()
CARDS = {card: gpu for gpu in MATRIX.gpus.values() for card in gpu.products}
IMAGES = [
    (cell, site_view.values_of(cell, {each.component.package for each in cell.requirements}))
    for cell in MATRIX.cells()
    if (shipped("locks") / f"{cell.id}.toml").exists()
]
OFFERED = site_view.offered([values for _, values in IMAGES])


def proposed(card: str, engine: str | None = None, cuda: str | None = None, python: str | None = None) -> Cell | None:
    """Return the cell that the chooser's page shows first for these values of its fields."""

    def fits(values: ChooserValues) -> bool:
        chosen = ((card, values.gpu), (engine, values.engine), (cuda, values.cuda), (python, values.python))
        return all(value is None or value in offered for value, offered in chosen)

    fitting = (cell for cell, values in IMAGES if fits(values))
    defaults = set(MATRIX.defaults.values())
    return min(fitting, key=lambda cell: site_view.preference("locked", cell, defaults), default=None)


def every_choice() -> Iterator[tuple[str, Cell]]:
    fields = [(None, *values) for values in (OFFERED.engine, OFFERED.cuda, OFFERED.python)]
    for card, *others in product(CARDS, *fields):
        if cell := proposed(card, *others):
            yield card, cell


def test_for_each_card_and_field_the_proposed_image_is_for_the_platform_of_the_cards_hosts() -> None:
    choices = list(every_choice())
    assert {"B200", "B300", "B100", "GB200", "GB300", "H100", "GH200", "A100", "L40S", "GB10"} <= {
        c for c, _ in choices
    }
    assert [(card, cell.id) for card, cell in choices if cell.platform != CARDS[card].platform_of(card)] == []


def test_cards_with_arm64_hosts_are_those_that_the_matrix_names() -> None:
    arm64 = {card for card, gpu in CARDS.items() if gpu.platform_of(card) == "linux/arm64"}
    assert {"GB200", "GB300", "GH200", "GB10", "Thor"} <= arm64
    assert arm64.isdisjoint({"B200", "B300", "B100", "H100", "H200", "A100", "L40S", "RTX 5090", "RTX PRO 6000"})


@pytest.mark.parametrize(
    ("choice", "cell"),
    [
        (("H100",), "hopper-vllm-cu130-py311"),
        (("H200", "vLLM"), "hopper-vllm-cu130-py311"),
        (("H100", "vLLM", "13.0", "3.12"), "hopper-vllm-cu130-py312"),
        (("H100", "SGLang"), "hopper-sglang-cu130-py311"),
        (("GH200",), "hopper-vllm-cu130-py311-linux-arm64"),
        (("B200",), "blackwell-vllm-cu130-py311"),
        (("B300", "SGLang"), "blackwell-sglang-cu130-py311"),
        (("GB300",), "blackwell-vllm-cu130-py311-linux-arm64"),
        (("RTX 5090",), "blackwell-vllm-cu130-py311"),
        (("L40S",), "trl-vllm-cu130-py311"),
        (("none: CPU",), "cpu-grpo-cpu-py311"),
    ],
)
def test_ties_go_to_flagships_and_default_cells(choice: tuple[str, ...], cell: str) -> None:
    found = proposed(*choice)
    assert found and found.id == cell
