"""matrices/**/*.yaml, wheels/**/*.yaml -> Matrix: parse, validate, complete. All errors of all files come at once."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from imagegen.core import data
from imagegen.core.errors import ErrorList, MatrixError, MatrixErrors
from imagegen.core.matrix_entry import MatrixEntry
from imagegen.core.text import did_you_mean
from imagegen.spec import document as documents
from imagegen.spec.cells import Matrix
from imagegen.spec.complete import complete
from imagegen.spec.references import Entries, PlacedEntry
from imagegen.spec.schema import SECTIONS, MatrixFile
from imagegen.spec.validation_faults import explain

RECIPES = "wheels"  # a directory of this name may hold other things too
CATALOGUE = "catalogue"  # below it: data of another language, which imagegen.wheels reads
_ParsedFile = tuple[documents.YamlDocument, MatrixFile, ErrorList[MatrixError]]


def load(directories: Sequence[Path]) -> Matrix:
    """Read every YAML file below the directories; later directories add to earlier ones, or override entries openly.

    An entry that is equal to one of an earlier directory is that entry. Raises MatrixErrors with everything that is
    wrong, the first MOST errors with file, line and column.
    """
    entries: Entries = {section: {} for section in SECTIONS}
    errors: ErrorList[MatrixError] = ErrorList()
    for layer, directory in enumerate(directories):
        for file in _files(directory, errors):
            document, parsed, found_errors = _read(file, data.project_directory(directory))
            errors += found_errors
            for section in SECTIONS:
                for name, entry in getattr(parsed, section).items():
                    placed = PlacedEntry(name, _with_name(entry, name), document, (section, name), layer)
                    _add(entries[section], placed, errors)
            _remember_broken(entries, document, parsed, layer)
    _check_overrides(entries, errors)
    matrix = complete(entries, directories, errors)
    if errors:
        errors.sort(key=_order)
        raise MatrixErrors(errors)
    return matrix


def _files(directory: Path, errors: list[MatrixError]) -> list[Path]:
    unreadable: list[OSError] = []
    files: list[Path] = []
    for folder, below, names in os.walk(directory, onerror=unreadable.append):
        if Path(folder) == directory and directory.name == RECIPES and CATALOGUE in below:
            below.remove(CATALOGUE)
        files += (Path(folder, name) for name in names if name.endswith((".yaml", ".yml")))
    files.sort()
    errors += (
        MatrixError(
            "the directory cannot be read", code="matrix-unreadable", where=str(error.filename), why=error.strerror
        )
        for error in unreadable
        if not isinstance(error, FileNotFoundError)
    )
    if directory.name != RECIPES and not directory.exists():
        errors.append(
            MatrixError("no matrix here", code="matrix-missing", where=str(directory), why="the directory is missing")
        )
    return files


def _read(file: Path, project: Path | None) -> _ParsedFile:
    try:
        raw = data.read(file, project, data.MAX_SOURCE_FILE)
    except OSError as error:
        unreadable = MatrixError(
            "the file cannot be read", code="matrix-unreadable", where=str(file), why=error.strerror
        )
        return documents.YamlDocument(file, data={}), MatrixFile(), ErrorList([unreadable])
    return _parse(file, raw) if project else _parse_shipped(file, raw)


def _parse(file: Path, raw: bytes) -> _ParsedFile:
    document = documents.parse(file, raw)
    errors: ErrorList[MatrixError] = ErrorList(document.errors)
    errors.omitted = document.errors.omitted
    return document, _validate(document, errors), errors


_parse_shipped = functools.cache(_parse)  # a command that tries an entry of a project loads the matrix twice


def _validate(document: documents.YamlDocument, errors: list[MatrixError]) -> MatrixFile:
    """The file's sound entries; the others' faults go to `errors`."""
    written = document.data
    if not isinstance(written, dict):
        if written is not None:
            errors.append(
                MatrixError(
                    "a matrix file is a mapping",
                    code="matrix-malformed",
                    where=document.where(()),
                    fix=f"begin with one of {', '.join(SECTIONS)}",
                )
            )
        return MatrixFile()
    try:
        return MatrixFile.model_validate(written)
    except ValidationError as invalid:
        details = invalid.errors(include_url=False)
    errors += explain(document, details, MatrixFile)
    unsound = {tuple(detail["loc"][:2]) for detail in details}
    sound = {
        section: {name: entry for name, entry in entries.items() if (section, name) not in unsound}
        for section, entries in written.items()
        if (section,) not in unsound
    }
    return MatrixFile.model_validate(sound)


def _add(entries: dict[str, PlacedEntry], new: PlacedEntry, errors: list[MatrixError]) -> None:
    old = entries.get(new.name)
    if old and old.layer == new.layer:
        errors.append(
            MatrixError(
                f'"{new.name}" is defined twice',
                code="matrix-duplicate",
                where=new.where(),
                why=f"first at {old.where()}",
                fix="keep one of them",
            )
        )
    elif old and old.written == new.written:
        if new.path[0] == "images":  # a copy in the project makes the image the project's
            entries[new.name] = new
    elif old and not _is_override(new):
        errors.append(
            MatrixError(
                f'"{new.name}" is already defined',
                code="matrix-duplicate",
                where=new.where(),
                why=f"at {old.where()}",
                fix="choose another name, or say `override: true` in the entry to replace that one",
            )
        )
    else:
        entries[new.name] = PlacedEntry(new.name, new.entry, new.document, new.path, new.layer, replaces=old)


def _with_name(entry: Any, name: str) -> Any:
    return entry.named(name) if isinstance(entry, MatrixEntry) else entry


def _is_override(placed: PlacedEntry) -> bool:
    return placed.entry is not None and placed.written.get("override") is True


def _remember_broken(entries: Entries, document: documents.YamlDocument, parsed: MatrixFile, layer: int) -> None:
    """Add the names of faulty entries, so that references to them are not reported as unknown names."""
    if isinstance(document.data, dict):
        for section in SECTIONS:
            written = document.data.get(section)
            for name in written if isinstance(written, dict) else ():
                if name not in getattr(parsed, section):
                    entries[section].setdefault(name, PlacedEntry(name, None, document, (section, name), layer))


def _check_overrides(entries: Entries, errors: ErrorList[MatrixError]) -> None:
    for section, section_entries in entries.items():
        for placed in section_entries.values():
            if _is_override(placed) and not placed.replaces:
                where = placed.where("override")
                other_names = () if errors.is_full else (name for name in section_entries if name != placed.name)
                fix = did_you_mean(placed.name, other_names)
                errors.append(
                    MatrixError(
                        f'"{placed.name}" overrides nothing in {section}',
                        code="matrix-unknown-override",
                        where=where,
                        fix=fix,
                    )
                )


def _order(error: MatrixError) -> tuple[str, int, int, str]:
    where = error.where
    if where is None or isinstance(where, str):
        return (str(where), 0, 0, error.what)
    return (str(where.file), where.line or 0, where.column or 0, error.what)
