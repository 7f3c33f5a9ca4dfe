"""A guard that lets sockets, programs and sleep fail: an audit hook (PEP 578)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

FORBIDDEN = {  # audit events; https://docs.python.org/3/library/audit_events.html
    "os.exec": "starts a program",
    "os.fork": "starts a process",
    "os.posix_spawn": "starts a program",
    "os.system": "starts a program",
    "socket.__new__": "opens a socket",
    "socket.getaddrinfo": "asks for an address",
    "subprocess.Popen": "starts a program",
}


class Guard:
    """Lets forbidden events fail while a unit test runs, and keeps them, since code may catch what it raises."""

    def __init__(self) -> None:
        self.active = False
        self.seen: list[str] = []

    def audit(self, event: str, _: tuple[object, ...]) -> None:
        if self.active and event in FORBIDDEN:
            self._fail(FORBIDDEN[event])

    def sleep(self, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Take the place of `time.sleep`, which Python 3.11 has no event for. Other threads may sleep."""
        if seconds and threading.current_thread() is threading.main_thread():
            self._fail("sleeps")
        sleep(seconds)

    def _fail(self, does: str) -> None:
        self.seen.append(f"a unit test {does}; such tests are in tests/functional")
        pytest.fail(self.seen[-1])
