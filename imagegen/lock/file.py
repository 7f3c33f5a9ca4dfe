"""The lock file: TOML that reads well in a diff, written stably, read strictly.

Source of the format: TOML 1.0. The order and layout are ours, so that a new version of a library cannot touch every
committed lock: one table per wheel, one line per Debian package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from imagegen.core import data
from imagegen.core.errors import MOST, ErrorGroup, ErrorList, ImagegenError, Location, LockError
from imagegen.core.validation import explain_mismatch
from imagegen.lock.environments import AttachedFile, CombinedFile, EnvironmentRow, combine, locked_environments
from imagegen.lock.model import LOCK_VERSION, Lock, LockedEnvironment
from imagegen.lock.tables import to_table
from imagegen.oci.documents import canonical_json, digest_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
_HASH = "_inputs_hash"  # attribute of a lock that is not a field
_RELOCK = "restore the file from version control, or delete it and run `imagegen lock`"


class LockErrors(ErrorGroup, LockError):
    """All that is wrong with a lock file, at once."""


def raise_all(errors: Sequence[ImagegenError]) -> None:
    """Raise the error, or LockErrors with all of them, if there are any."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise LockErrors(errors)


def read(path: Path, project: Path | None = None) -> Lock:
    """Return the lock in a file, of a project. Raises LockError, or LockErrors with each fault's line."""
    return loads(read_text(path, project), path)


def read_text(path: Path, project: Path | None = None) -> str:
    """Return the text of a lock file of a project. Raises LockError if it cannot be read."""
    try:
        return data.read(path, project).decode()
    except FileNotFoundError:
        raise LockError(
            "there is no lock", code="lock-missing", where=Location(path), fix="run `imagegen lock` first"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(
            "the lock cannot be read",
            code="lock-unreadable",
            where=Location(path),
            why=getattr(error, "strerror", None) or "it is not UTF-8",
            fix=_RELOCK,
        ) from error


def loads_combined(text: str, path: Path | str = "<lock>") -> CombinedFile:
    """Return the lock file of an image with several environments in `text`; `path` is named in errors."""
    return _validated(CombinedFile, _parsed(text, path), text, path)


def _parsed(text: str, path: Path | str) -> dict[str, Any]:
    """Return the tables of a lock file of the format that this imagegen reads, less its version."""
    from imagegen.core import toml

    try:
        table = toml.loads(text)
    except toml.TomlError as error:
        where = Location(path, error.line)
        raise LockError(
            "the lock is not TOML", code="lock-malformed", where=where, why=str(error), fix=_RELOCK
        ) from error
    version = table.pop("version", None)
    if version != LOCK_VERSION or isinstance(version, bool):
        raise LockError(
            f"the lock has format {version!r}, this imagegen reads format {LOCK_VERSION}",
            code="lock-format-unsupported",
            where=Location(path, _line(text, ("version",))),
            fix="use the imagegen that wrote it, or delete the file and run `imagegen lock`",
        )
    return table


def _validated(form: type[T], table: dict[str, Any], text: str, path: Path | str) -> T:
    from pydantic import ValidationError

    try:
        value: T = _adapter(form).validate_python(table)  # type: ignore[arg-type]  # mypy: type[T] has no hash
    except ValidationError as error:
        faults: ErrorList[LockError] = ErrorList(_explain(text, path, fault) for fault in error.errors()[:MOST])
        faults.omitted = error.error_count() - len(faults)
        raise LockErrors(faults) from error
    return value


def loads(text: str, path: Path | str = "<lock>") -> Lock:
    """Return the lock in `text`; `path` is named in errors."""
    return _require_keys(_validated(Lock, _parsed(text, path), text, path), text, path)


def loads_attached(text: str, path: Path | str = "<lock>") -> Lock:
    """Return the lock in a LOCK document of `dumps_attached`; `path` is named in errors. Raises LockError."""
    table = _parsed(text, path)
    if "environment" not in table:
        return loads(text, path)
    file = _validated(AttachedFile, table, text, path)
    return _joined(file, [_require_keys(lock, text, path) for lock in file.locks], path)


def named_cells(text: str) -> tuple[str, ...]:
    """Return the cells whose locks the lock file of an image with several environments names; else none."""
    return tuple(row.cell for row in loads_combined(text).environments) if "\n[[environment]]\n" in text else ()


def loads_with(text: str, locks: Sequence[Lock], path: Path | str = "<lock>") -> Lock:
    """Return the lock in `text` with the `locks` of `named_cells`. Raises LockError if one is not the named lock."""
    return _joined(loads_combined(text, path), locks, path) if locks else loads(text, path)


def _joined(file: CombinedFile, locks: Sequence[Lock], path: Path | str) -> Lock:
    """Join locks as the file names them. Raises LockError if one is not the named lock."""
    names = [row.name for row in file.environments]
    if not locks or len(locks) != len(names) or len(set(names)) != len(names):
        raise LockError(
            "the lock contradicts itself",
            code="lock-malformed",
            where=Location(path),
            why=f"it names {len(names)} environments and has {len(locks)} locks",
            fix=_RELOCK,
        )
    locked = locked_environments(file.environments, locks)
    if other := [
        row.name for row, environment in zip(file.environments, locked, strict=True) if row != row_of(environment)
    ]:
        raise LockError(
            f"the lock of environment {other[0]} is not the one that the file names",
            code="lock-edited",
            where=Location(path),
            why="one of the two was made anew or edited, and the other was not",
            fix=f"`imagegen lock {file.cell}` joins the locks again",
        )
    return combine(file.cell, file.image, locked, file.record)


def _require_keys(lock: Lock, text: str, path: Path | str) -> Lock:
    """Return the lock. Raises LockError if the key of a source build does not match its inputs."""
    from imagegen.lock.builds import misbuilt

    if wrong := misbuilt(lock):
        position = [build.name for build in lock.builds].index(wrong[0])
        raise LockError(
            f"the key of {', '.join(wrong)} does not match the inputs of the build",
            code="lock-edited",
            where=Location(path, _line(text, ("build", position, "key"))),
            why="the lock was edited by hand; a key stands for all that decides a compiled wheel",
            fix=_RELOCK,
        )
    return lock


def write(lock: Lock, path: Path) -> None:
    """Replace the file at once, or leave it as it was. Raises LockError when it cannot be written."""
    try:
        data.write(path, dumps(lock).encode())
    except OSError as error:
        raise LockError(
            "the lock cannot be written", code="lock-unwritable", where=Location(path), why=str(error)
        ) from error


def dumps(lock: Lock) -> str:
    """Return the lock file's text; equal locks give equal text.

    Raises LockErrors for a lock that could not be read back.
    """
    head = f"# What image {lock.image} is made of, cell {lock.cell}: written by `imagegen lock`, not by hand.\n"
    if lock.has_several:
        head += "# `lock` is the digest of what the lock of that cell pins; the first environment is the default.\n"
    else:
        head += "# Sizes are bytes; `path` is a hint for where an index keeps the file, its sha256 decides.\n"
    text = head + "\n".join(render_table(lock_table(lock), ())) + "\n"
    (loads_combined if lock.has_several else loads)(text, f"lock of {lock.cell}")
    return text


def dumps_attached(lock: Lock) -> str:
    """Return the text of a LOCK document, the lock file and, with several environments, the locks of their cells.

    Raises LockErrors for a lock that could not be read back.
    """
    if not lock.has_several:
        return dumps(lock)
    locked = [lock_table(replace(environment.lock, record=None)) for environment in lock.environments]
    for table in locked:
        del table["version"]
    text = "\n".join(render_table(lock_table(lock) | {"locked": locked}, ())) + "\n"
    loads_attached(text, f"lock of {lock.cell}")
    return text


def lock_table(lock: Lock | CombinedFile) -> dict[str, Any]:
    """Return the file's tables, without wheels that a source build made, since the file has the build."""
    if isinstance(lock, CombinedFile):
        return {"version": LOCK_VERSION, **to_table(lock)}
    if lock.has_several:
        rows = tuple(map(row_of, lock.environments))
        return lock_table(CombinedFile(cell=lock.cell, image=lock.image, environments=rows, record=lock.record))
    wheels = tuple(wheel for wheel in lock.wheels if wheel.build is None)
    return {"version": LOCK_VERSION, **to_table(replace(lock, wheels=wheels))}


def row_of(environment: LockedEnvironment) -> EnvironmentRow:
    """Return the row of an environment in the lock file of its image."""
    digest = inputs_hash(environment.lock)
    return EnvironmentRow(environment.name, environment.lock.cell, environment.because, digest)


@cache
def _adapter(form: type[Any]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # late, as above: a lock that an earlier run has parsed is not validated again

    return TypeAdapter(form)


def inputs_hash(lock: Lock | CombinedFile) -> str:
    """Return the digest of the lock without its record, for labels and tags. It is cached on the lock."""
    attributes: dict[str, str] = vars(lock)
    if _HASH not in attributes:
        attributes[_HASH] = digest_of(canonical_json(lock_table(replace(lock, record=None))))
    return attributes[_HASH]


def local_tags(lock: Lock) -> tuple[str, str]:
    """Return the tags in an engine: a mutable one that users type, and an immutable one with the inputs' hash."""
    repository = f"imagegen/{lock.image}"
    axes = lock.cell.removeprefix(f"{lock.image}-")
    return f"{repository}:{axes}", f"{repository}:{axes}-{inputs_hash(lock).removeprefix('sha256:')[:12]}"


def contents_hash(lock: Lock) -> str:
    """Return the inputs hash with the bytes of compiled wheels: one key may have given others on another machine."""
    wheels = [wheel for environment in lock.environments for wheel in environment.lock.wheels]
    compiled = [[wheel.name, wheel.file.sha256] for wheel in wheels if wheel.build]
    return digest_of(json.dumps([inputs_hash(lock), compiled]).encode()) if compiled else inputs_hash(lock)


def render_table(table: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: plain values first, then its tables, then its arrays of tables."""
    for key, value in table.items():
        if _is_rows(key, value):
            yield from (f"{_key(key)} = [", *(f"  {_inline(row)}," for row in value), "]")
        elif not isinstance(value, dict) and not _is_tables(value):
            yield f"{_key(key)} = {render_value(value)}"
    for key, value in table.items():
        header = ".".join(_key(part) for part in (*prefix, key))
        if isinstance(value, dict):
            yield from ("", f"[{header}]", *render_table(value, (*prefix, key)))
        elif _is_tables(value) and not _is_rows(key, value):
            for item in value:
                yield from ("", f"[[{header}]]", *render_table(item, (*prefix, key)))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _is_rows(key: str, value: object) -> bool:
    """Long lists of small records take one line each."""
    return key in ("archives", "debs", "files", "layers") and _is_tables(value)


def _inline(row: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{_key(key)} = {render_value(value)}" for key, value in row.items()) + " }"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else render_value(key)


def render_value(value: object) -> str:
    """Return a value as TOML. Raises TypeError for a value that no lock has."""
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(render_value(item) for item in value) + "]"
    raise TypeError(f"a lock holds no {type(value).__name__}")


def _explain(text: str, path: Path | str, fault: Any) -> LockError:
    loc: tuple[str | int, ...] = tuple(part for part in fault["loc"] if not str(part).startswith("."))
    why = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch":
        why = explain_mismatch(fault["ctx"])
    shown = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    if fault["type"] == "unexpected_keyword_argument":
        message, why = f"unknown key {shown!r}", "this format has no such key"
    elif fault["type"] == "missing":
        message, why = f"key {shown!r} is missing", "every lock has it"
    else:
        message = f"{shown!r} is not valid" if shown else "the lock contradicts itself"
    location = loc[:-1] if fault["type"] == "missing" else loc
    return LockError(message, code="lock-malformed", where=Location(path, _line(text, location)), why=why, fix=_RELOCK)


def _line(text: str, loc: tuple[str | int, ...]) -> int | None:
    """Return the line number of a value in a file laid out as `dumps` lays it out; None if it cannot be found."""
    lines = text.splitlines()
    line, number = None, 0
    for position, part in enumerate(loc):
        if isinstance(part, int):
            continue
        turn = loc[position + 1] if position + 1 < len(loc) else 0
        count = turn if isinstance(turn, int) else 0
        pattern = re.compile(rf'\[{{1,2}}(\S+\.)?"?{re.escape(part)}"?\]{{1,2}}\s*$|\s*"?{re.escape(part)}"?\s*=')
        for index in range(number, len(lines)):
            if pattern.match(lines[index]):
                if lines[index].startswith("[[") and count:
                    count -= 1
                    continue
                if lines[index].endswith("= ["):
                    return index + count + 2
                line, number = index + 1, index
                break
        else:
            break
    return line
