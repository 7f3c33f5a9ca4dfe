"""matrices/**/*.yaml, wheels/**/*.yaml -> Matrix: parse, validate, complete. All errors of all files come at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from imagegen import data
from imagegen.errors import MatrixError, MatrixErrors
from imagegen.matrix import document as documents
from imagegen.matrix import metadata
from imagegen.matrix.cells import Matrix
from imagegen.matrix.complete import complete
from imagegen.matrix.references import Entries, Found
from imagegen.matrix.schema import SECTIONS, MatrixFile
from imagegen.text import did_you_mean

RECIPES = "wheels"  # a directory of this name may hold other things too
CATALOGUE = "catalogue"  # below it: data of another language, which imagegen.wheels reads


def load(directories: Sequence[Path]) -> Matrix:
    """Read every YAML file below the directories; later directories add to earlier ones, or override entries openly.

    Raises MatrixErrors with everything that is wrong, each error with file, line and column.
    """
    entries: Entries = {section: {} for section in SECTIONS}
    errors: list[MatrixError] = []
    for layer, directory in enumerate(directories):
        for file in _files(directory, errors):
            document = _read(file, errors)
            parsed = _validate(document, errors)
            for section in SECTIONS:
                for name, entry in getattr(parsed, section).items():
                    found = Found(name, entry, document, (section, name), layer)
                    _add(entries[section], found, errors)
            _remember_broken(entries, document, parsed, layer)
    _check_overrides(entries, errors)
    matrix = complete(entries, directories, errors)
    if errors:
        errors.sort(key=_order)
        raise MatrixErrors(list(errors))
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
        MatrixError("the directory cannot be read", where=str(error.filename), why=error.strerror)
        for error in unreadable
        if not isinstance(error, FileNotFoundError)
    )
    if not files and directory.name != RECIPES and not (directory / metadata.FOLDER).is_dir():
        errors.append(MatrixError("no matrix here", where=str(directory), why="it holds no .yaml file"))
    return files


def _read(file: Path, errors: list[MatrixError]) -> documents.Document:
    try:
        raw = data.read(file)
    except OSError as error:
        errors.append(MatrixError("the file cannot be read", where=str(file), why=error.strerror))
        return documents.Document(file, data={})
    document = documents.parse(file, raw)
    errors += document.errors
    return document


def _validate(document: documents.Document, errors: list[MatrixError]) -> MatrixFile:
    """The file's sound entries; the others' faults go to `errors`."""
    written = document.data
    if not isinstance(written, dict):
        if written is not None:
            errors.append(
                MatrixError(
                    "a matrix file is a mapping", where=document.where(()), fix=f"begin with one of {_sections()}"
                )
            )
        return MatrixFile()
    try:
        return MatrixFile.model_validate(written)
    except ValidationError as invalid:
        details = invalid.errors(include_url=False)
    errors += (error for detail in details if (error := _error(document, detail)))
    unsound = {tuple(detail["loc"][:2]) for detail in details}
    sound = {
        section: {name: entry for name, entry in entries.items() if (section, name) not in unsound}
        for section, entries in written.items()
        if (section,) not in unsound
    }
    return MatrixFile.model_validate(sound)


def _error(document: documents.Document, detail: ErrorDetails) -> MatrixError | None:
    path, kind = tuple(detail["loc"]), detail["type"]
    key = bool(path) and path[-1] == "[key]"
    path = path[:-1] if key else path
    if path in document.broken and not key:
        return None  # the parser has already said that it needs quotes
    if kind == "extra_forbidden":
        return MatrixError(
            f'unknown key "{path[-1]}"',
            where=document.where(path, key=True),
            fix=did_you_mean(str(path[-1]), _known_keys(path)) or f"known here: {', '.join(_known_keys(path))}",
        )
    if kind == "missing":
        return MatrixError(f'the key "{path[-1]}" is missing', where=document.where(path[:-1], key=True))
    name = ".".join(str(part) for part in path)
    what = detail["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        what = f"must match {detail['ctx']['pattern'].strip('^$')}"
    elif kind == "literal_error":
        what = f"{detail['input']!r} is not one of {detail['ctx']['expected']}"
    elif kind == "string_type" and isinstance(detail["input"], bool):
        what = "must be text: put it in quotes"
    key = key or isinstance(detail["input"], dict)  # a block mapping begins on the line after its name
    return MatrixError(f"{name}: {what}", where=document.where(path, key=key))


def _known_keys(path: tuple[str | int, ...]) -> list[str]:
    """The keys that the schema knows where `path` ends."""
    model: Any = MatrixFile
    parts = iter([part for part in path[:-1] if isinstance(part, str)])  # what is in a list has its place there
    for part in parts:
        annotation = model.model_fields[part].annotation
        model = _inner(annotation)
        if get_origin(annotation) is dict:
            next(parts, None)  # the entry's own name
    return list(model.model_fields)


def _inner(annotation: Any) -> Any:
    """The model inside dict[str, Model], Model | None and the like."""
    if hasattr(annotation, "model_fields"):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _inner(part))), None)


def _add(known: dict[str, Found], new: Found, errors: list[MatrixError]) -> None:
    old = known.get(new.name)
    if old and old.layer == new.layer:
        errors.append(
            MatrixError(
                f'"{new.name}" is defined twice',
                where=new.where(),
                why=f"first at {old.where()}",
                fix="keep one of them",
            )
        )
    elif old and not (new.entry and new.entry.override):
        errors.append(
            MatrixError(
                f'"{new.name}" is already defined',
                where=new.where(),
                why=f"at {old.where()}",
                fix="choose another name, or say `override: true` in the entry to replace that one",
            )
        )
    else:
        known[new.name] = Found(new.name, new.entry, new.document, new.path, new.layer, replaces=old)


def _remember_broken(entries: Entries, document: documents.Document, parsed: MatrixFile, layer: int) -> None:
    """Names whose entries are faulty are still names: nobody should read that they do not exist."""
    if isinstance(document.data, dict):
        for section in SECTIONS:
            written = document.data.get(section)
            for name in written if isinstance(written, dict) else ():
                if name not in getattr(parsed, section):
                    entries[section].setdefault(name, Found(name, None, document, (section, name), layer))


def _check_overrides(entries: Entries, errors: list[MatrixError]) -> None:
    for section, known in entries.items():
        for found in known.values():
            if found.entry and found.entry.override and not found.replaces:
                where = found.where("override")
                fix = did_you_mean(found.name, (name for name in known if name != found.name))
                errors.append(MatrixError(f'"{found.name}" overrides nothing in {section}', where=where, fix=fix))


def _order(error: MatrixError) -> tuple[str, int, int, str]:
    where = error.where
    if where is None or isinstance(where, str):
        return (str(where), 0, 0, error.what)
    return (str(where.file), where.line or 0, where.column or 0, error.what)


def _sections() -> str:
    return ", ".join(SECTIONS)
