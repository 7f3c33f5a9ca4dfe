"""Error codes: each belongs to its class, and docs/reference/errors.md lists them all."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from imagegen.core.errors import ErrorGroup, ImagegenError, LockError, UsageError
from tests.support.golden import Golden

PACKAGE = Path(__file__).parents[2] / "imagegen"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "checks" not in path.parts)
HEAD = """# Error codes

An error has a code, shown as `error[lock-stale]: ...` and, with `--json`, as `error.code` in the document on stdout:

    {"error": {"code": "lock-stale", "exit_code": 67, "what": "...", "where": "...", "why": "...", "fix": "..."}}

Codes stay when messages are reworded; a script tests the code or the exit code of the class. Several faults in one
file are one error with the code of the class and a list `errors`. "…" stands for what a message fills in.
`make tables` writes this page from the sources.
"""


def classes() -> dict[str, type[ImagegenError]]:
    """Return the error classes of imagegen by name."""
    for path in SOURCES:
        if re.search(r"^class \w+\(.*Err", path.read_text(), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))

    def subclasses(of: type[ImagegenError]) -> Iterator[type[ImagegenError]]:
        for each in of.__subclasses__():
            yield each
            yield from subclasses(each)

    return {each.__name__: each for each in subclasses(ImagegenError) if each.__module__.startswith("imagegen.")}


def message(node: ast.expr) -> str | None:
    """Return the text of a message with "…" for each value; None for one that is computed."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else None


def called(function: ast.expr) -> str:
    """Return the last part of the name of a function that is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@cache
def raised() -> list[tuple[str, type[ImagegenError], str, str | None]]:
    """Return where each error is made, its class, its code and its message."""
    known, found = classes(), []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (kind := known.get(called(node.func))):
                codes = [str(ast.literal_eval(word.value)) for word in node.keywords if word.arg == "code"]
                where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                text = message(node.args[0]) if node.args else None
                found.append((where, kind, codes[0] if codes else kind.code, text))
    return found


def test_a_code_begins_with_that_of_its_category() -> None:
    # Not a property of every code: an error may be of another class because of its exit code.
    categories = {kind.code for kind in classes().values()} | {"source", "not", "dependency"}
    wrong = [(where, code) for where, _, code, _ in raised() if not re.fullmatch(r"[a-z]+(-[a-z]+)*", code)]
    wrong += [(where, code) for where, _, code, _ in raised() if code.partition("-")[0] not in categories]
    assert not wrong


def test_the_page_lists_every_code(golden: Callable[[str, str], None]) -> None:
    found: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    titles: dict[int, str] = {}
    for kind in classes().values():
        if kind.__bases__[0] is ImagegenError and kind is not ErrorGroup:
            titles[kind.exit_code] = f"`{kind.code}`: {(kind.__doc__ or '').splitlines()[0]}"
            found[kind.exit_code].setdefault(kind.code, set())
    for _, kind, code, text in raised():
        if kind is not ErrorGroup:
            found[kind.exit_code][code] |= {text.replace("|", "\\|")} if text else set()
    sections = []
    for exit_code in sorted(found):
        rows = [f"| `{code}` | {'; '.join(sorted(texts))} |" for code, texts in sorted(found[exit_code].items())]
        head = f"## Exit code {exit_code}\n\n{titles[exit_code]}\n\n| code | messages |\n|---|---|\n"
        sections.append(head + "\n".join(rows) + "\n")
    golden("../../docs/reference/errors.md", "\n".join([HEAD, *sections]))


def test_an_error_as_json(golden: Golden) -> None:
    error = LockError("the lock is stale", code="lock-stale", where="locks/a.toml:3", fix="lock again")
    golden.check(error.as_dict())
    group = ErrorGroup([error, UsageError("no")])
    assert [each["code"] for each in group.as_dict()["errors"]] == ["lock-stale", "usage"]
    assert group.as_dict()["omitted"] == 0


@pytest.mark.parametrize("kind", classes().values(), ids=lambda kind: kind.__name__)
def test_a_class_has_a_code(kind: type[ImagegenError]) -> None:
    assert kind is ErrorGroup or kind.code != ImagegenError.code
