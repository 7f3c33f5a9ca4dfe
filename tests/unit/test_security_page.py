"""docs/explanation/security.md lists every call that starts a program, and every setting of git that is tried."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hostile_repository import TRAPS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/security.md").read_text()
STARTS = {
    "imagegen.core.programs": r"run|remove|Program(\[\w+\])?",
    "asyncio": r"create_subprocess_\w+",
    "multiprocessing": r"Process|Pool|get_context",
    "concurrent.futures": "ProcessPoolExecutor",
    "os": r"system|popen|fork|forkpty|exec[lv]\w*|spawn[lv]\w*|posix_spawnp?",
    "pty": "fork|spawn",
    "subprocess": r"run|Popen|call|check_call|check_output|getoutput|getstatusoutput",
}


def starts(text: str) -> Iterator[str]:
    """Yield the qualified name of the function around each call that starts a program ("" for the module)."""
    yield from _starts(ast.parse(text), "", {})


def _starts(node: ast.AST, inside: str, names: dict[str, str]) -> Iterator[str]:
    """`names` are the imported modules and functions, by the names that they have here."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            names |= {each.asname or each.name: each.name for each in child.names}
        elif isinstance(child, ast.ImportFrom):
            names |= {each.asname or each.name: f"{child.module}.{each.name}" for each in child.names}
        elif isinstance(child, ast.Call):
            name, dot, rest = ast.unparse(child.func).partition(".")
            module, _, function = (names.get(name, name) + dot + rest).rpartition(".")
            if module in STARTS and re.fullmatch(STARTS[module], function):
                yield inside
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name
        yield from _starts(child, f"{inside}.{named}".lstrip(".") if named else inside, names)


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\ndef f():\n    subprocess.run(['x'])",
        "import subprocess as s\ndef f():\n    with s.Popen(['x']): pass",
        "from imagegen.core import programs\ndef f():\n    programs.Program[bytes](['x'])",
        "from subprocess import check_output as c\ndef f():\n    c(['x'])",
        "import os\ndef f():\n    os.execvp('x', ['x'])",
        "import os\ndef f():\n    if os.fork() == 0: pass",
        "import asyncio\nasync def f():\n    await asyncio.create_subprocess_exec('x')",
        "from concurrent.futures import ProcessPoolExecutor\ndef f():\n    ProcessPoolExecutor()",
    ],
)
def test_a_start_of_a_program_is_found(text: str) -> None:
    assert list(starts(text)) == ["f"]


def test_every_start_of_a_program_is_listed() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}"
        for path in sorted((ROOT / "imagegen").rglob("*.py"))
        for name in starts(path.read_text())
    }
    assert found == set(re.findall(r"`(imagegen/[\w/]+\.py:[\w.]*)`", PAGE))


def test_every_setting_of_git_that_is_tried_is_listed() -> None:
    assert set(re.findall(r"`([\w*.]+)`", PAGE.split("## Settings")[1].split("## ")[0])) >= set(TRAPS)
