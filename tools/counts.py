"""Count properties of the code base that have a budget (tests/unit/test_counts.py): `make counts` prints them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
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
    for name, count in counts().items():
        print(f"{name:40}{count:10,.0f}")
    for texts, rates in sentence_rates().items():
        for pattern, rate in rates.items():
            print(f"{pattern + ', ' + texts:40}{rate:10.2f} per 1,000 words")
