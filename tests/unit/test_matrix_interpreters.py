"""The choice of a cell's interpreter: its base's own, a standalone build, or the one that its image names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from imagegen.core.errors import MatrixErrors
from imagegen.spec.foundation import InterpreterFile
from imagegen.spec.model import Cell
from tests.support.golden import Golden
from tests.support.matrix_samples import SMALL, load

BOTH = SMALL.replace("    gpus: [sm_90]", '    gpus: [sm_90]\n    axes: {python: ["3.11", "3.12"]}')


def cells(folder: Path, text: str = BOTH) -> Mapping[str, Cell]:
    return {cell.python: cell for cell in load(folder, text).cells()}


def errors(folder: Path, text: str) -> list[str]:
    with pytest.raises(MatrixErrors) as raised:
        load(folder, text)
    return [each.what for each in raised.value.errors]


def test_a_base_gives_its_own_python_and_every_other_is_standalone(tmp_path: Path) -> None:
    found = cells(tmp_path / "a")
    assert (found["3.11"].interpreter.name, found["3.11"].interpreter.path) == ("sys-3.11", "/usr/bin/python3.11")
    standalone = found["3.12"].interpreter
    assert (standalone.name, standalone.version, standalone.release) == ("standalone-3.12", "3.12.14", "20260814")
    assert standalone.path == "/opt/python/3.12/bin/python3.12"
    path = "20260814/cpython-3.12.14%2B20260814-amd64.tar.gz"
    assert standalone.files["linux/amd64"] == InterpreterFile(path, "a" * 64)


def test_an_image_or_a_variant_names_another(tmp_path: Path) -> None:
    other = BOTH.replace("  standalone-3.12:", "  mine:\n    override: false\n    provider: standalone", 1)
    other = other.replace("override: false\n    provider: standalone\n    provider", "provider")
    named = other.replace("    axes: {", '    variants: [{when: {python: ["3.12"]}, interpreter: mine}]\n    axes: {')
    assert cells(tmp_path / "a", named)["3.12"].interpreter.name == "mine"
    only = other.replace('axes: {python: ["3.11", "3.12"]}', 'axes: {python: ["3.12"]}\n    interpreter: mine')
    assert cells(tmp_path / "b", only)["3.12"].interpreter.name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("base: deb", "base: deb\n    interpreter: other", 'there is no interpreter "other"'),
        ("base: deb", "base: deb\n    interpreter: sys-3.11", 'the interpreter "sys-3.11" is Python 3.11, not 3.12'),
        ("standalone-3.12:", "another-3.12:", "no interpreter is Python 3.12 on sys"),
        ("systems: [sys]", "systems: [sis]", 'there is no system "sis"'),
        ("linux/amd64:\n", "linux/riscv64:\n", 'the interpreter "standalone-3.12" has no archive for linux/amd64'),
        ("version: 3.12.14", "version: 3.13.1", "interpreters.standalone-3.12: 3.13.1 is not a release of Python 3.12"),
        (
            'release: "20260814"',
            'release: "20260101"',
            "interpreters.standalone-3.12: 20260814/cpython-3.12.14%2B20260814-amd64.tar.gz is not a file of release",
        ),
        (
            'release: "20260814"\n',
            'release: "20260814"\n    path: /usr/bin/python\n',
            "interpreters.standalone-3.12: an interpreter of a standalone provider has `version`, `release`",
        ),
        ("path: 20260814/cpython-3", "path: ../20260814/cpython-3", "interpreters.standalone-3.12.files"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_once(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in BOTH
    (found,) = errors(tmp_path / "a", BOTH.replace(old, new, 1))
    assert found.startswith(what)


def test_a_system_has_one_python_of_a_minor_version(tmp_path: Path, golden: Golden) -> None:
    same = '{provider: distribution, python: "3.11", systems: [sys], path: /x, source: s, date: "2026-11-20"}'
    second = f"  sys-again:\n    {same}\n"
    text = BOTH.replace("interpreters:\n", f"interpreters:\n{second}")
    golden.check(errors(tmp_path / "a", text))


def test_the_interpreter_is_an_input_of_its_own(tmp_path: Path) -> None:
    before, moved = cells(tmp_path / "a"), BOTH.replace("a" * 64, "d" * 64)
    after = cells(tmp_path / "b", moved)
    differing = [name for name, value in before["3.12"].inputs.items() if after["3.12"].inputs[name] != value]
    assert differing == ["interpreter"]
    assert before["3.11"].inputs == after["3.11"].inputs
    assert cells(tmp_path / "c", BOTH.replace("b" * 64, "d" * 64))["3.12"].inputs == before["3.12"].inputs
