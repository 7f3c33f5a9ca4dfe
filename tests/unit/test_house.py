"""The house itself: imports go one way, files stay readable, nothing names a machine or a package registry's host."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "imagegen"

# From the ground up; a room may import what comes before it.
ORDER = [
    *("text", "errors", "data", "epoch", "config", "progress", "store", "net", "registry", "git", "seccomp", "sandbox"),
    *(
        "preflight",
        "matrix",
        "compat",
        "audit",
        "wheels",
        "base",
        "interpreter",
        "lock",
        "state",
        "missing",
        "harvest",
        "layers",
        "recipe",
        "engine",
        "doctor",
    ),
    *(
        "inventory",
        "builds",
        "smoke",
        "trust",
        "pipeline",
        "compare",
        "publish",
        "export",
        "nightly",
        "mirror",
        "site",
        "cli",
    ),
]
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "suite" not in path.parts)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "imagegen":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("imagegen."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("imagegen.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    own = room(path)
    if own == "__init__":
        assert not imported_rooms(path)
        return
    later = {other for other in imported_rooms(path) if ORDER.index(other) > ORDER.index(own)}
    assert not later, f"{own} imports {later}"


def test_the_suite_imports_nothing_of_imagegen() -> None:
    for path in PACKAGE.glob("*/suite/**/*.py"):
        assert not imported_rooms(path), path


def test_files_stay_readable() -> None:
    # run_image.py is copied to hosts as one file.
    sources = [path for path in SOURCES if path.name != "run_image.py"]
    long = {str(path.relative_to(ROOT)): n for path in sources if (n := len(path.read_text().splitlines())) > 400}
    assert not long


def test_nothing_names_a_registrys_host_or_a_machine() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    words = [r"pythonh[o]sted", r"registry\.n[p]m", r"pypi\.o[r]g", r"deb\.deb[i]an", r"/wor[k]/", r"/op[t]/(whe|pyp)"]
    pattern = re.compile("|".join(words).encode())
    found = [
        name.decode()
        for name in tracked.split(b"\0")
        if name and (ROOT / name.decode()).is_file() and pattern.search((ROOT / name.decode()).read_bytes())
    ]
    assert not found
