"""The guard of unit tests refuses what they may not do."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.guard import Guard

ATTEMPTS: dict[str, Callable[[], object]] = {
    "a socket": socket.socket,
    "an address": lambda: socket.getaddrinfo("localhost", 80),
    "a program": lambda: subprocess.run(["true"], check=True),
    "a shell": lambda: os.system("true"),
    "a process": os.fork,
    "sleep": lambda: time.sleep(0.001),
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_fails(name: str, guard: Guard) -> None:
    with pytest.raises(pytest.fail.Exception, match="tests/functional"):
        ATTEMPTS[name]()
    assert guard.seen
    guard.seen.clear()


def test_an_attempt_that_code_survives_is_kept(guard: Guard) -> None:
    with suppress(pytest.fail.Exception):
        socket.socket()
    assert guard.seen
    guard.seen.clear()
