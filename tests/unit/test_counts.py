"""The size and shape of the code base. Each count has a budget, which only falls; `make counts` prints the counts.

A change that needs more lines says in its commit what was removed for them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import counts

BUDGETS = {
    "lines": 82_600,
    "lines outside the libraries": 53_880,
    "modules of several sections": 4,
    "functions above 60 lines": 0,
    "Callable parameters": 43,
    "late imports outside cli": 54,
    "internal imports, p90": 13,
    "prose asserts": 193,
    "private names in tests": 0,
}


def test_no_count_is_above_its_budget() -> None:
    measured = counts.counts() | counts.test_counts()
    assert {name: measured[name] for name, budget in BUDGETS.items() if measured[name] > budget} == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("for each in found: pass", ["each"]),
        ("def read(self, path, *, size=0): (held := path)", ["path", "size", "held"]),
        ("try: pass\nexcept OSError as error: pass", ["error"]),
        ("with open(path) as (file, _): file.name = 1", ["file", "_"]),
    ],
)
def test_bindings_are_variables_parameters_and_exceptions(text: str, names: list[str]) -> None:
    assert sorted(counts.bindings(ast.walk(ast.parse(text)))) == sorted(names)


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("import os\n\n\n# The plan of layers.\n\n\ndef plan(): pass\n", True),
        ("import os\n\n# How long to wait.\n_PATIENCE = 3\n", False),
        ("def plan():\n    pass\n\n    # Sizes.\n\n    return 1\n", False),
    ],
)
def test_a_heading_begins_a_section(text: str, sections: bool) -> None:
    assert counts.has_sections(counts.Module(Path("module.py"), text)) == sections
