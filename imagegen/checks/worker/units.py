"""Progress of a build: ninja's own count, and the command lines of compilers that run without ninja.

ninja starts each of its lines with what NINJA_STATUS says. On a pipe it writes one when a command has ended, so that
`finished` counts what is done. A build may run ninja many times (one extension after the other), and each run counts
anew what it still has to do. Source: ninja's manual (environment variables, the log), 1.11 to 1.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

STATUS = "@ninja %f %t @ "  # finished, total
_LINE = re.compile(r"^@ninja (\d+) (\d+) @ (.*)$")
_COMPILES = re.compile(r"\s-c\s.*\s-o\s+\S+\.o\b|\s-o\s+\S+\.o\b.*\s-c\s")
_LINKS = re.compile(r"\.(so|a)$")


class UnitCounter:
    """Compiled units, over all ninja runs of this build."""

    def __init__(self, earlier: int, expected: int | None) -> None:
        """Args: `earlier`, units compiled by an interrupted build; `expected`, the total if it is known."""
        self.earlier = earlier
        self._expected = expected or 0
        self._ended = 0  # of ninja's runs that are over
        self._finished = self._total = 0  # of the present one
        self._plain = self._failed = 0

    def read(self, line: str) -> bool:
        """Parse a line of the build's output; return whether one more unit is done."""
        found = _LINE.match(line)
        if found is None:
            self._failed += line.startswith("FAILED:")  # ninja's line before it has counted the unit
            if line.startswith(("FAILED:", "ninja:")) or not _COMPILES.search(line) or self._total:
                return False
            self._plain += 1
            return True
        finished, total = int(found[1]), int(found[2])
        if finished <= self._finished:  # it counts anew: the next run
            self._ended += self._finished
        self._finished, self._total = finished, total
        return True

    @property
    def compiled(self) -> int:
        """Units compiled in this run."""
        return self._ended + self._finished + self._plain - self._failed

    @property
    def done(self) -> int:
        return self.earlier + self.compiled

    @property
    def total(self) -> int:
        """The number of units, as far as it is known by now."""
        return max(self._expected, self.earlier + self._ended + self._total, self.done)


def logs(source: Path) -> list[Path]:
    return sorted(source.rglob(".ninja_log"))


def entries(log: str) -> dict[str, tuple[int, int]]:
    """Return output -> (start, end) in milliseconds of its ninja run; the last line about an output counts.

    Fields are parted by tabs: start, end, time of change, output, hash of the command.
    """
    found = {}
    for line in log.splitlines():
        fields = line.split("\t")
        if len(fields) == 5 and fields[0].isdigit() and fields[1].isdigit():
            found[fields[3]] = (int(fields[0]), int(fields[1]))
    return found


def kept(source: Path) -> int:
    """Return how many objects of an earlier build exist: ninja's log lists them and the files are there."""
    return sum((log.parent / output).exists() for log in logs(source) for output in entries(_text(log)))


def seconds(source: Path) -> list[float]:
    """Return the time that each unit took, without links, the longest first."""
    times = (
        (end - start) / 1000
        for log in logs(source)
        for output, (start, end) in entries(_text(log)).items()
        if not _LINKS.search(output)
    )
    return sorted(times, reverse=True)


def flags(source: Path) -> list[str]:
    """Return the distinct lines of compiler flags in ninja's files."""
    lines: Iterable[str] = (
        line.strip()
        for log in logs(source)
        if (log.parent / "build.ninja").exists()
        for line in _text(log.parent / "build.ninja").splitlines()
        if re.match(r"\s*(cuda_)?(post_)?c?flags\s*=|\s*ldflags\s*=", line)
    )
    return sorted(set(lines))


def plain(line: str) -> str:
    """Return a line without ninja's status prefix."""
    found = _LINE.match(line)
    return found[3] if found else line


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
