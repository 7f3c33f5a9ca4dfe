"""Unified diffs, applied exactly: each line of a hunk stands in the file at the place that the hunk names.

Source of the format: POSIX.1-2024, `diff -u`; git's extended headers, as far as they say nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NOTHING = "/dev/null"
_SKIPPED = (b"diff ", b"index ", b"new file mode 100644", b"deleted file mode ", b"Index: ", b"=====")
_REFUSED = (b"GIT binary patch", b"Binary files ", b"rename ", b"copy ", b"old mode ", b"new mode ", b"new file mode ")


class PatchError(ValueError):
    """A fault of a patch at a line of its file, from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


@dataclass(frozen=True)
class Hunk:
    """Lines that take the place of others, with their ends of line. `start` counts from 0; `line` is the patch's."""

    start: int
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    line: int


@dataclass(frozen=True)
class FilePatch:
    """The hunks of one file. Without `before` the file is new, without `after` it is deleted; paths as in the diff."""

    before: str | None
    after: str | None
    hunks: tuple[Hunk, ...]
    line: int

    @property
    def path(self) -> str:
        return self.after or self.before or ""


def parse(content: bytes) -> tuple[FilePatch, ...]:
    """Return the files of a unified diff. Raises PatchError for one that is malformed, renames, or is binary."""
    lines = _split(content)
    found: list[FilePatch] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        if line.startswith(_REFUSED):
            raise PatchError(position + 1, f"{line.strip().decode(errors='replace')!r} cannot be applied")
        if not line.startswith(b"--- "):
            if line.startswith((b"@@", b"+++ ")):
                raise PatchError(position + 1, "a hunk stands before the names of its file")
            position += 1  # a header of git, or text before the diff
            continue
        if position + 1 == len(lines) or not lines[position + 1].startswith(b"+++ "):
            raise PatchError(position + 1, "the line behind it does not begin with +++")
        start = position + 1
        before, after = _path(line, start), _path(lines[start], start + 1)
        if before is None and after is None:
            raise PatchError(start, "it names no file")
        hunks, position = _hunks(lines, start + 1)
        if not hunks:
            raise PatchError(start, "the file has no hunk")
        if before and after and before != after:
            raise PatchError(start, f"it renames {before} to {after}")
        found.append(FilePatch(before, after, hunks, start))
    if not found:
        raise PatchError(1, "it has no file to change")
    return tuple(found)


def _path(line: bytes, number: int) -> str | None:
    """Return the path of a --- or +++ line, without a/ or b/; None for /dev/null. Raises PatchError."""
    text = line[4:].decode(errors="surrogateescape").rstrip("\r\n").partition("\t")[0].rstrip()
    if text == _NOTHING:
        return None
    path = re.sub(r"^[ab]/", "", text)
    if not path or path.startswith(("/", '"')) or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise PatchError(number, f"{text!r} is no path below a directory")
    return path


def _hunks(lines: Sequence[bytes], position: int) -> tuple[tuple[Hunk, ...], int]:
    """Return the hunks that begin at a position of the lines, and the position behind them."""
    found: list[Hunk] = []
    while position < len(lines) and (header := _HUNK.match(lines[position])):
        line = position + 1
        start, removed, _, added = (int(each) if each is not None else 1 for each in header.groups())
        before: list[bytes] = []
        after: list[bytes] = []
        position += 1
        while len(before) < removed or len(after) < added:
            text = lines[position] if position < len(lines) else b""
            kind, rest = text[:1], text[1:]
            if kind not in (b" ", b"-", b"+"):
                raise PatchError(min(position + 1, len(lines)), "the hunk has fewer lines than its header says")
            before += [rest] if kind != b"+" else []
            after += [rest] if kind != b"-" else []
            position += 1
            if position < len(lines) and lines[position].startswith(b"\\"):  # No newline at end of file
                ended = [side for side, is_in in ((before, kind != b"+"), (after, kind != b"-")) if is_in]
                for side in ended:
                    side[-1] = side[-1].removesuffix(b"\n")
                position += 1
        if (len(before), len(after)) != (removed, added):
            raise PatchError(line, "the hunk has other lines than its header says")
        found.append(Hunk(max(start - 1, 0) if removed else start, tuple(before), tuple(after), line))
    return tuple(found), position


def apply(patch: FilePatch, read: Callable[[str], bytes | None]) -> bytes | None:
    """Return the file's new contents, None for a deleted one; `read` gives the old ones, None where there is no file.

    Raises PatchError, with the line of the patch, where a line of the file is another than the hunk says.
    """
    content = read(patch.path)
    if (content is None) != (patch.before is None):
        raise PatchError(patch.line, f"{patch.path} is {'not there' if content is None else 'there already'}")
    lines = _split(content or b"")
    made: list[bytes] = []
    position = 0
    for hunk in patch.hunks:
        end = hunk.start + len(hunk.before)
        if hunk.start < position or end > len(lines):
            raise PatchError(hunk.line, f"{patch.path} has {len(lines)} lines, and the hunk is beyond them or overlaps")
        for offset, (there, meant) in enumerate(zip(lines[hunk.start : end], hunk.before, strict=True)):
            if there != meant:
                raise PatchError(hunk.line, f"line {hunk.start + offset + 1} of {patch.path} is another one")
        made += [*lines[position : hunk.start], *hunk.after]
        position = end
    made += lines[position:]
    if patch.after is None:
        if made:
            raise PatchError(patch.line, f"{patch.path} has lines that the patch does not delete")
        return None
    return b"".join(made)


def _split(content: bytes) -> list[bytes]:
    """Return the lines with their ends; a carriage return ends none by itself."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
