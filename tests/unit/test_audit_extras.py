"""Imports of what only an extra names: found wherever they stand, judged by who promises the module."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit import extras
from imagegen.audit.model import File, Finding, OptionalImport, Package, Severity, Subject
from tests.support.golden import Golden

REQUIRES = (
    "numpy>=2",
    'TransferQueue>=0.1.10; extra == "verl-core"',
    'pyzmq; extra == "verl-core"',
    'numpy; extra == "verl-core"',
    'vllm==0.24.0; extra == "vllm"',
    'pytest; extra == "test"',
    'pywin32; sys_platform == "win32" and extra == "verl-core"',
    'verl[verl-core]; extra == "vllm"',
)
MODULES = extras.optional_modules(REQUIRES)
ENTRY = "verl/trainer/main_ppo.py"


def found(source: str) -> list[tuple[str, int, bool, bool]]:
    return [
        (each.distribution, each.line, each.lazy, each.guarded)
        for each in extras.scan_imports("verl/x.py", source.encode(), MODULES)
    ]


def package(*sites: OptionalImport, entry_points: tuple[str, ...] = ()) -> Package:
    files = {ENTRY: File(1), "verl/__init__.py": File(1)}
    return Package("verl", "0.9.1", files, REQUIRES, entry_points=entry_points, optional_imports=sites)


def check(*packages: Package, omits: dict[str, str] | None = None) -> list[tuple[Severity, str | None]]:
    findings = list(extras.check_extras(Subject("x", packages, python="3.11", omits=omits or {})))
    assert {each.id for each in findings} <= {"extra-missing"}
    return [(each.severity, each.path) for each in findings]


def test_modules_are_those_that_only_extras_name() -> None:
    assert MODULES == {
        "transferqueue": "transferqueue", "zmq": "pyzmq", "vllm": "vllm", "pywin32": "pywin32", "verl": "verl",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import transfer_queue as tq", ("transferqueue", 1, False, False)),
        ("import os, zmq.asyncio", ("pyzmq", 1, False, False)),
        (
            "class A:\n    async def run(\n        self,\n    ):\n        from zmq import Context\n",
            ("pyzmq", 5, True, False),
        ),
        ("def f():\n\timport zmq\n", ("pyzmq", 2, True, False)),
        ("try:\n    import zmq\nexcept ImportError:\n    zmq = None\n", ("pyzmq", 2, False, True)),
        ("def f():\n    if x:\n        # a comment\n\n        import zmq\n", ("pyzmq", 5, True, True)),
        ("class A:\n    import zmq\n", ("pyzmq", 2, False, False)),
        ("x = '''\nimport vllm\n'''\nimport zmq\n", ("pyzmq", 4, False, False)),
        ("import zmq\nimport zmq.asyncio\n", ("pyzmq", 1, False, False)),
        ("from zmq import (\n    Context,\n)\r\n", ("pyzmq", 1, False, False)),
    ],
)
def test_an_import_is_found_where_it_stands(source: str, expected: tuple[str, int, bool, bool]) -> None:
    assert found(source) == [expected]


@pytest.mark.parametrize(
    "source",
    [
        "import zmqtt", "important = 1", "# import zmq", "from . import zmq", "from .zmq import x", "x = 'import zmq'",
        '"""\nimport zmq\n"""', "from os import zmq", "reimport zmq", "def f():\n    '''\n    import zmq\n    '''\n",
    ],
)  # fmt: skip
def test_what_imports_nothing_of_an_extra(source: str) -> None:
    assert found(source) == []


BLOCKS = st.recursive(
    st.sampled_from([["import zmq"], ["x = 1"], ['"""', "import zmq", '"""'], ["import os, vllm"]]),
    lambda inner: st.tuples(
        st.sampled_from(["def f():", "if x:", "class A:", "async def g(a,", "with a:", "while a:"]),
        st.lists(inner, min_size=1, max_size=3),
    ).map(lambda pair: _nested(*pair)),
    max_leaves=6,
)


def _nested(header: str, inner: list[list[str]]) -> list[str]:
    head = [header, "    b):"] if header.endswith(",") else [header]
    return [*head, *(f"    {line}" for block in inner for line in block)]


@given(st.lists(BLOCKS, max_size=4))
def test_the_scan_agrees_with_the_parser(blocks: list[list[str]]) -> None:
    source = "\n".join(line for block in blocks for line in block) + "\n"
    first: dict[str, tuple[int, bool, bool]] = {}
    _walk(ast.parse(source), first, lazy=False, guarded=False)
    assert {name: (line, lazy, guarded) for name, line, lazy, guarded in found(source)} == first


def _walk(node: ast.AST, first: dict[str, tuple[int, bool, bool]], *, lazy: bool, guarded: bool) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if name := {"zmq": "pyzmq", "vllm": "vllm"}.get(alias.name):
                first.setdefault(name, (node.lineno, lazy, guarded))
    lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        _walk(child, first, lazy=lazy, guarded=guarded or isinstance(node, ast.If))


@given(st.text(st.sampled_from("import zmq\n\t '\"\\()#def:"), max_size=300))
def test_any_text_is_scanned(source: str) -> None:
    assert all(1 <= line <= source.count("\n") + 1 for _, line, _, _ in found(source))


LAZY = OptionalImport("transferqueue", ENTRY, 137, lazy=True, guarded=False)


def test_an_entry_point_that_imports_what_is_absent_is_an_error() -> None:
    promised = package(LAZY, entry_points=("verl.trainer.main_ppo",))
    assert check(promised) == [(Severity.ERROR, ENTRY), (Severity.INFO, None)]
    assert check(package(LAZY)) == [(Severity.INFO, None)], "elsewhere it is a note"
    assert check(promised, Package("transferqueue", "0.1.11", {})) == []
    assert check(promised, Package("other", "1", {"transfer_queue/__init__.py": File(1)})) == [], "the module is there"
    assert check(promised, omits={"transferqueue": "Not wanted."}) == [(Severity.INFO, None)]


def test_a_guarded_import_of_an_entry_point_is_a_note() -> None:
    assert check(package(replace(LAZY, guarded=True), entry_points=("verl.trainer.main_ppo",))) == [
        (Severity.INFO, None)
    ]


def test_an_extra_of_another_platform_is_not_missed() -> None:
    assert check(package(OptionalImport("pywin32", ENTRY, 1, lazy=False, guarded=False))) == []


def test_a_note_names_extra_place_and_reason(golden: Golden) -> None:
    sites = (LAZY, replace(LAZY, path="verl/a.py", line=3, guarded=True))
    (note,) = extras.check_extras(Subject("x", (package(*sites),), omits={"transferqueue": "Not wanted."}))
    assert isinstance(note, Finding)
    golden.check(note.details)


@given(st.text("\"'\\a\n", max_size=40).map(str.encode))
def test_strings_in_triple_quotes_are_those_of_the_plain_pattern(source: bytes) -> None:
    plain = re.compile(rb"""("{3}|'{3})(?:\\.|[^\\])*?(\1|(?=\\?\Z))""", re.DOTALL)
    ended = [(match.span(), match[2] == match[1]) for match in plain.finditer(source)]
    assert [(match.span(), match.lastindex is not None) for match in extras.STRING_LITERAL.finditer(source)] == ended


def test_imports_after_a_string_without_an_end_count() -> None:
    source = b'import a\n"""\nimport tensorrt\n'
    assert [found.line for found in extras.scan_imports("p/a.py", source, {"tensorrt": "tensorrt"})] == [3]
