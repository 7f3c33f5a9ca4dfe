"""Counts of wording faults in names, docstrings and pages, which may only fall.

A count above its budget fails; lower a budget when a change brings the count down.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools import counts

ROOT = Path(__file__).parents[2]
# Persons in place of components, and metaphors for things that the field has a word for.
RETIRED = re.compile(
    r"\b(nobody|somebody|whoever|told|believe[sd]|vouch\w*|testimony|papers|strangers?|hear[sd]?|greet(?:s|ing)|nights?"
    r"|house|rooms?|road|shel(?:f|ves)|desk|yard|(?<!by )hands?|winners?|misrecorded)\b",
    re.IGNORECASE,
)
# A relative clause without the noun that it belongs to: "What a layer holds."
HEADLESS = re.compile(r"(What|Those|Of|Who|Whose|Whether|Where|As|That|Which|How|When)\b")
# The one left is in the startup checks, whose bytes are part of every recorded image.
BUDGET = {"headless docstrings": 1}  # all others: 0
FILLERS = 8  # for 1,000 bindings
# Occurrences of the patterns of tools/sentences.py in 1,000 words.
SENTENCES = {
    "pages": {
        "alone": 0.01,
        "beside": 0.01,
        "that of": 0.09,
        "splice": 0.51,
        "free what": 0.32,
        "in place of": 0.01,
        "is no": 0.01,
        "where": 0.01,
        "Of": 0.01,
        "as it stands": 0.01,
    },
    "code": {
        "alone": 0.06,
        "beside": 0.01,
        "that of": 0.05,
        "splice": 0.44,
        "free what": 0.27,
        "in place of": 0.07,
        "is no": 0.05,
        "where": 0.07,
        "Of": 0.03,
        "as it stands": 0.07,
    },
}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


MODULES = sorted((ROOT / "imagegen").rglob("*.py"))


def docstrings() -> Iterator[str]:
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    nodes = (node for path in MODULES for node in nodes_of(path) if isinstance(node, documented))
    return (text for node in nodes if (text := ast.get_docstring(node)))


def defined(node: ast.AST) -> Iterator[str]:
    """Names that the node defines."""
    match node:
        case ast.ClassDef(name=name):
            yield name
        case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args):
            yield name
            yield from (each.arg for each in (*args.args, *args.kwonlyargs))
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


def words_of(identifier: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", identifier).replace("_", " ")


def test_counts_do_not_rise() -> None:
    # Programs in containers import nothing of imagegen, so their names cannot be confused with its own.
    own = [path for path in MODULES if "checks" not in path.parts]
    nodes = [node for path in own for node in nodes_of(path)]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    faults = {
        "docstrings": sum(len(RETIRED.findall(text)) for text in docstrings()),
        # Without code spans: keys and names of functions are interfaces.
        "identifiers": sum(bool(RETIRED.search(words_of(name))) for node in nodes for name in defined(node)),
        "messages": sum(
            bool(RETIRED.search(node.value))
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        ),
        "pages": sum(len(RETIRED.findall(re.sub("`.*?`", "", page.read_text()))) for page in pages),
        "headless docstrings": sum(bool(HEADLESS.match(text)) for text in docstrings()),
        "class names used twice": sum(count > 1 for count in names.values()),
    }
    assert {name: count for name, count in faults.items() if count > BUDGET.get(name, 0)} == {}


def test_variables_are_named_after_what_they_hold() -> None:
    assert counts.counts()["filler names per 1,000 bindings"] <= FILLERS


@pytest.mark.parametrize("texts", SENTENCES)
def test_patterns_of_sentences_do_not_spread(texts: str) -> None:
    rates = counts.sentence_rates()[texts]
    assert {pattern: rate for pattern, rate in rates.items() if rate > SENTENCES[texts][pattern]} == {}


def test_the_patterns_find_what_they_are_for() -> None:
    assert RETIRED.findall("Nobody is told of the road") == ["Nobody", "told", "road"]
    assert HEADLESS.match("What a layer holds.")
    assert not HEADLESS.match("Return what a layer holds.")


def test_names_of_modules_in_texts_exist() -> None:
    """Paths (`imagegen/core/data.py`) and dotted names (`imagegen.core.data.read`) in pages and docstrings."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    texts = [*docstrings(), *(page.read_text() for page in pages)]
    paths = {found for text in texts for found in re.findall(r"(?<![\w./-])imagegen/[\w/]+\.py", text)}
    assert {path for path in paths if not (ROOT / path).exists() and not path.endswith("/NAME.py")} == set()
    dotted = {found for text in texts for found in re.findall(r"(?<![\w./-])imagegen(?:\.\w+)+", text)}
    assert {name for name in dotted if not resolves(name)} == set()


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or a name in one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
