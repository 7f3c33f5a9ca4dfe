"""The log of a source build: how buildx shows its progress and a lack of memory.

Source of the format: plain progress of buildx 0.13 and 0.29: `#12 34.5 text` is a line of step 12 after 34.5 seconds,
and `#12 ERROR: ...` its end. BuildKit repeats the log's end behind `------`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from imagegen.core.data import parse_json
from imagegen.core.text import cut, redact

_EVENT = re.compile(r"#[0-9]+ [0-9.]+ @imagegen (\{.*\})")
_LINE = re.compile(r"#[0-9]+ (?:[0-9.]+ (?P<text>.*)|(?P<end>ERROR: .*))")
_KEPT = 50_000  # lines of a log
_END = 400  # lines in which a disguise is looked for
_WIDTH = 300  # characters of a line in an error
_MOST = 1 << 60  # of whatever is counted: JSON has larger numbers, and infinite ones

# Each disguise with its name for human readers. Sources: flash-attention#2079, roboflow/inference#2068, and the
# messages of BuildKit's client (google.golang.org/grpc, "keepalive ping failed").
_LOST = re.compile(
    r"keepalive ping failed|closing transport due to: connection error|error reading from server: EOF"
    r"|rpc error: code = Unavailable"
)
SILENT = "BuildKit no longer answered, as where compilers take all memory"
_DISGUISES = (
    (re.compile(r"exit code: 137\b"), "exit code 137 (SIGKILL)"),
    (re.compile(r"exit code: 143\b"), "exit code 143 (SIGTERM)"),
    (re.compile(r"Killed \(program (\w+)\)|Killed signal terminated program (\w+)"), "a compiler was killed"),
    (re.compile(r"died due to signal 9"), "a program of nvcc's was killed"),
    (re.compile(r"(^|[\s:])Killed\b(?! \(| signal)"), "a process was killed"),
    (_LOST, SILENT),
)


@dataclass(frozen=True)
class Event:
    """One event line of the worker. Sizes are bytes; a missing value is 0 or None."""

    kind: str  # "start", "progress", "done" or "failed"
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    memory: int = 0  # of all processes of the build, now
    peak: int = 0  # the most that it was
    largest: int = 0  # of one process, so far
    cause: str | None = None  # of a failure: "memory" or another word
    what: str | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Event:
        def number(name: str) -> float:
            value = record.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST:
                return value
            return 0

        def text(name: str) -> str | None:
            value = record.get(name)
            return value if isinstance(value, str) else None

        return cls(
            kind=text("event") or "",
            done=int(number("done")),
            total=int(number("total")),
            seconds=float(number("seconds")),
            memory=int(number("memory")),
            peak=int(max(number("peak"), number("memory"))),
            largest=int(number("largest")),
            cause=text("cause"),
            what=text("what"),
        )


@dataclass
class LogParser:
    """Parses the plain progress of one build, line by line."""

    failure: Event | None = None
    _log: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def feed(self, line: str) -> Event | None:
        """Parse a line; return the worker's event that it holds, if any."""
        if event := _event(line):
            if event.kind == "failed":
                self.failure = event
        elif match := _LINE.fullmatch(line):
            self._log.append(match["text"] if match["end"] is None else match["end"])
        elif line.startswith(("ERROR", "error")):
            self._log.append(line)
        return event

    @property
    def log(self) -> str:
        """The output of the build's programs."""
        return "".join(f"{line}\n" for line in self._log)

    def starved(self) -> str | None:
        """The evidence that a failed build ran out of memory; None where it failed for another reason."""
        if self.failure and self.failure.cause:
            return (self.failure.what or "out of memory") if self.failure.cause == "memory" else None
        return disguise(list(self._log)[-_END:])

    def lost(self) -> str:
        """Return the last line that shows that the connection to BuildKit ended; empty without one."""
        matches = (cut(redact(line), _WIDTH) for line in reversed(self._log) if _LOST.search(line))
        return next(matches, "").removeprefix("ERROR: ")

    def ending(self, lines: int) -> str:
        """Return the last lines of the log, without BuildKit's lines about the step as a whole."""
        lines_shown = [cut(redact(line), _WIDTH) for line in self._log if not line.startswith("ERROR: ")]
        return "\n".join(lines_shown[-lines:])


def disguise(lines: Iterable[str]) -> str | None:
    """Return the first of these lines that shows an out-of-memory failure; None without one."""
    all_lines = list(lines)
    if any("context canceled" in line for line in all_lines):  # a stopped build has its programs killed too
        return None
    for pattern, name in _DISGUISES:
        if any(pattern.search(line) for line in all_lines):
            return name
    return None


def _event(line: str) -> Event | None:
    """Parse an event line; None for other lines, even similar ones: a compiler may print anything."""
    match = _EVENT.fullmatch(line)
    try:
        record = parse_json(match[1]) if match else None
    except ValueError:
        return None
    return Event.of(record) if isinstance(record, dict) and record.get("event") else None
