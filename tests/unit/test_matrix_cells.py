"""Cell ids are stable names, and users choose by them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import Location, MatrixErrors, UsageError
from imagegen.spec.cells import cell_id
from imagegen.spec.model import Cell
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.matrix_samples import SMALL, complaint, load

WIDE = SMALL.replace("purpose: p", "purpose: p\n    axes: {cuda: [cu130, cpu], platform: [linux/arm64, linux/amd64]}")
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)


def test_an_image_has_a_cell_per_combination_and_a_default(tmp_path: Path) -> None:
    wide = load(tmp_path, WIDE)
    assert [cell.id for cell in wide.cells()] == [
        "small-cpu-py311",
        "small-cpu-py311-linux-arm64",
        "small-cu130-py311",
        "small-cu130-py311-linux-arm64",
    ]
    assert [cell.id for cell in wide.select("small")] == ["small-cpu-py311"]
    assert [cell.id for cell in wide.select("small-cu*")] == ["small-cu130-py311", "small-cu130-py311-linux-arm64"]
    assert wide.select("small-cu130-py311")[0].axes == {"cuda": "cu130", "python": "3.11", "platform": "linux/amd64"}
    torch = {cell.cuda: cell.requirements[1].index for cell in wide.cells()}
    assert torch == {"cpu": "wheels-cpu", "cu130": "pypi"}
    assert wide.select("*") == wide.cells()


def test_cells_share_equal_requirements_variables_and_inputs(tmp_path: Path) -> None:
    """A result that is kept has each object once."""
    cells = load(tmp_path, WIDE.replace("purpose: p", "purpose: p\n    env: {A: {value: b, because: c}}", 1)).cells()
    for parts in ([each for cell in cells for each in found(cell)] for found in (_requirements, _variables, _digests)):
        assert len({id(each) for each in parts}) == len({repr(each) for each in parts}) < len(parts)


def _requirements(cell: Cell) -> Iterable[object]:
    return cell.requirements


def _variables(cell: Cell) -> Iterable[object]:
    return cell.env


def _digests(cell: Cell) -> Iterable[object]:
    return cell.inputs.values()


def test_an_image_without_an_axis_default_begins_with_its_first_value(tmp_path: Path) -> None:
    only = load(tmp_path, SMALL.replace("purpose: p", "purpose: p\n    axes: {cuda: [cu130]}"))
    assert [cell.id for cell in only.select("small")] == ["small-cu130-py311"]


def test_a_wrong_name_gets_the_nearest_right_one(tmp_path: Path, golden: Golden) -> None:
    with raises("usage-unknown-cell") as raised:
        load(tmp_path, SMALL).select("smal-cpu-py311")
    golden.check(raised.value)
    with pytest.raises(UsageError) as raised:
        load(tmp_path, SMALL).select("zzz*")
    golden.check(raised.value)


def test_a_new_axis_at_its_default_renames_no_cell(tmp_path: Path) -> None:
    added = "axes:\n  attention: {description: a, values: [sdpa, flash], default: sdpa}\n"
    before, after = load(tmp_path / "a", WIDE), load(tmp_path / "b", WIDE, added)
    assert [cell.id for cell in after.cells()] == [cell.id for cell in before.cells()]
    offered = WIDE.replace("axes: {cuda", "axes: {attention: [sdpa, flash], cuda")
    assert {cell.id for cell in load(tmp_path / "c", offered, added).cells()} >= {cell.id for cell in before.cells()}


def test_cells_that_differ_in_the_platform_alone(tmp_path: Path) -> None:
    wide = load(tmp_path, WIDE)
    amd64, arm64, *_ = wide.cells()
    for cell in (amd64, arm64):
        assert wide.on_platforms(cell, "all") == (amd64, arm64)
        assert wide.on_platforms(cell, "linux/arm64,linux/amd64") == (amd64, arm64), "the default platform is first"
        assert wide.on_platforms(cell, "linux/arm64") == (arm64,)
    (only,) = load(tmp_path / "only", SMALL).cells()
    assert load(tmp_path / "only", SMALL).on_platforms(only, "all") == (only,)
    for unknown in ("linux/arm64", "linux/riscv64", ""):
        with raises("usage-unknown-platform"):
            load(tmp_path / "only", SMALL).on_platforms(only, unknown)


def test_excluded_choices_of_axes_are_no_cells(tmp_path: Path) -> None:
    excluded = "    exclude: [{cuda: [cpu], platform: [linux/arm64]}]\n    gpus: [sm_90]\n"
    some = load(tmp_path, WIDE.replace("    gpus: [sm_90]\n", excluded))
    assert [cell.id for cell in some.cells()] == [
        "small-cpu-py311",
        "small-cu130-py311",
        "small-cu130-py311-linux-arm64",
    ]


def test_the_default_cell_is_one_that_is_not_excluded(tmp_path: Path) -> None:
    some = load(tmp_path, WIDE.replace("    gpus:", "    exclude: [{cuda: [cpu]}]\n    gpus:"))
    assert some.defaults == {"small": "small-cu130-py311"}


@pytest.mark.parametrize(
    ("exclude", "inside"),
    [
        ("[{cuda: [cpu]}, {cuda: [cu130]}]", "exclude"),  # no cell is left
        ('[{python: ["3.12"]}]', '["3.12"]'),  # the image has none with it
        ("[{cuda: [cu999]}]", "cu999"),
        ("[{cuba: [cpu]}]", "cuba"),
        ("[{}]", "{}"),
        ("[{cuda: []}]", "[]"),
    ],
)
def test_a_senseless_exclusion_is_refused_at_its_line(exclude: str, inside: str, tmp_path: Path) -> None:
    text = WIDE.replace("    gpus:", f"    exclude: {exclude}\n    gpus:")
    with pytest.raises(MatrixErrors) as raised:
        load(tmp_path, text)
    (error,) = raised.value.errors
    assert isinstance(error.where, Location)
    assert error.where.line
    assert inside in text.splitlines()[error.where.line - 1]


def test_two_axes_that_would_give_one_id_are_refused(tmp_path: Path, golden: Golden) -> None:
    axes = (
        "axes:\n  x: {description: x, values: [n, y], default: n}\n  z: {description: z, values: [n, y], default: n}\n"
    )
    complaints = complaint(tmp_path, SMALL.replace("purpose: p", "purpose: p\n    axes: {x: [n, y], z: [n, y]}"), axes)
    golden.check(complaints)


def test_an_image_called_like_a_cell_is_refused(tmp_path: Path, golden: Golden) -> None:
    twin = "images:\n  small-cpu-py311: {description: d, purpose: p, base: deb, components: {numpy: {because: b}}}\n"
    golden.check(complaint(tmp_path, SMALL, twin))


@given(st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=3, unique=True), max_size=4), NAMES, NAMES)
def test_ids_differ_where_axes_differ_and_a_silent_axis_adds_nothing(
    extra: dict[str, list[str]], new_axis: str, new_value: str
) -> None:
    extra = {axis: [f"{axis}-{value}" for value in values] for axis, values in extra.items()}
    values = {"cuda": ["cpu", "cu130"], "python": ["3.11", "3.12"], "platform": ["linux/amd64", "linux/arm64"], **extra}
    defaults = {axis: options[0] for axis, options in values.items()}
    cells = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    ids = [cell_id("image", cell, defaults) for cell in cells]
    assert len(set(ids)) == len(ids)
    if new_axis not in values:
        grown = [cell_id("image", cell | {new_axis: new_value}, defaults | {new_axis: new_value}) for cell in cells]
        assert grown == ids


def test_an_id_that_is_too_long_for_a_tag_is_refused_before_anything_is_built(tmp_path: Path, golden: Golden) -> None:
    def axes(length: int) -> str:
        values = {f"axis{number}": "v" * 40 for number in range(2)} | {"axis9": "v" * length}
        lines = [f'  {axis}: {{description: d, values: [x, "{value}"], default: x}}' for axis, value in values.items()]
        offered = ", ".join(f"{axis}: [{value}]" for axis, value in values.items())
        image = "{description: d, purpose: p, base: deb, axes: {" + offered + "}, components: {numpy: {because: b}}}"
        return "axes:\n" + "\n".join(lines) + f"\nimages:\n  long: {image}\n"

    assert complaint(tmp_path, SMALL, axes(23)) == ""  # cpu-py311-, 40, -, 40, -
    golden.check(complaint(tmp_path, SMALL, axes(24)))
