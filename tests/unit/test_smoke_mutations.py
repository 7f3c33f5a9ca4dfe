"""Each smoke check has mutations that show that it can fail, and integration tests run the mutations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from imagegen.checks.smoke.table import CHECKS

TESTS = Path(__file__).parents[1]
# Check -> the module below `smoke` with its judgements, where that is shared.
JUDGED_BY = {"rollout_engine": "rollout"}
# Tests of their own show that these fail, or runs on a GPU (docs/internals/measurements.md).
WITHOUT = {"conv1d", "cuda", "environment", "flash_attn", "imports", "pip", "verl_config", "versions"}
BY_HAND = {"apex", "transformer_engine"}  # run on a GPU: bench/journal/2026-11-24-*.md


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in ("smoke", "smoke.checks"):
            yield from (alias.name for alias in node.names)


def test_each_check_has_mutations() -> None:
    mutated = {name for path in (TESTS / "support").glob("*_mutations.py") for name in _imported(path)}
    modules = {check.module for check in CHECKS}
    assert {name for name in modules if JUDGED_BY.get(name, name) not in mutated} == WITHOUT


def _listed(path: Path) -> Iterator[str]:
    """Yield the names of the functions in the table MUTATIONS of a program."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MUTATIONS":
            yield from (each.id for each in ast.walk(node.value) if isinstance(each, ast.Name) and each.id != "f")


def _run(path: Path) -> Iterator[str]:
    """Yield the strings in the decorators of the test that runs mutations."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "test_every_mutation_is_found":
            constants = (each for item in node.decorator_list for each in ast.walk(item))
            yield from (str(each.value) for each in constants if isinstance(each, ast.Constant))


def test_integration_tests_run_the_mutations() -> None:
    programs = ("smoke_mutations.py", "smoke_stack_mutations.py")
    listed = {name for program in programs for name in _listed(TESTS / "support" / program)}
    tests = ("test_smoke_image.py", "test_training_images.py")
    run = {name for test in tests for name in _run(TESTS / "integration" / test)}
    assert len(listed) > 10
    assert listed - run == BY_HAND
