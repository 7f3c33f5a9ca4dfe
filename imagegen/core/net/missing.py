"""Files that no source gave, from whichever step: one error names them all, so that they can be brought in one go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagegen.core.errors import FetchError
from imagegen.core.text import counted

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Missing:
    """A file that a lock names and the store lacks.

    `tried` has for each source why it did not give the file; `fix` is the remedy for files of this kind.
    """

    filename: str
    sha256: str
    tried: tuple[str, ...]
    fix: str


class MissingFiles(FetchError):
    """All files that could not be fetched; those with the same reasons are grouped."""

    code = "fetch-files-missing"

    def __init__(self, files: Iterable[Missing], store: Path) -> None:
        self.files = tuple(sorted(files, key=lambda file: file.filename))
        self.store = store
        groups: dict[tuple[str, ...], list[Missing]] = {}
        for file in self.files:
            groups.setdefault(file.tried, []).append(file)
        lines: list[str] = []
        for tried, group in groups.items():
            lines += [f"{file.filename} ({file.sha256[:12]}…)" for file in group]
            lines += [f"  - {reason}" for reason in tried or ("not asked for: the build ended before",)]
        fixes = [
            *dict.fromkeys(file.fix for file in self.files),
            f"or copy into {store} what another machine's store has",
        ]
        super().__init__(
            f"{counted(len(self.files), 'file')} of the lock cannot be had",
            why="tried for each:" + "".join(f"\n    {line}" for line in lines),
            fix="\n       ".join(fixes),
        )

    def also(self, other: Iterable[Missing]) -> MissingFiles:
        """Return this error with further missing files; a file that is listed already keeps its reasons."""
        present = {file.sha256 for file in self.files}
        return MissingFiles([*self.files, *(file for file in other if file.sha256 not in present)], self.store)
