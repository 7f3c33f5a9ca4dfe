"""The package layout: imports go one way, files stay readable, nothing names a machine or a package registry's host."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "imagegen"

# From the bottom up: a module may import only modules of its own entry and of those above it in this list.
# The entry of a module is the longest one that is a prefix of its name.
ORDER = [
    "core.deferred",
    "core.text",
    "core.validation",
    "core.types",
    "core.matrix_entry",
    "core.gpu",
    "core.image_format",
    "core.strict",
    "core.errors",
    "core.stopping",
    "core.progress",
    "core.programs",
    "core.temporary",
    "core.data",
    "core.toml",
    "core.compiled",
    "core.config",
    "oci.documents",
    "oci.layout",
    "core.layer_tar",
    "core.layer_tree",
    "core.zip_archive",
    "core.store",
    "core.context",
    "core.net",
    "core.wheel_target",
    "oci.registry",
    "core.git",
    "core.seccomp",
    "core.sandbox",
    "checks",
    "audit",
    "compat",
    "spec",
    "projects",
    "lock.distributions",
    "lock.tables",
    "lock.wheels",
    "lock.foundation",
    "lock.interpreter",
    "lock.model",
    "lock.artifacts",
    "lock",
    "index_metadata",
    "image.base",
    "image.interpreter",
    "image.file_tree",
    "image.inputs",
    "image.layers",
    "image.dockerfile",
    "image.folder",
    "image.inventory",
    "engine",
    "run.doctor",
    "run.smoke",
    "run.numerics",
    "wheels",
    "compat.witness",
    "compat.answers",
    "compat.answer_text",
    "compat.__main__",
    "lock.make",
    "wheels.builds",
    "trust",
    "compare",
    "publish",
    "export",
    "mirror",
    "app",
    "cli",
]
PROGRAMS = ("smoke", "preflight", "worker", "prefix")  # of checks
SOURCES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path.relative_to(PACKAGE).parts[:2] not in {("checks", name) for name in PROGRAMS}
)
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in SOURCES}


def imported(path: Path) -> set[str]:
    """Return the modules of imagegen that a file imports, without "imagegen."."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "imagegen":
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else str(node.module) for name in full}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("imagegen.")}
    return {name.removeprefix("imagegen").removeprefix(".") for name in names} - {""}


def rank(module: str) -> int:
    """Return the index in ORDER of a module's entry. Raises ValueError where it has none."""
    return max((len(entry), ORDER.index(entry)) for entry in ORDER if f"{module}.".startswith(f"{entry}."))[1]


def test_the_order_names_what_exists() -> None:
    modules = {name.removeprefix("imagegen.") for name in MODULES}
    assert [entry for entry in ORDER if entry not in modules] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    own = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")
    if own.count(".") == 0 and path.name == "__init__.py" and own not in ORDER:  # imagegen itself, and bare groups
        assert not imported(path)
        return
    later = {module for module in imported(path) if rank(module) > rank(own)}
    assert not later, f"{own} imports {later}"


def test_programs_of_containers_import_nothing_of_imagegen() -> None:
    for name in PROGRAMS:
        for path in (PACKAGE / "checks" / name).rglob("*.py"):
            assert not imported(path), path


def test_nothing_imports_tools() -> None:
    """They are not installed."""
    importing = re.compile(r"^\s*(from|import) tools\b", re.MULTILINE)
    assert [path for path in PACKAGE.rglob("*.py") if importing.search(path.read_text())] == []


def test_files_stay_readable() -> None:
    sources = [*SOURCES, *(path for path in (ROOT / "tools").rglob("*.py") if path.name != "run_image.py")]
    long = {str(path.relative_to(ROOT)): n for path in sources if (n := len(path.read_text().splitlines())) > 600}
    assert not long


def imported_tests(path: Path) -> set[str]:
    """Return the modules under tests/ that hold tests or fixtures and that a file imports, also in text of programs."""
    return set(re.findall(r"\bfrom (tests\.(?:\w+\.)*(?:test_\w+|conftest))\b", path.read_text())) | {
        f"{package}.{name}"
        for package, name in re.findall(r"\bfrom (tests(?:\.\w+)*) import .*\b(test_\w+)", path.read_text())
    }


def test_tests_import_only_support() -> None:
    tests = ROOT / "tests"
    found = {str(path.relative_to(tests)): modules for path in tests.rglob("*.py") if (modules := imported_tests(path))}
    assert not found, "what modules of tests share lies in tests/support, fixtures in conftest.py"


def test_directories_of_tests_hold_only_tests() -> None:
    tests = ROOT / "tests"
    files = [path for name in ("", "unit", "functional", "integration") for path in (tests / name).glob("*.py")]
    loose = [path for path in files if not re.fullmatch(r"(test_\w+|conftest|__init__)\.py", path.name)]
    assert not loose, "helpers lie in tests/support"
