"""What all tests share: one profile for property tests, and golden files."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tests import faults

# Machines are shared and noisy, so nothing is judged by its time.
settings.register_profile("imagegen", deadline=None, max_examples=60)
settings.load_profile("imagegen")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ with what is rendered now")
    parser.addoption("--fault-table", metavar="FILE", help="write the outcomes of tests marked `fault` as a table")


def pytest_configure(config: pytest.Config) -> None:
    # Started in the background, or by nohup, a run ignores these, and would hand that on to all that its tests start.
    for number, usual in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    if config.getoption("--fault-table") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(faults.FaultTable(Path(config.getoption("--fault-table"))))


@pytest.hookimpl(tryfirst=True)  # before workers look for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    faults.note(items)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))


def _group(item: pytest.Item) -> str:
    """Tests of one group run in one process, one after the other: those that use the engine, and those of a file.

    What two of them do to one engine at a time (prune, kill, fill) the other would see.
    """
    fixtures = set(getattr(item, "fixturenames", ()))
    if "verifiers" in fixtures:
        return "verifiers"  # 20 MB, fetched once
    return "engine" if fixtures & {"engine", "site", "debian", "machine"} else item.nodeid.partition("::")[0]


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
