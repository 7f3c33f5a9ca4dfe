"""Unit tests are pure: what opens a socket, starts a program or sleeps belongs to tests/functional."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import urllib3  # noqa: F401 - its first import opens a socket, to see whether there is IPv6; no test may be the one

from tests.support.guard import Guard

GUARD = Guard()
sys.addaudithook(GUARD.audit)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    GUARD.active = item.path.parent == Path(__file__).parent  # the hook is called for tests of all directories
    try:
        return (yield)
    finally:
        GUARD.active = False


@pytest.fixture(autouse=True)
def guard(monkeypatch: pytest.MonkeyPatch) -> Generator[Guard, None, None]:
    """The guard, whose list of what it saw is empty when a test ends."""
    GUARD.seen.clear()
    monkeypatch.setattr(time, "sleep", GUARD.sleep)
    monkeypatch.setenv("UV_OFFLINE", "1")  # `why` asks no index
    yield GUARD
    assert not GUARD.seen
