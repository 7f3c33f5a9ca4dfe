"""Files of harvested data (metadata, scans, API names, model types) below the directories of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from imagegen.core import data
from imagegen.core.errors import Location, MatrixError

if TYPE_CHECKING:
    from pydantic import ValidationError

Table = TypeVar("Table")


@contextmanager
def opened(directories: Sequence[Path], name: str) -> Iterator[tuple[bytes, Path] | None]:
    """Yield content and path of the file in the last of the directories that has it, to be parsed; None without one.

    Raises MatrixError for a file that cannot be read, and for a ValueError in the block.
    """
    file = None
    for directory in reversed(directories):
        path = directory / name
        try:
            file = data.read(path, data.project_directory(directory)), path
            break
        except FileNotFoundError:
            continue
        except OSError as error:
            raise MatrixError(
                "the file cannot be read", code="matrix-unreadable", where=Location(path), why=error.strerror
            ) from error
    try:
        yield file
    except ValueError as error:
        where = Location(file[1]) if file else None
        raise MatrixError("the file cannot be read", code="matrix-unreadable", where=where, why=str(error)) from error


def first_fault(error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Return where in a file's document the first fault is, keys and indexes from the outside in, and what it is."""
    first = min(error.errors(), key=lambda detail: detail["type"] == "missing")  # a misspelt key is two errors
    field = " > ".join(str(part) for part in first["loc"]) or "all of it"
    return first["loc"], f"{field}: {first['msg'].removeprefix('Value error, ')}"


def write(path: Path, content: bytes) -> None:
    """Replace the file at once, or leave it as it was. Raises MatrixError when it cannot be written."""
    try:
        data.write(path, content)
    except OSError as error:
        raise MatrixError(
            "the file cannot be written", code="matrix-unwritable", where=Location(path), why=error.strerror
        ) from error


@dataclass(frozen=True)
class Folder(Generic[Table]):
    """A folder of directories of matrices with a file for each package; `parse` takes content, path and package."""

    name: str
    parse: Callable[[bytes, Path, str], Table]

    def load(self, directories: Sequence[Path], package: str) -> Table | None:
        """Return the table of a package from the last directory that has one; None without one.

        Raises MatrixError for a file that cannot be read.
        """
        with opened(directories, f"{self.name}/{package}.json") as file:
            return self.parse(*file, package) if file else None

    def names(self, directories: Iterable[Path]) -> list[str]:
        """Return the packages that have a file, sorted."""
        return sorted({path.stem for directory in directories for path in (directory / self.name).glob("[!.]*.json")})

    def path_of(self, directory: Path, package: str) -> Path:
        return directory / self.name / f"{package}.json"
