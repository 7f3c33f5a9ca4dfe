"""Shared by all tests: one profile for property tests, and golden files."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.support import fault_table

# Machines are shared and noisy, so nothing is judged by its time.
settings.register_profile("imagegen", deadline=None, max_examples=60)
settings.load_profile("imagegen")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ with what is rendered now")
    parser.addoption("--fault-table", metavar="FILE", help="write the outcomes of tests marked `fault` as a table")


def pytest_configure(config: pytest.Config) -> None:
    # Started in the background, or by nohup, a run ignores these, and its tests' child processes would inherit that.
    for number, usual in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    if config.getoption("--fault-table") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(fault_table.FaultTable(Path(config.getoption("--fault-table"))))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    fault_table.note(items)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return _Scheduling(config, log)


class _Scheduling(LoadScopeScheduling):
    """Tests of one scope run in one process, one after the other: those of a file, and all that use the engine.

    What two of these do to one engine at a time (prune, kill, fill) the other would see.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _shared(Path(__file__).parent.parent / file) or file


@functools.cache
def _shared(file: Path) -> str | None:
    """Return the name of the group of files that share expensive fixtures, by the fixtures that a test file uses."""
    text = file.read_text(encoding="utf-8")
    if re.search(r"\b(engine|machine|site|debian): ", text) and file.parent.name == "integration":
        return "engine"
    return "verifiers" if "verifiers: " in text else None  # 20 MB, fetched once


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of this name in tests/golden/."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, "`pytest --update-golden` rewrites it; read the diff"

    return compare
