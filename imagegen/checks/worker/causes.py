"""Diagnose a failed build. Running out of memory has many symptoms: output, exit codes, and the kernel's counters.

Sources: flash-attention#2079, roboflow/inference#2068; GCC's driver, nvcc 13.0 and Linux 6.18 as they were seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MEMORY, DISK, STOPPED, FAILED = "memory", "disk", "stopped", "failed"

# Messages of a process that found no memory, or that was killed. The group, if there is one, is the process's name.
_MEMORY = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"'(?P<name>[\w+.-]+)' died due to signal 9",  # nvcc of its own programs
        r"\(program (?P<name>[\w+.-]+)\)",  # GCC's driver: Killed (program cc1plus)
        r"Killed signal terminated program (?P<name>[\w+.-]+)",  # GCC's driver from version 10
        r"(?P<name>[\w+.-]+) terminated with signal 9",  # collect2 of ld
        r"(?P<name>[\w+.-]+): out of memory allocating \d+ bytes",
        r"^(?P<name>ptxas) .*(memory allocation failure|out of memory)",
        r"LLVM ERROR: out of memory",
        r"virtual memory exhausted",
        r"terminate called after throwing an instance of 'std::bad_alloc'|^std::bad_alloc",
        r"\bCannot allocate memory\b",
        r"^MemoryError\b",
        r"^(.*: line \d+: +\d+ )?Killed\b(?! signal)",  # a shell's word
        r"^(sh|bash|/bin/sh): .*\bKilled$",
    )
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded")
_SAYS_KILLED = re.compile(r"died due to signal 9|\bKilled\b|terminated with signal 9", re.IGNORECASE)
_CODES = {137: "exit code 137 (SIGKILL)", 143: "exit code 143 (SIGTERM)", -9: "SIGKILL", -15: "SIGTERM"}
_NINJA_FAILED = re.compile(r"FAILED: \[code=(\d+)\]")
_ERRORS = (  # the plainest first
    re.compile(r"\b(fatal error|error|fatal)\s*:|^\w*(Error|Exception)\b:?"),
    re.compile(r"\b(error|failed|exception)\b", re.IGNORECASE),
)


@dataclass(frozen=True)
class Failure:
    """The cause of a failure. `what` is a sentence, `process` the process that ran out of memory, if known."""

    cause: str
    what: str
    process: str | None = None


def diagnose(code: int, lines: Sequence[str], kills: int, largest: str | None, *, stopped: bool = False) -> Failure:
    """Return why the build ended with `code` (negative: by that signal).

    Args:
        code: as subprocess has it.
        lines: the end of its output.
        kills: processes that the kernel has ended in the build's control group, while it ran, for want of memory.
        largest: the name of the largest process that was seen.
        stopped: we were asked to stop.
    """
    if stopped:
        return Failure(STOPPED, "the build was stopped; what it compiled is kept")
    sign = next(
        ((line, found) for line in reversed(lines) if (found := _out_of_memory_process(line)) is not None), None
    )
    process = sign[1] if sign and sign[1] else largest
    if kills:
        ended = "a process" if kills == 1 else f"{kills} processes"
        who = f" ({process})" if process else ""
        return Failure(MEMORY, f"the kernel ended {ended} for want of memory{who}", process)
    if any(_DISK.search(line) for line in lines):
        return Failure(DISK, "the disk is full")
    if sign:
        return Failure(MEMORY, f"out of memory: {sign[0].strip()[:200]}", process)
    if said := _killed(code, lines):
        return Failure(MEMORY, f"{said}, which is how a build ends that has no memory left", process)
    return Failure(FAILED, _reason(code, lines))


def is_diagnostic(line: str) -> bool:
    """Return whether a line helps to explain a failure and must not be lost among the output of other jobs."""
    return bool(
        _out_of_memory_process(line) is not None
        or _DISK.search(line)
        or _NINJA_FAILED.search(line)
        or ": error" in line
    )


def _out_of_memory_process(line: str) -> str | None:
    """Return the process that ran out of memory according to this line, "" if unnamed; None for any other line."""
    for pattern in _MEMORY:
        if found := pattern.search(line):
            if "(program" in found[0] and not _SAYS_KILLED.search(line):
                continue  # GCC names the program of any signal: a segmentation fault is a bug
            return found.groupdict().get("name") or ""
    return None


def _killed(code: int, lines: Sequence[str]) -> str | None:
    codes = [code, *(int(found[1]) for line in lines if (found := _NINJA_FAILED.search(line)))]
    return next((_CODES[each] for each in codes if each in _CODES), None)


def _reason(code: int, lines: Sequence[str]) -> str:
    """Return a sentence with the first error of a compiler, else with the last line of the output."""
    ended = f"it ended with {'signal ' + str(-code) if code < 0 else 'exit code ' + str(code)}"
    said = [line.strip() for line in lines if line.strip()]
    complaints = (line for pattern in _ERRORS for line in said if pattern.search(line))
    first = next(complaints, said[-1] if said else "")
    return f"{ended}: {first[:300]}" if first else f"{ended} and said nothing"
