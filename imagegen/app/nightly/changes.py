"""The changelog of updates, accepted and rejected: `locks/CHANGES.md`, and the same as data.

A section is about one cell on one day. It names the lock inputs at its start and end, so that another run on the same
day can distinguish the same step from a further one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from imagegen.app.nightly.propose import Proposal, RejectedUpdate
from imagegen.core import data
from imagegen.core.errors import Location, LockError
from imagegen.core.text import shown
from imagegen.lock import inputs_hash

FILE = "CHANGES.md"
_HEAD = "# What moved in the locks, and why\n\nWritten by `imagegen nightly`; the newest day comes first.\n"
_TITLE = re.compile(r"## (\d{4}-\d\d-\d\d) (\S+)")
_STEP = re.compile(r"<!-- (\S+) to (\S+) -->")
_MARKUP = re.compile(r"([\\`*<\[])")  # characters with a meaning in Markdown


@dataclass(frozen=True)
class ChangelogSection:
    """An entry of the changelog. `start` and `end` are inputs, 8 hex digits, "nothing" without an
    earlier lock. `lines` are Markdown.
    """

    date: str
    cell: str
    start: str
    end: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        head = [f"## {self.date} {self.cell}", "", f"<!-- {self.start} to {self.end} -->", ""]
        return "\n".join([*head, *(f"- {line}" for line in self.lines)]) + "\n"

    @property
    def text(self) -> str:
        """The section for a terminal, without markup."""
        return "\n".join([f"{self.date} {self.cell}", *(f"  {plain(line)}" for line in self.lines)]) + "\n"


def section(proposal: Proposal, moved: Sequence[str]) -> ChangelogSection:
    """Return the changelog section of a proposal; `moved` are sentences about the difference between the two locks."""
    before = proposal.file or proposal.before
    start = short_inputs(inputs_hash(before)) if before else "nothing"
    lines = [*moved, *(rejection(rejected) for rejected in proposal.rejected)]
    escaped = tuple(_MARKUP.sub(r"\\\1", shown(" ".join(line.split()))) for line in lines)
    return ChangelogSection(
        proposal.as_of[:10], proposal.cell.id, start, short_inputs(inputs_hash(proposal.after)), escaped
    )


def plain(line: str) -> str:
    """Return a line of a section without the escapes of Markdown."""
    return re.sub(r"\\" + _MARKUP.pattern, r"\1", line)


def rejection(rejected: RejectedUpdate) -> str:
    """Return the sentence that explains why a release is not taken."""
    newer = f", not {rejected.newer}" if rejected.newer else ""
    return f"{rejected.name} stays {rejected.stays}{newer}: {rejected.reason}"


def rejected_in(section: ChangelogSection) -> tuple[RejectedUpdate, ...]:
    """Return the rejected updates of a section, parsed from the sentences of `rejection`."""
    return tuple(update for line in section.lines if (update := _parse_rejection(plain(line))))


def _parse_rejection(sentence: str) -> RejectedUpdate | None:
    name, _, statement = sentence.partition(" stays ")
    versions, colon, reason = statement.partition(": ")
    stays, _, newer = versions.partition(", not ")
    return RejectedUpdate(name, stays, newer, reason) if name and stays and colon else None


def as_dict(proposal: Proposal, moved: Sequence[str]) -> dict[str, Any]:
    """Return the proposal as a JSON-serializable dict."""
    return {
        "cell": proposal.cell.id,
        "as_of": proposal.as_of,
        "changed": proposal.changed,
        "moved": list(moved),
        "held": [asdict(rejected) for rejected in proposal.rejected],
    }


def add(path: Path, new: ChangelogSection) -> None:
    """Insert a section into the changelog file, atomically.

    It replaces a section of the same date and cell. Where that section ends at the lock at which the new one begins,
    the new one also gets its lines, except those about rejected updates. Raises LockError for a file of another form.
    """
    try:
        sections = list(read(data.read(path, path.parent.parent).decode(), path))
    except FileNotFoundError:
        sections = []
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(
            "the changes cannot be read", code="lock-changelog-invalid", where=str(path), why=str(error)
        ) from error
    olds = [
        section_of_file
        for section_of_file in sections
        if (section_of_file.date, section_of_file.cell) == (new.date, new.cell)
    ]
    for old in olds:
        if old.end == new.start:
            earlier = [line for line in old.lines if line not in new.lines and " stays " not in line]
            new = ChangelogSection(new.date, new.cell, old.start, new.end, (*new.lines, *earlier))
    other_sections = [section_of_file for section_of_file in sections if section_of_file not in olds]
    data.write(path, dumps([new, *other_sections]).encode())


def dumps(sections: Iterable[ChangelogSection]) -> str:
    """Return the changelog text: newest date first, the cells of one date sorted by name."""
    by_cell = sorted(sections, key=lambda item: item.cell)
    return "\n".join([_HEAD, *map(str, sorted(by_cell, key=lambda item: item.date, reverse=True))])


def read(text: str, path: Path | str = FILE) -> tuple[ChangelogSection, ...]:
    """Parse the sections of a changelog. Raises LockError for another form."""
    sections: list[ChangelogSection] = []
    title: re.Match[str] | None = None
    body: list[str] = []
    step: re.Match[str] | None = None

    def end() -> None:
        if title and step:
            sections.append(ChangelogSection(title[1], title[2], step[1], step[2], tuple(body)))

    for number, line in enumerate(text.removeprefix(_HEAD).splitlines(), 1 + _HEAD.count("\n")):
        if head := _TITLE.fullmatch(line):
            end()
            title, step, body = head, None, []
        elif title and (match := _STEP.fullmatch(line)):
            step = match
        elif step and line.startswith("- "):
            body.append(line.removeprefix("- "))
        elif line:
            raise LockError(
                "the changes are not as imagegen writes them",
                code="lock-changelog-invalid",
                where=Location(path, number),
                why=f"{line[:60]!r} stands where a section, its step or a point of it should",
                fix="restore the file from version control, or delete it, and imagegen writes it again",
            )
    end()
    return tuple(sections)


def short_inputs(inputs: str) -> str:
    return inputs.removeprefix("sha256:")[:8]
