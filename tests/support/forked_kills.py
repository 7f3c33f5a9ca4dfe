"""A function in a forked process that is killed before one of its operations on files, programs and requests."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import urllib3

from tests.support.small_cell import KILLER


def run_in_child(work: Callable[[], object], log: Path, number: int = 0) -> tuple[int, list[str]]:
    """Call `work` in a child process that SIGKILL ends before the operation with this number (0: none).

    Return the child's exit code and the operations, of which the last one was not done if it was killed.
    """
    log.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            os.environ |= {"KILLER_LOG": str(log), "KILLER_AT": str(number)}
            spec = importlib.util.spec_from_file_location("killer", KILLER / "sitecustomize.py")
            assert spec
            assert spec.loader
            killer = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(killer)
            connection = urllib3.connection.HTTPConnection
            killer._wrap(connection, "request", lambda self, method, url, *_, **__: (method, url))
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), log.read_text().splitlines()
