"""Applies unified diffs as `patch -p1` does, but to the letter: every hunk at its line, no context that differs.

Bases need not have patch or git, and a patch is locked together with its sources: what does not fit is a mistake.
Source: the unified format as POSIX diff and git-diff(1) describe it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .fail import Refused

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_UNTRIED = (b"rename from", b"copy from", b"GIT binary patch", b"Binary files")
_NOWHERE = b"/dev/null"


@dataclass(frozen=True)
class Hunk:
    start: int  # the first line of the old file that it has, from 1; 0: the old file is empty
    old: tuple[bytes, ...]  # lines with their ends
    new: tuple[bytes, ...]
    line: int  # of the patch


@dataclass(frozen=True)
class Change:
    """Of one file: None as its old path makes it, None as its new path removes it."""

    old: PurePosixPath | None
    new: PurePosixPath | None
    hunks: tuple[Hunk, ...]
    executable: bool | None  # None: the mode stays


def apply(patch: Path, into: Path) -> list[Path]:
    """Change the files below `into`; returns those that are there afterwards. Raises Refused with the patch's line."""
    changes = list(parse(patch.read_bytes(), patch.name))
    if not changes:
        raise Refused(f"{patch.name}: there is no change in it")
    return [place for change in changes if (place := _apply(change, into, patch.name))]


def parse(text: bytes, name: str) -> Iterator[Change]:
    """The changes of a patch, in its order."""
    lines = _lines(text)
    at, executable = 0, None
    while at < len(lines):
        line = lines[at]
        if line.startswith(_UNTRIED):
            raise Refused(f"{name}:{at + 1}: renames, copies and binary changes are not applied; write the whole file")
        if line.startswith((b"new file mode ", b"new mode ")):
            executable = line.strip().endswith(b"755")
        if line.startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ "):
            old, new = _path(line, name, at), _path(lines[at + 1], name, at + 1)
            at, hunks = _hunks(lines, at + 2, name)
            if (old is None and new is None) or not hunks:
                raise Refused(f"{name}:{at}: a change without a file or without a hunk")
            yield Change(old, new, hunks, executable)
            executable = None
        else:
            at += 1


def _lines(text: bytes) -> list[bytes]:
    """With their ends. Only a line feed ends a line."""
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


def _path(line: bytes, name: str, at: int) -> PurePosixPath | None:
    word = line[4:].rstrip(b"\r\n").partition(b"\t")[0]
    if word == _NOWHERE:
        return None
    path = PurePosixPath(word.decode("utf-8", "surrogateescape"))
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise Refused(f"{name}:{at + 1}: {path} is no path below a first folder (as a/setup.py)")
    return PurePosixPath(*path.parts[1:])


def _hunks(lines: list[bytes], at: int, name: str) -> tuple[int, tuple[Hunk, ...]]:
    """(the line after them, the hunks that begin at a line)."""
    hunks = []
    while at < len(lines) and (head := _HUNK.match(lines[at])):
        first = at + 1
        wanted = [int(head[2] or 1), int(head[4] or 1)]
        old: list[bytes] = []
        new: list[bytes] = []
        at += 1
        while at < len(lines) and (len(old) < wanted[0] or len(new) < wanted[1] or lines[at].startswith(b"\\")):
            sign, rest = lines[at][:1], lines[at][1:]
            if sign == b"\\":  # "\ No newline at end of file", of the line before
                _bare(lines[at - 1][:1], old, new)
            elif sign in b" \n" or lines[at] == b"\r\n":
                old.append(rest if sign == b" " else lines[at])  # editors strip the blank of an empty line
                new.append(old[-1])
            elif sign == b"-":
                old.append(rest)
            elif sign == b"+":
                new.append(rest)
            else:
                break
            at += 1
        if [len(old), len(new)] != wanted:
            raise Refused(f"{name}:{first}: the hunk has {len(old)} and {len(new)} lines, its head says {wanted}")
        hunks.append(Hunk(int(head[1]), tuple(old), tuple(new), first))
    return at, tuple(hunks)


def _bare(sign: bytes, old: list[bytes], new: list[bytes]) -> None:
    """Take the line end from what was read last."""
    if sign != b"+" and old:
        old[-1] = old[-1].rstrip(b"\n")
    if sign != b"-" and new:
        new[-1] = new[-1].rstrip(b"\n")


def _apply(change: Change, into: Path, name: str) -> Path | None:
    path = change.old or change.new
    assert path is not None  # noqa: S101 - parse refuses a change of nothing into nothing
    place = into / path
    where = f"{name}:{change.hunks[0].line}"
    if any(each.is_symlink() for each in (place, *(into / parent for parent in path.parents))):
        raise Refused(f"{where}: {path} is a link or lies behind one")
    if change.old is None and place.exists():
        raise Refused(f"{where}: {path} is to be made, but it is there already")
    if change.old is not None and not place.is_file():
        raise Refused(f"{where}: there is no file {path}")
    before = _lines(place.read_bytes()) if change.old is not None else []
    after = _changed(before, change, name)
    if change.new is None:
        place.unlink()
        return None
    if change.old is not None and change.new != change.old:
        raise Refused(f"{where}: {change.old} would become {change.new}; renames are not applied")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"".join(after))
    if change.executable is not None:
        place.chmod(0o755 if change.executable else 0o644)
    return place


def _changed(before: list[bytes], change: Change, name: str) -> list[bytes]:
    after: list[bytes] = []
    at = 0
    for hunk in change.hunks:
        start = max(hunk.start - 1, 0) if hunk.old else hunk.start  # without old lines it stands after that line
        if start < at or before[start : start + len(hunk.old)] != list(hunk.old):
            shown = b"".join(before[start : start + 1]).decode("utf-8", "replace").strip()
            path = change.old or change.new
            raise Refused(f"{name}:{hunk.line}: line {start + 1} of {path} is not what the hunk expects: {shown!r}")
        after += before[at:start] + list(hunk.new)
        at = start + len(hunk.old)
    if change.new is None and (after or before[at:]):
        raise Refused(f"{name}: {change.old} is to go, but it has more than the patch takes away")
    return after + before[at:]
