"""Images with several environments in a matrix: what they take from their cells, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagegen.core.errors import MatrixErrors, UsageError
from imagegen.spec import Matrix
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.matrix_samples import SMALL, load

PARTS = """\
images:
  one:
    description: The first.
    purpose: Tests.
    base: deb
    axes: {python: ["3.11", "3.12"]}
    components: {numpy: {version: "==1.0", because: n}}
    files: {/workspace/one: {source: one.txt, because: f}}
    ldconfig: {/usr/lib/here: l}
  two:
    description: The second.
    purpose: Tests.
    base: deb
    components: {numpy: {version: "==2.0", because: n}}
"""
SEVERAL = """\
images:
  several:
    description: Both.
    purpose: Use both.
    environments:
      beside: {cell: two-cpu-py311, because: Of the second.}
      main: {cell: one-cpu-py311, because: Of the first.}
    default: main
"""


def loaded(folder: Path, several: str = SEVERAL, parts: str = PARTS) -> Matrix:
    return load(folder, SMALL, parts, several)


def errors(folder: Path, several: str = SEVERAL, parts: str = PARTS) -> list[tuple[str, int]]:
    """Return code and line of each error, all of which are in the file of the image with several environments."""
    with pytest.raises(MatrixErrors) as raised:
        loaded(folder, several, parts)
    found = raised.value.errors
    assert {Path(each.where.file).name for each in found} == {"2.yaml"}
    return [(each.code, each.where.line or 0) for each in found]


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def test_it_has_one_cell_with_the_default_environment_first(tmp_path: Path, golden: Golden) -> None:
    matrix = loaded(tmp_path)
    (cell,) = matrix.select("several")
    assert (cell.id, cell.image, cell.description, cell.purpose) == (
        "several-cpu-py311",
        "several",
        "Both.",
        "Use both.",
    )
    golden.check([(each.name, each.cell.id, each.because) for each in cell.environments])
    assert cell.environments[0].cell == matrix.select_one("one")
    assert not cell.inputs


def test_commands_for_one_environment_refuse_it_by_name_and_leave_it_out_of_a_glob(tmp_path: Path) -> None:
    matrix = loaded(tmp_path)
    for word in ("several", "several-cpu-py311", "sev*"):
        with raises("usage-several-environments") as error:
            matrix.select(word, single=True)
        assert error.value.fix
        assert "one-cpu-py311" in error.value.fix
    with pytest.raises(UsageError):
        matrix.select_one("several", single=True)
    assert "several-cpu-py311" not in {cell.id for cell in (*matrix.select("*", single=True), *matrix.cells())}
    assert "several-cpu-py311" in {cell.id for cell in matrix.select("*")}
    assert [cell.id for cell in matrix.on_platforms(matrix.select("several")[0], "all")] == ["several-cpu-py311"]


@pytest.mark.parametrize(
    ("old", "new", "code", "place"),
    [
        ("two-cpu-py311", "two-cpu-py312", "matrix", "beside:"),  # there is no such cell
        ("two-cpu-py311", "one-cpu-py312", "matrix-environments-differ", "beside:"),
        ("default: main", "default: other", "matrix-invalid-value", "several:"),
        ("    default: main\n", "", "matrix-invalid-value", "several:"),
        ("      beside: {cell: two-cpu-py311, because: Of the second.}\n", "", "matrix-invalid-value", "several:"),
        ("    default: main\n", "    default: main\n    base: deb\n", "matrix-invalid-value", "several:"),
        ("    purpose: Use both.\n", "", "matrix-missing-key", "several:"),
        ("beside:", "Beside_1:", "matrix-invalid-value", "Beside_1:"),
        (", because: Of the second.", "", "matrix-missing-key", "beside:"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_with_its_line(
    old: str, new: str, code: str, place: str, tmp_path: Path
) -> None:
    text = SEVERAL.replace(old, new)
    assert (code, line_of(text, place)) in errors(tmp_path, text)


@pytest.mark.parametrize(
    "part",
    [
        "packages: {git: to fetch}",
        "variants: [{when: {cuda: [cpu]}, base: other}]",
    ],
)
def test_environments_with_another_foundation_are_refused(part: str, tmp_path: Path) -> None:
    base = "bases: {other: {description: d, kind: debian, suite: bookworm, system: sys}}\n"
    found = errors(tmp_path, SEVERAL, f"{base}{PARTS}    {part}\n")
    assert found == [("matrix-environments-differ", line_of(SEVERAL, "beside:"))]


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("files: {/workspace/one: {source: other.txt, because: f}}", 1),  # one path, two files
        ("files: {/workspace/one/more: {source: other.txt, because: f}}", 1),
        ("files: {/workspace: {source: other, because: f}}", 1),
        ("files: {/opt/venvs/main/x: {source: other.txt, because: f}}", 1),
        ("ldconfig: {/opt/venv/lib: l}", 1),
        ("files: {/workspace/one: {source: one.txt, because: f}}", 0),  # the same file
        ("files: {/workspace/oneself: {source: other.txt, because: f}}", 0),
        ("ldconfig: {/usr/lib/here: l}", 0),
    ],
)
def test_environments_that_claim_one_path_are_refused(part: str, count: int, tmp_path: Path) -> None:
    parts = f"{PARTS}    {part}\n"
    if not count:
        assert loaded(tmp_path, SEVERAL, parts).select("several")
        return
    assert errors(tmp_path, SEVERAL, parts) == [("matrix-environments-overlap", line_of(SEVERAL, "beside:"))] * count


def test_environments_may_differ_in_another_axis(tmp_path: Path) -> None:
    axis = "axes:\n  set: {description: s, values: [old, new], default: old}\n"
    text = SEVERAL.replace("two-cpu-py311", "two-cpu-py311-new")
    matrix = loaded(tmp_path, text, f"{axis}{PARTS}    axes: {{set: [old, new]}}\n")
    assert [each.cell.axes["set"] for each in matrix.select("several")[0].environments] == ["old", "new"]


def test_environments_for_no_common_gpu_are_refused(tmp_path: Path) -> None:
    gpus = 'gpus: {sm_100: {capability: "10.0", family: blackwell, source: s}}\n'
    parts = PARTS.replace('axes: {python: ["3.11", "3.12"]}', "axes: {cuda: [cu130]}\n    gpus: [sm_90]")
    text = SEVERAL.replace("cpu", "cu130")
    for number, found in (("100", [("matrix-environments-differ", line_of(SEVERAL, "beside:"))]), ("90", [])):
        more = f"{gpus}{parts}    axes: {{cuda: [cu130]}}\n    gpus: [sm_{number}]\n"
        if found:
            assert errors(tmp_path, text, more) == found
        else:
            assert loaded(tmp_path, text, more).select("several")


def test_no_image_extends_one_with_several_environments(tmp_path: Path) -> None:
    text = f"{SEVERAL}  child:\n    extends: several\n"
    assert errors(tmp_path, text) == [("matrix", line_of(text, "extends:"))]


def test_an_environment_is_no_image_with_several(tmp_path: Path) -> None:
    more = SEVERAL.replace("several:", "more:").replace("two-cpu-py311", "several-cpu-py311")
    text = SEVERAL + more.removeprefix("images:\n")
    assert [code for code, _ in errors(tmp_path, text)] == ["matrix"]
