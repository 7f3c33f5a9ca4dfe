"""Images that extend others: what a child takes over, changes and removes, and the errors of a chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagegen.core.errors import MatrixErrors
from imagegen.spec import Cell, Matrix
from tests.support.golden import Golden
from tests.support.matrix_samples import SMALL, load

PARENT = """\
axes:
  set: {description: s, values: [verified, newest], default: verified}
stacks:
  common:
    description: d
    components: {tool: {version: ">=1", because: of the stack}}
    env: {A: {value: stack, because: b}}
  late:
    description: d
    components: {torch: {version: "==2.9.0", because: of the late stack}}
components:
  tool: {description: d}
images:
  parent:
    description: The parent.
    purpose: Tests of images.
    base: deb
    gpus: [sm_90]
    stacks: [common]
    axes: {python: ["3.11", "3.12"], set: [verified, newest]}
    exclude:
      - {python: ["3.12"], set: [newest]}
    components:
      torch: {version: "==2.13.0", because: of the parent}
    packages: {git: to fetch}
    overrides: {numpy: {version: ">=2", because: b}}
    variants:
      - when: {set: [newest]}
        components: {torch: {version: "==2.14.0", because: of the variant}}
"""
CHILD = """\
images:
  child:
    extends: parent
"""


def loaded(folder: Path, text: str) -> Matrix:
    return load(folder, SMALL, PARENT, text)


def errors(folder: Path, text: str) -> list[tuple[str, str, int | None]]:
    with pytest.raises(MatrixErrors) as raised:
        loaded(folder, text)
    return [(each.code, Path(each.where.file).name, each.where.line) for each in raised.value.errors]


def specifiers(cell: Cell) -> dict[str, str]:
    return {each.component.name: each.specifier for each in cell.requirements}


def test_a_child_without_changes_is_the_parent_by_another_name(tmp_path: Path) -> None:
    matrix = loaded(tmp_path, CHILD)
    parents, children = matrix.select("parent-*"), matrix.select("child-*")
    assert [each.id.replace("child", "parent") for each in children] == [each.id for each in parents]
    for parent, child in zip(parents, children, strict=True):
        same = ("base", "interpreter", "requirements", "env", "packages", "overrides", "gpus", "purpose", "axes")
        assert [getattr(child, name) for name in same] == [getattr(parent, name) for name in same]
        assert {name for name in parent.inputs if parent.inputs[name] != child.inputs[name]} == {"image"}
        assert (parent.extends, child.extends, child.description) == (None, "parent", "parent.")


def test_what_a_child_says_holds_in_all_of_its_cells(tmp_path: Path, golden: Golden) -> None:
    own = CHILD + (
        '    components: {torch: {version: "==2.12.0", because: mine}, numpy: {because: mine}}\n'
        "    env: {A: {value: child, because: mine}}\n"
        "    packages: {curl: mine}\n"
        "    without: [tool, git]\n"
        '    axes: {python: ["3.12"]}\n'
        "    variants:\n"
        '      - {when: {python: ["3.12"]}, env: {B: {value: late, because: mine}}}\n'
    )
    (cell,) = loaded(tmp_path, own).select("child-*")  # the parent's exclusion holds too
    assert cell.id == "child-cpu-py312"
    assert specifiers(cell) == {"torch": "==2.12.0", "numpy": ""}
    assert {each.name: each.value for each in cell.env} == {"A": "child", "B": "late"}
    assert dict(cell.packages) == {"curl": "mine"}
    golden.check(cell.description)


def test_a_childs_pin_comes_after_the_parents_variants(tmp_path: Path) -> None:
    pinned = CHILD + '    components: {torch: {version: "==2.12.0", because: mine}}\n'
    assert specifiers(loaded(tmp_path, pinned).select("child-cpu-py311-newest")[0])["torch"] == "==2.12.0"


def test_a_removed_component_of_a_variant_is_removed(tmp_path: Path) -> None:
    cells = loaded(tmp_path, CHILD + "    without: [torch, numpy]\n").select("child-*")
    assert [specifiers(each) for each in cells] == [{"tool": ">=1"}] * 3
    assert {each.overrides for each in cells} == {()}


def test_stacks_of_a_child_come_after_its_parent(tmp_path: Path) -> None:
    (cell,) = loaded(tmp_path, CHILD + "    stacks: [late]\n").select("child")
    assert specifiers(cell) == {"torch": "==2.9.0", "tool": ">=1"}


def test_chains_go_through_all_generations(tmp_path: Path, golden: Golden) -> None:
    grandchild = CHILD + (
        "    purpose: Of the child.\n    components: {numpy: {because: mine}}\n"
        "  grandchild: {extends: child, without: [numpy, tool]}\n"
    )
    (cell,) = loaded(tmp_path, grandchild).select("grandchild")
    assert specifiers(cell) == {"torch": "==2.13.0"}
    golden.check(cell.purpose)
    assert cell.extends == "child"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("images: {a: {extends: parnet}}\n", [("matrix", "2.yaml", 1)]),
        ("images:\n  a: {extends: a}\n", [("matrix", "2.yaml", 2)]),
        (
            "images:\n  a: {extends: b}\n  b: {extends: c}\n  c: {extends: b}\n",
            [("matrix", "2.yaml", 3), ("matrix", "2.yaml", 4)],
        ),
        ("images:\n  a:\n    extends: parent\n    without: [tool, toool]\n", [("matrix", "2.yaml", 4)]),
        ("images:\n  a:\n    extends: parent\n    stacks: [common]\n", [("matrix", "2.yaml", 4)]),
        ("images:\n  a:\n    extends: parent\n    exclude: [{cuda: [cu130]}]\n", [("matrix", "2.yaml", 4)]),
        ("images:\n  a: {without: [tool], base: deb, description: d, purpose: p}\n", [("matrix", "2.yaml", 2)]),
        ("images:\n  a: {components: {}}\n", [("matrix-missing-key", "2.yaml", 2)] * 3),
        (
            "images:\n  a:\n    description: x\n    purpose: x\n    base: ~\n",
            [("matrix-invalid-value", "2.yaml", 5)],
        ),
        ("images:\n  a: {extends: parent, without: ['x;y']}\n", [("matrix-invalid-value", "2.yaml", 2)]),
    ],
)
def test_a_fault_of_a_chain_has_its_place(tmp_path: Path, text: str, expected: list[tuple[str, str, int]]) -> None:
    found = errors(tmp_path, text)
    assert [(code if expected[0][0] != "matrix" else "matrix", *place) for code, *place in found] == expected


def test_a_removal_that_is_misspelt_gets_a_suggestion(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(MatrixErrors) as raised:
        loaded(tmp_path, CHILD + "    without: [toool]\n")
    golden.check(raised.value.errors[0].fix)
