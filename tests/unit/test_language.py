"""Counts of wording faults in names, docstrings and pages, which may only fall.

A count above its budget fails; lower a budget when a change brings the count down.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Persons in place of components, and metaphors for things that the field has a word for.
RETIRED = re.compile(
    r"\b(nobody|somebody|whoever|told|believe[sd]|vouch\w*|testimony|papers|strangers?|hear[sd]?|greet(?:s|ing)|nights?"
    r"|house|rooms?|road|shel(?:f|ves)|desk|yard|hands?|winners?|misrecorded)\b",
    re.IGNORECASE,
)
# A relative clause without the noun that it belongs to: "What a layer holds."
HEADLESS = re.compile(r"(What|Those|Of|Who|Whose|Whether|Where|As|That|Which|How|When)\b")
# The one left is in the startup checks, whose bytes are part of every recorded image.
BUDGET = {"docstrings": 0, "pages": 0, "headless docstrings": 1, "class names used twice": 0}


@functools.cache
def modules() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in sorted((ROOT / "imagegen").rglob("*.py"))]


def docstrings() -> Iterator[str]:
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    nodes = (node for module in modules() for node in ast.walk(module) if isinstance(node, documented))
    return (text for node in nodes if (text := ast.get_docstring(node)))


def test_counts_do_not_rise() -> None:
    # Programs in containers import nothing of imagegen, so their names cannot be confused with its own.
    own = [path for path in sorted((ROOT / "imagegen").rglob("*.py")) if "incontainer" not in path.parts]
    names = Counter(
        node.name
        for module in map(ast.parse, (path.read_text() for path in own))
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    counts = {
        "docstrings": sum(len(RETIRED.findall(text)) for text in docstrings()),
        # Without code spans: keys and names of functions are interfaces.
        "pages": sum(len(RETIRED.findall(re.sub("`.*?`", "", page.read_text()))) for page in pages),
        "headless docstrings": sum(bool(HEADLESS.match(text)) for text in docstrings()),
        "class names used twice": sum(count > 1 for count in names.values()),
    }
    assert {name: count for name, count in counts.items() if count > BUDGET[name]} == {}


def test_the_patterns_find_what_they_are_for() -> None:
    assert RETIRED.findall("Nobody is told of the road") == ["Nobody", "told", "road"]
    assert HEADLESS.match("What a layer holds.")
    assert not HEADLESS.match("Return what a layer holds.")
