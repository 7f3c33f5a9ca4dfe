"""The tables of a lock file, as dataclasses that pydantic validates.

A lock that a program makes is validated when it is written. Keys are names of fields with dashes. A field whose alias
begins with a dot has no table of its own: its keys are in its owner's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_type_hints

from imagegen.core import validation
from imagegen.core.validation import Part

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler


class LockTable(Part):
    """The base class of a lock's dataclasses; dataclasses within them, as RemoteImage, get this configuration."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "alias_generator": lambda name: name.replace("_", "-"),
    }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema: Any = handler(source)
        name = schema.pop("ref")  # by which other tables refer to the whole
        if cls.nest is not LockTable.nest:
            from pydantic_core import core_schema  # as in `with_check`

            schema = core_schema.no_info_before_validator_function(cls.nest, schema)
        if cls.check is not LockTable.check:
            schema = validation.with_check(schema)
        return schema | {"ref": name}

    @staticmethod
    def nest(table: Any, /) -> Any:
        """Return the table of a file with inlined fields in tables of their own. Raises ValueError."""
        return table

    def check(self) -> None:
        """Raise ValueError where the fields contradict each other."""

    def finish(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return the table as a file has it, if that differs from the fields."""
        return table


class HashedFile:
    """The base class of files that a lock identifies by their hash."""

    sha256: str

    @property
    def digest(self) -> str:
        """The digest of the file as a blob of the store."""
        return f"sha256:{self.sha256}"


def inline(*, required: bool = False, **keys_by_field: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return a function that moves the keys of inlined fields, by field, into tables under the fields' aliases.

    Where none of its keys is given, a `required` field gets an empty table: errors then name the keys.
    """

    def nest(table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        if hidden := [key for key in table if str(key).startswith(".")]:
            raise ValueError(f"unknown key {hidden[0]!r}")
        moved = {f".{name}": {key: table[key] for key in keys if key in table} for name, keys in keys_by_field.items()}
        inlined = {key for keys in keys_by_field.values() for key in keys}
        return {key: value for key, value in table.items() if key not in inlined} | {
            alias: inner for alias, inner in moved.items() if inner or required
        }

    return nest


def to_table(value: Any) -> Any:
    """Return a value of a lock as TOML has it, without fields that have their default; mappings are sorted."""
    if is_dataclass(value) and not isinstance(value, type):
        table: dict[str, Any] = {}
        for name, key, default in _keys(type(value)):
            item = getattr(value, name)
            if item is not None and item != default:
                table |= to_table(item) if key.startswith(".") else {key: to_table(item)}
        return value.finish(table) if isinstance(value, LockTable) else table
    if isinstance(value, Mapping):
        return {key: value[key] for key in sorted(value)}
    return [to_table(row) for row in value] if isinstance(value, tuple | list) else value


@cache
def _keys(table: type) -> list[tuple[str, str, Any]]:
    """Return name, key and default of each field that a file holds, in the file's order."""
    from pydantic.fields import FieldInfo

    hints = get_type_hints(table, include_extras=True)
    rows = []
    for declared in fields(table):
        marks = get_args(hints[declared.name])
        info = next((mark for mark in marks if isinstance(mark, FieldInfo)), FieldInfo())
        default = declared.default if declared.default_factory is MISSING else declared.default_factory()
        if validation.UNWRITTEN not in marks:
            rows.append((declared.name, info.alias or declared.name.replace("_", "-"), default))
    return rows
