"""The bounded reader of TOML: tomllib's result within its bounds, and a quick refusal beyond them."""

from __future__ import annotations

import re
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core import toml
from imagegen.core.data import shipped

PACKAGE = Path(toml.__file__).parents[1]
IN_SANDBOX = {"checks/worker/hook.py", "lock/sdist_worker.py"}  # their bytes are keys of caches
MANY = 100_000


def test_no_other_module_reads_toml() -> None:
    pattern = re.compile(r"^ *(?:import|from) tomllib\b", re.MULTILINE)
    importing = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if pattern.search(path.read_text())
    }
    assert importing == {"core/toml.py", *IN_SANDBOX}


REAL = [*shipped("locks").glob("*.toml"), PACKAGE.parent / "pyproject.toml"]


def test_real_files_are_read() -> None:
    for path in REAL[::4]:  # each takes 20 ms
        assert toml.loads(path.read_text()) == tomllib.loads(path.read_text())


def test_all_real_files_are_within_the_bounds() -> None:
    for path in REAL:
        toml.require_bounded(path.read_text())


DOTS = ".".join("a" * 20)
VALID = f'''
"{DOTS}".x."{DOTS}" = 1  # {DOTS} = 1
'{DOTS}' . "y\\"{DOTS}" = {{ a.b.c = "{DOTS}", "{DOTS}" = [1, 2.5] }}  # "{DOTS}
text = """
{DOTS} = 1
[{DOTS}] \\""" {DOTS} = 2 ""{DOTS} """""
literal = \'\'\'
{DOTS} = 1 \' \'\' {DOTS}\\\'\'\'\'
empty = ["", \'\', """""", \'\'\'\'\'\', "\\\\", \'\\\']
day = 1979-05-27T07:32:00.999-07:00
deep = {"[" * 60}{"]" * 60}
flat = [{"[], {a = []}, " * 500}]
{".".join("b" * 16)} = 1
[{".".join("c" * 16)}]
{"d" * 1000} = {"9" * 1000}
'''


def test_valid_text_near_the_bounds_is_read() -> None:
    assert toml.loads(VALID) == tomllib.loads(VALID)
    windows = VALID.replace("\n", "\r\n")
    assert toml.loads(windows) == tomllib.loads(windows)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,4}", fullmatch=True),
    st.text("ab.\\\"'#[]{}= é\n", max_size=4).map(_quoted),
    st.text('ab.\\"#[]{}= é', max_size=4).map(lambda text: f"'{text}'"),
)
DOTTED = st.lists(KEYS, min_size=1, max_size=5).flatmap(
    lambda keys: st.sampled_from([".", " . ", "\t."]).map(lambda dot: dot.join(keys))
)
TEXTS = st.text("ab.=\\\"'#[]{}\n é", max_size=30)


def _multiline(text: str) -> str:
    return '"""\n' + text.replace("\\", "\\\\").replace('"""', '""\\"') + '\\\n"""'


SCALARS = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(["true", "0xdead_beef", "+1e-5", "inf", "1979-05-27", "07:32:00.5", "1979-05-27 07:32:00Z"]),
    TEXTS.map(_quoted),
    TEXTS.map(_multiline),
    TEXTS.map(lambda text: "'''" + text.replace("'''", "") + "x'''"),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda values: "[ # [{'\n" + ",\n".join(values) + "]")
        | st.lists(st.tuples(DOTTED, inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key} = {value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=6,
)
LINES = st.one_of(
    st.tuples(DOTTED, VALUES).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    DOTTED.map(lambda key: f"[{key}]"),
    DOTTED.map(lambda key: f"[[ {key} ]] # \"'"),
    st.just("# '''\" a.b"),
)


def _result(loads: Any, text: str) -> tuple[bool, str]:
    try:
        return True, repr(loads(text))  # repr: nan is not equal to itself
    except ValueError:
        return False, ""


@given(st.lists(LINES, max_size=6).map("\n".join))
def test_documents_have_the_result_of_tomllib(text: str) -> None:
    assert _result(toml.loads, text) == _result(tomllib.loads, text)


@given(st.text("ab1.=\\\"'#[]{},\n\t ", max_size=60))
def test_any_text_has_the_result_of_tomllib(text: str) -> None:
    assert _result(toml.loads, text) == _result(tomllib.loads, text)


BEYOND = {
    "a key": ("[project]\n" + "a." * MANY + "a = 1", 2),
    "a spaced key": ("\n\n" + "a . " * MANY + "a = 1", 3),
    "a quoted key": ('"a".' * MANY + "a = 1", 1),
    "a literal key": ("'a.b'\t." * MANY + "a = 1", 1),
    "a table": ("[" + "a." * MANY + "a]", 1),
    "an array of tables": ('x = """\n"""\n[[' + "a." * MANY + "a]]", 3),
    "a key of an inline table": ("x = {a = 1, " + "a." * MANY + "a = 1}", 1),
    "a key behind a string": ("x = '''\n'''''\n" + "a." * 16 + "a = 1", 3),
    "an integer": ("x = " + "9" * MANY, 1),
    "a hexadecimal integer": ("x = 0x" + "f" * MANY, 1),
    "arrays": ("x = " + "[" * MANY, 1),
    "inline tables": ("\nx = " + "{a = " * MANY, 2),
}


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a TOML file with a key of 100,000 parts, a number of 100,000 digits or 100,000 nested arrays",
    "refused with file and line before tomllib reads it",
)
@pytest.mark.parametrize("name", BEYOND)
def test_text_beyond_the_bounds_is_refused(name: str) -> None:
    text, line = BEYOND[name]
    begin = time.process_time()
    with pytest.raises(toml.TomlError) as caught:
        toml.loads(text)
    assert caught.value.line == line
    assert time.process_time() - begin < 1


def test_long_text_is_refused() -> None:
    with pytest.raises(toml.TomlError):
        toml.loads("a = 1\n" * 10, longest=59)


@pytest.mark.parametrize(
    "part", ['"""\\"', '\\"""', "'''", '"', "'", "a ", "a. ", "a." * 15 + " ", "a" * 999 + ".", "#\n", "\\", "'a'."]
)
def test_the_scan_is_linear(part: str) -> None:
    def seconds(count: int) -> float:
        begin = time.process_time()
        with pytest.raises(toml.TomlError):
            toml.loads("x = " + part * count + "\\")
        return time.process_time() - begin

    count = 20_000 // len(part)
    assert seconds(count * 8) < 40 * max(seconds(count), 0.005)
