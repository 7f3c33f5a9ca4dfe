"""The tables of a lock file: dataclasses whose annotations pydantic validates on reading, and their serialization.

A lock that a program makes is validated when it is written. Keys are names of fields with dashes. A field whose alias
begins with a dot has no table of its own: its keys are in its owner's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

from pydantic import ConfigDict, model_validator
from pydantic.fields import FieldInfo

from imagegen.core.types import Part


class LockTable(Part):
    """The base class of a lock's dataclasses; dataclasses within them, as RemoteImage, get this configuration."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", alias_generator=lambda name: name.replace("_", "-")
    )

    def finish(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return the table as a file has it, where that differs from the fields."""
        return table


def inline(*, required: bool = False, **parts: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return a function that moves the keys of inlined fields, by field, into tables under the fields' aliases.

    Where none of its keys is given, a `required` field gets an empty table: errors then name the keys.
    """

    def nest(table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        if hidden := [key for key in table if str(key).startswith(".")]:
            raise ValueError(f"unknown key {hidden[0]!r}")
        moved = {f".{name}": {key: table[key] for key in keys if key in table} for name, keys in parts.items()}
        inlined = {key for keys in parts.values() for key in keys}
        return {key: value for key, value in table.items() if key not in inlined} | {
            alias: inner for alias, inner in moved.items() if inner or required
        }

    return nest


def inlined(*, required: bool = False, **parts: tuple[str, ...]) -> Any:
    """Return `inline(...)` as a validator of a class."""
    return model_validator(mode="before")(staticmethod(inline(required=required, **parts)))


def to_table(value: Any) -> Any:
    """Return what TOML holds for a value of a lock, less fields with their default; mappings are sorted."""
    if is_dataclass(value) and not isinstance(value, type):
        table: dict[str, Any] = {}
        for name, key, default in _keys(type(value)):
            item = getattr(value, name)
            if item is not None and item != default:
                table |= to_table(item) if key.startswith(".") else {key: to_table(item)}
        return value.finish(table) if isinstance(value, LockTable) else table
    if isinstance(value, Mapping):
        return {key: value[key] for key in sorted(value)}
    return [to_table(each) for each in value] if isinstance(value, tuple | list) else value


@cache
def _keys(table: type) -> list[tuple[str, str, Any]]:
    """Return name, key and default of each field that a file holds, in the file's order."""
    hints = get_type_hints(table, include_extras=True)
    found = []
    for each in fields(table):
        info = next((part for part in get_args(hints[each.name]) if isinstance(part, FieldInfo)), FieldInfo())
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if info.init is not False:
            found.append((each.name, info.alias or each.name.replace("_", "-"), default))
    return found
