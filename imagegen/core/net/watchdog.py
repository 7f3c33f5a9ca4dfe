"""End exchanges that hang: a watchdog over the sockets of connections.

The timeout of a single read never comes where an answer drips, byte by byte. The stall watchdog holds a second handle
to the connection's socket, and shuts the connection down when nothing has come of it in time, in whichever phase that
is: a proxy's answer, the TLS handshake, headers, or the body.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Any

from requests.adapters import HTTPAdapter

from imagegen.core import stopping

_here = threading.local()  # .line is the watchdog of this thread's exchange


class StallWatchdog:
    """A context manager around one exchange, in one thread; `renew` within every `patience` seconds or it is cut."""

    def __init__(self, patience: float) -> None:
        self._patience, self._renewed = patience, time.monotonic()
        self._handles: list[socket.socket] = []
        self._lock = threading.Lock()
        self._over = False
        self.was_cut = False
        if threading.current_thread() is not threading.main_thread():  # which a signal interrupts by itself
            stopping.register(self)

    def __enter__(self) -> StallWatchdog:
        _here.line = self
        self._arm(self._patience)
        return self

    def __exit__(self, *exc: object) -> None:
        _here.line = None
        self._timer.cancel()
        with self._lock:
            self._over = True
            for handle in self._handles:
                handle.close()

    def renew(self) -> None:
        self._renewed = time.monotonic()

    def hold(self, connection: socket.socket) -> None:
        handle = socket.socket(fileno=os.dup(connection.fileno()))  # TLS takes over the original's descriptor
        with self._lock:
            self._handles.append(handle)
        if self.was_cut:
            self.cut()

    def cut(self) -> None:
        """Shut the connection down, from any thread: its reader sees the end of the stream."""
        with self._lock:
            self.was_cut = True
            for handle in () if self._over else self._handles:
                with suppress(OSError):
                    handle.shutdown(socket.SHUT_RD)

    stop = cut  # when a signal ends the run

    def _arm(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._check)
        self._timer.daemon = True
        self._timer.start()

    def _check(self) -> None:
        remaining = self._renewed + self._patience - time.monotonic()
        if remaining <= 0:
            self.cut()
        elif not self._over:
            self._arm(remaining)


class WatchedAdapter(HTTPAdapter):
    """requests' transport, in which the watchdog of the calling thread holds every connection that is used."""

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = _watched(pool.ConnectionCls)
        return pool


class _WatchedConnection:
    sock: Any

    def _new_conn(self) -> Any:
        sock = super()._new_conn()  # type: ignore[misc]  # the class below is one of urllib3's
        _watch(sock)
        return sock

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            _watch(self.sock)
        super().request(*args, **kwargs)  # type: ignore[misc]


def _watch(sock: socket.socket) -> None:
    line: StallWatchdog | None = getattr(_here, "line", None)
    if line is not None:
        line.hold(sock)


@cache
def _watched(kind: type) -> type:
    """`kind`, one of urllib3's connections, direct or through a proxy, that registers with the watchdog."""
    return kind if issubclass(kind, _WatchedConnection) else type(kind.__name__, (_WatchedConnection, kind), {})
