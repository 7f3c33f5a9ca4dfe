"""Count properties of the code base that have a budget (tests/unit/test_counts.py): `make counts` prints them."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools import sentences

ROOT = Path(__file__).parents[1]
LIBRARIES = ("audit", "compat", "checks", "projects")  # packages that can be imported alone
# Names that do not say what they hold.
_FILLERS = (
    "each found place places known parts own made named said held kept here theirs there what others one rest left "
    "more given done taken had has every told spoken"
)
FILLERS = frozenset(_FILLERS.split())
_LONG = 60  # lines of a function
# A comment between blank lines at the beginning of a line: the heading of what should be a module of its own.
_HEADING = re.compile(r"(?<=\n\n)# (?!ruff:|mypy:).*\n(?:#.*\n)*(?=\n)")

_PROSE = 3  # words of a literal
_WORDS = re.compile(r"(?<!\S)[(\"'`]*[A-Za-z][A-Za-z'-]*[\"'`)]*[.,:;?!)]*(?!\S)")
_METHODS = "startswith endswith count index find search match fullmatch findall split splitlines"
_TEXT_METHODS = frozenset(_METHODS.split())
_FOLDS = frozenset((any, all, str, len, list, set, sorted, tuple, dict, next))  # they pass texts on
_PATCHERS = frozenset(("setattr", "delattr", "getattr", "hasattr", "patch", "object"))


@dataclass(frozen=True)
class Module:
    """A Python source of the package."""

    path: Path
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its syntax tree."""
        return list(ast.walk(ast.parse(self.text)))


def modules() -> list[Module]:
    """Return the modules of imagegen."""
    return [Module(path, path.read_text()) for path in sorted((ROOT / "imagegen").rglob("*.py"))]


def bindings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each name that is bound: variables, parameters and exceptions, but for `self` and `cls`."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)) | ast.arg(arg=name):
                if name not in ("self", "cls"):
                    yield name


def has_sections(module: Module) -> bool:
    """Return whether headings divide the module."""
    return bool(_HEADING.search(module.text))


def _is_late(line: str) -> bool:
    return bool(re.search(r"#.*\blate\b", line))


def _is_command(function: ast.FunctionDef) -> bool:
    return any("command" in ast.unparse(decorator) for decorator in function.decorator_list)


def _functions(nodes: Iterable[ast.AST]) -> Iterator[ast.FunctionDef]:
    return (node for node in nodes if isinstance(node, ast.FunctionDef))


def _callable_parameters(function: ast.FunctionDef) -> int:
    parameters = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return sum("Callable" in ast.unparse(parameter.annotation) for parameter in parameters if parameter.annotation)


def _internal_imports(module: Module) -> int:
    """Return how many modules of imagegen the module imports, wherever in its text."""
    return len(
        {
            name
            for node in module.nodes
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [f"{node.module}"]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            if name.startswith("imagegen")
        }
    )


def _literal(node: ast.AST) -> str:
    """Return the text of a string literal, with a colon for each value in an f-string; of other nodes none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_literal(value) or ":" for value in values)
    return ""


def _compared(node: ast.AST) -> Iterator[str]:
    """Yield the literals that an expression compares with something: no arguments, but for those of methods of text."""
    if text := _literal(node):
        yield text
        return
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method), args=arguments):
            children = [receiver, *arguments] if method in _TEXT_METHODS else [receiver]
        case ast.Call(func=ast.Name(id=function), args=arguments):
            children = arguments if getattr(builtins, function, None) in _FOLDS else []
        case ast.Subscript(value=value):
            children = [value]
    for child in children:
        yield from _compared(child)


def prose_asserts(nodes: Iterable[ast.AST]) -> list[ast.AST]:
    """Return the asserts that compare something with a literal of three or more words, and such `match=` arguments."""
    return [
        node
        for node in nodes
        for expression in (
            [node.test]
            if isinstance(node, ast.Assert)
            else [node.value]
            if isinstance(node, ast.keyword) and node.arg == "match"
            else []
        )
        if any(len(_WORDS.findall(text.replace("\\", ""))) >= _PROSE for text in _compared(expression))
    ]


def private_names(nodes: Iterable[ast.AST], private: Container[str]) -> list[str]:
    """Return the private names that a test imports, reads as attributes, or gives to a function that replaces them."""
    return [name for node in nodes for name in _used(node) if name in private]


def _used(node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            return []
        case ast.Attribute(attr=name):
            return [name]
        case ast.ImportFrom(names=aliases):
            return [alias.name for alias in aliases]
        case (
            ast.Call(func=ast.Name(id=function), args=arguments)
            | ast.Call(func=ast.Attribute(attr=function), args=arguments)
        ) if function in _PATCHERS:
            return [_literal(argument).rpartition(".")[2] for argument in arguments]
    return []


def _private_definitions() -> set[str]:
    """Return the names of imagegen that begin with one underscore: functions, classes, variables and attributes."""
    return {
        name
        for module in modules()
        for node in module.nodes
        for name in (
            [node.name]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else [node.id]
            if isinstance(node, ast.Name)
            else [node.attr]
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            else []
        )
        if re.match("_[A-Za-z]", name) and name != "_replace"  # of named tuples
    }


def test_counts() -> dict[str, float]:
    """Return each count of tests/ by its name."""
    tests = [Module(path, path.read_text()) for path in sorted((ROOT / "tests").rglob("*.py"))]
    private = _private_definitions()
    return {
        "prose asserts": sum(len(prose_asserts(module.nodes)) for module in tests),
        "private names in tests": sum(len(private_names(module.nodes, private)) for module in tests),
    }


def counts() -> dict[str, float]:
    """Return each count by its name."""
    sources = modules()
    names = Counter(name for module in sources for name in bindings(module.nodes))
    functions = [function for module in sources for function in _functions(module.nodes)]
    lines = {module.path: module.text.count("\n") for module in sources}
    is_library = {path: path.relative_to(ROOT / "imagegen").parts[0] in LIBRARIES for path in lines}
    imports = sorted(_internal_imports(module) for module in sources)
    return {
        "lines": sum(lines.values()),
        "lines outside the libraries": sum(count for path, count in lines.items() if not is_library[path]),
        "modules": len(sources),
        "filler names per 1,000 bindings": 1000 * sum(names[name] for name in FILLERS) / names.total(),
        "modules of several sections": sum(map(has_sections, sources)),
        "functions above 60 lines": sum(
            (function.end_lineno or 0) - function.lineno >= _LONG and not _is_command(function)
            for function in functions
        ),
        "Callable parameters": sum(map(_callable_parameters, functions)),
        "late imports outside cli": sum(
            _is_late(line) for module in sources if "cli" not in module.path.parts for line in module.text.splitlines()
        ),
        "internal imports, p90": imports[9 * len(imports) // 10],
    }


def sentence_rates() -> dict[str, dict[str, float]]:
    """Return how often each pattern of `tools/sentences.py` occurs in 1,000 words, in pages and in code."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "docs"]
    return {
        "pages": sentences.rates(
            prose for path in sentences.files_under(pages, ".md") for prose in sentences.markdown_prose(path)
        ),
        "code": sentences.rates(
            prose
            for path in sentences.files_under([ROOT / "imagegen"], ".py")
            for prose in sentences.python_prose(path)
        ),
    }


if __name__ == "__main__":
    for name, count in (counts() | test_counts()).items():
        print(f"{name:40}{count:10,.0f}")
    for texts, rates in sentence_rates().items():
        for pattern, rate in rates.items():
            print(f"{pattern + ', ' + texts:40}{rate:10.2f} per 1,000 words")
