"""Annotations and base classes of tables in files, which pydantic validates.

pydantic is imported at the first validation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler

_MEANINGS: dict[str, str] = {}  # anchored pattern -> noun phrase that messages use in its place


class Part:
    """The base class of dataclasses that files hold: pydantic checks their annotations where it reads a file.

    A value that a program makes is not checked. The types decide strictness, because a dataclass cannot have it.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}


class ValueRange:
    """The valid range of a string or a number in an annotation, by the names of pydantic's core schemas.

    Like `Check` it stands for an annotation of pydantic, which is imported at the first validation.
    """

    def __init__(self, **limits: Any) -> None:
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return {**handler(source), "strict": True, **self._limits}


class Check:
    """A function in an annotation that returns the value to take in place of a valid one, or raises ValueError.

    With `before`, it gets the value as the file has it, which is validated afterwards.
    """

    def __init__(self, function: Callable[[Any], Any], *, before: bool = False) -> None:
        self._function, self._before = function, before

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        if self._before:
            return core_schema.no_info_before_validator_function(self._function, handler(source))
        return core_schema.no_info_after_validator_function(self._function, handler(source))


class Written:
    """The type of a field in a file, and the function that returns the field's value for one of that type."""

    def __init__(self, written: Any, convert: Callable[[Any], Any]) -> None:
        self._written, self._convert = written, convert

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._convert, handler.generate_schema(self._written))


def _refuse_key(_: Any) -> Any:
    raise ValueError("no file has this key")


class _Unwritten:
    """Makes pydantic refuse the key of a field, of whatever type, in a file."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(_refuse_key, core_schema.any_schema())


# In the annotation of a field that files do not have, since a digest of the written form does not cover it.
UNWRITTEN = _Unwritten()


def field_info(*keys: str, **options: Any) -> Any:
    """Return pydantic's `Field` for a dataclass's field with these keys in a file, the first one for writing.

    Annotations that are text are evaluated at the first validation, and pydantic is imported then.
    """
    from pydantic import AliasChoices, Field

    alias = {"alias": keys[0]} if len(keys) == 1 else {"validation_alias": AliasChoices(*keys)} if keys else {}
    return Field(**alias, **options)


EMPTY: dict[str, Any] = {"json_schema_extra": {"default": {}}}  # for a field whose default is an empty mapping


def doc(description: str, **options: Any) -> Any:
    """Return `field_info` with a description, for the JSON schema of a file and its reference page."""
    return field_info(description=description, **options)


def string(pattern: str, maximum: int | None = 100, *, meaning: str = "") -> Any:
    """Return the constraint of a string that `pattern` matches whole; `meaning`, a noun phrase, is for messages."""
    whole = f"^(?:{pattern})$"
    if meaning:
        _MEANINGS[whole] = meaning
    return ValueRange(pattern=whole, min_length=1, **({} if maximum is None else {"max_length": maximum}))


def explain_mismatch(context: Mapping[str, Any]) -> str:
    """Return the message for pydantic's error `string_pattern_mismatch` with this context."""
    pattern = context["pattern"]
    return f"must be {_MEANINGS[pattern]}" if pattern in _MEANINGS else f"must match {pattern.strip('^$')}"


def with_check(schema: Any) -> Any:
    """Return pydantic's schema of a class, extended by a call of the `check` method of each instance."""
    from pydantic_core import core_schema  # late: a value that an earlier run has parsed is not validated again

    def check(instance: Any) -> Any:
        instance.check()
        return instance

    return core_schema.no_info_after_validator_function(check, schema)
