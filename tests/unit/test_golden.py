"""Golden files notice a change, and have no section without a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from imagegen.core.errors import UsageError
from tests.support import golden
from tests.support.golden import Golden, stable

TESTS = Path(__file__).parents[1]


@pytest.fixture
def checked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Golden:
    """The golden files of this test, after it recorded "first" and an error."""
    monkeypatch.setattr(golden, "OUTPUT", tmp_path)
    recorded = Golden(request.node, is_update=True, names={})
    recorded.check("first")
    recorded.check(UsageError("no such cell", where=f"{tmp_path}/a.yaml", fix="name another"), directory=tmp_path)
    return Golden(request.node, is_update=False, names={})


def test_equal_values_pass_and_an_error_has_its_code(checked: Golden, tmp_path: Path) -> None:
    checked.check("first\n")
    error = "usage\n{directory}/a.yaml: no such cell\n  fix: name another\n"
    assert list(golden.sections(checked.file.read_text()).values()) == ["first\n", error]
    checked.check(UsageError("no such cell", where=f"{tmp_path}/a.yaml", fix="name another"), directory=tmp_path)


@pytest.mark.parametrize("value", ["First", "first second", "", ["first", "first"], UsageError("first")])
def test_a_check_fails_when_the_value_differs(checked: Golden, value: object) -> None:
    with pytest.raises(pytest.fail.Exception, match="--update-golden"):
        checked.check(value)


def test_a_check_fails_when_no_value_is_recorded(checked: Golden) -> None:
    checked.checks = 2
    with pytest.raises(pytest.fail.Exception):
        checked.check("third")


def test_an_update_removes_the_sections_that_are_not_checked_any_more(
    request: pytest.FixtureRequest, checked: Golden
) -> None:
    Golden(request.node, is_update=True, names={}).check("other")
    assert list(golden.sections(checked.file.read_text()).values()) == ["other\n"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"a sha256:{'a' * 64} b {'c' * 40} a {'a' * 64}", "a sha256:{digest 1} b {digest 2} a {digest 1}"),
        ("sha256:0123abcd", "sha256:{digest 1}"),
        ("127.0.0.1:34567/x in 1.25 s", "127.0.0.1:{port}/x in {seconds} s"),
        ("after 3 s, version 1.2", "after 3 s, version 1.2"),
        ("NAME         size", "NAME         size"),
        ("/some/path   size", "{path}  size"),
    ],
)
def test_only_what_varies_has_a_placeholder(text: str, expected: str) -> None:
    assert stable(text, {"path": "/some/path"}) == expected


def test_every_section_belongs_to_a_test() -> None:
    for path in golden.OUTPUT.rglob("*.txt"):
        module = (TESTS / path.relative_to(golden.OUTPUT)).with_suffix(".py")
        functions = {
            node.name
            for node in ast.parse(module.read_text()).body
            if isinstance(node, ast.FunctionDef) and "golden" in {argument.arg for argument in node.args.args}
        }
        tests = {name.split("[")[0].split(" (")[0] for name in golden.sections(path.read_text())}
        assert tests <= functions, path
