"""The imports in a module's source, at module level and inside functions."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPTIONAL = {"BaseException", "Exception", "ImportError", "ModuleNotFoundError"}  # a handler of these allows absence


@dataclass(frozen=True)
class Import:
    """One import statement. `names` are those of `from module import names`; empty for `import module`."""

    module: str  # absolute
    names: tuple[str, ...] = ()
    line: int = 0

    def load(self) -> None:
        """Execute the statement. Raises what it raises."""
        module = importlib.import_module(self.module)
        for name in self.names:
            if name != "*" and not hasattr(module, name):
                try:
                    importlib.import_module(f"{self.module}.{name}")
                except ModuleNotFoundError as error:
                    if error.name != f"{self.module}.{name}":
                        raise
                    raise ImportError(f"cannot import name {name!r} from {self.module!r}") from error

    def submodules(self) -> list[str]:
        """The names that are modules. Meant for a statement that was loaded."""
        return [name for each in self.names if (name := f"{self.module}.{each}") in sys.modules]


def imports_of(module: str) -> Iterator[Import]:
    """Yield the imports of a module that can be found; none for one that has no Python source."""
    found = importlib.util.find_spec(module)
    if found and found.origin and found.origin.endswith(".py"):
        package = module if found.submodule_search_locations is not None else module.rpartition(".")[0]
        yield from _imports(ast.parse(Path(found.origin).read_bytes()), package)


def _imports(node: ast.AST, package: str) -> Iterator[Import]:
    """Yield the imports below a node, but for those whose absence the code allows or that only type checkers see."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, (), node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
        name = ".".join([*base, *([node.module] if node.module else [])])
        yield Import(name, tuple(alias.name for alias in node.names), node.lineno)
    elif isinstance(node, ast.Try) and _allows_absence(node):
        for child in (*node.orelse, *node.finalbody):
            yield from _imports(child, package)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from _imports(child, package)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, package)


def _allows_absence(node: ast.Try) -> bool:
    caught = [handler.type for handler in node.handlers]
    names = {each.id for kind in caught if kind for each in ast.walk(kind) if isinstance(each, ast.Name)}
    return None in caught or bool(OPTIONAL & names)
