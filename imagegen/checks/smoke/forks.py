"""Many small deeds, each in a process of its own that is forked from this one: what is loaded here, they all have."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

LINES = 2  # of what a deed printed before it ended badly


@dataclass(frozen=True)
class Deed:
    """The result of one process: its return value, or how it ended. `said` is the end of its output if it died."""

    name: str
    answer: Any = None
    signal: str = ""
    error: str = ""
    said: str = ""


@dataclass
class _Running:
    name: str
    answer: IO[bytes] = field(default_factory=tempfile.TemporaryFile)  # files, not pipes: they need no reader
    output: IO[bytes] = field(default_factory=tempfile.TemporaryFile)


def each(names: Iterable[str], deed: Callable[[str], Any], *, abreast: int, patience: int) -> Iterator[Deed]:
    """Do the deed for each name. Its answer must be JSON; an exception is an error. SIGALRM ends what is too slow."""
    running: dict[int, _Running] = {}
    for name in names:
        while len(running) >= abreast:
            yield _ended(running)
        row = _Running(name)
        child = os.fork()
        if not child:
            _child(row, deed, patience)
        running[child] = row
    while running:
        yield _ended(running)


def _child(row: _Running, deed: Callable[[str], Any], patience: int) -> None:
    """Never returns: no handler of the parent's runs at its end."""
    try:
        for stream in (1, 2):
            os.dup2(row.output.fileno(), stream)
        faulthandler.disable()  # where this program stood says nothing about the library that ended it
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(patience)
        answer = {"answer": deed(row.name)}
    except BaseException as error:  # noqa: BLE001  # whatever an image's libraries raise is the answer
        answer = {"error": f"{type(error).__name__}: {error}"}
    try:
        os.write(row.answer.fileno(), json.dumps(answer).encode())
    finally:
        os._exit(0)


def _ended(running: dict[int, _Running]) -> Deed:
    """The next that ends."""
    while True:
        child, status = os.wait()
        if child in running:
            break
    row = running.pop(child)
    with row.answer, row.output:
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return Deed(row.name, signal=signal_name(-code), said=_end_of(row.output))
        try:
            return Deed(row.name, **json.loads(_all_of(row.answer)))
        except ValueError:
            return Deed(row.name, error=f"it ended with exit code {code} and no answer", said=_end_of(row.output))


def _all_of(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


def _end_of(stream: IO[bytes]) -> str:
    lines = _all_of(stream).decode("utf-8", "replace").splitlines()
    return " / ".join([line.strip() for line in lines if line.strip()][-LINES:])[:300]


def signal_name(number: int) -> str:
    """The name of a signal: "SIGBUS" for 7. Those for programs' own use have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
