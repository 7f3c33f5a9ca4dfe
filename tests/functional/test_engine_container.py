"""Programs in a container, with a stand-in for the engine."""

from __future__ import annotations

import io
import socket
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from docker.utils.socket import STDOUT

from imagegen.core.errors import OutputLimitError
from imagegen.engine.containers import Container

FRAME = struct.pack(">BxxxL", STDOUT, 1 << 16) + bytes(1 << 16)  # Docker Engine API, containers/attach: stream format


def test_nobody_waits_for_output_that_is_not_read_when_its_container_is_killed() -> None:
    """Docker 26.1 waits ten seconds for it; a removal then took up to 30."""
    engine, ours = socket.socketpair()
    stream: Any = ours.makefile("rb", 0)
    stream._response = io.BytesIO()  # of the SDK's own
    closed, at_kill = threading.Event(), []

    def print_without_end() -> None:
        try:
            while True:
                engine.sendall(FRAME)
        except OSError:
            closed.set()

    api = SimpleNamespace(
        timeout=60,
        exec_create=lambda *_, **__: {"Id": "1"},
        exec_start=lambda *_, **__: stream,
        kill=lambda _: at_kill.append(closed.wait(5)),
    )
    threading.Thread(target=print_without_end, daemon=True).start()
    with pytest.raises(OutputLimitError):
        Container(SimpleNamespace(api=api), "container", emulated=False).exec(["yes"], timeout=60)
    engine.close()
    assert at_kill == [True]
