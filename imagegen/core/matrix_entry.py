"""Named entries of matrix files."""

from __future__ import annotations

from dataclasses import InitVar, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from imagegen.core.deferred import dataclass
from imagegen.core.types import Flag
from imagegen.core.validation import Part, doc, with_check

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler


@dataclass(frozen=True)
class MatrixEntry(Part):
    """The base class of a matrix file's named entries. The first field is the name, which is the entry's key there."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()  # fields that a file must have, and a program need not
    UNWRITTEN: ClassVar[tuple[str, ...]] = ()  # fields that a file cannot have

    override: InitVar[Annotated[Flag, doc("Replaces the entry of this name from an earlier directory.")]] = field(
        default=False, kw_only=True
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema: Any = handler(source)
        reference, unwritten = schema.pop("ref"), (fields(cls)[0].name, *cls.UNWRITTEN)
        written = [item for item in schema["schema"]["fields"] if item["name"] not in unwritten]
        for item in written:
            if item["name"] in cls.REQUIRED:
                item["schema"] = item["schema"]["schema"]  # without the default
        schema["schema"]["fields"] = written
        return with_check(schema) | {"ref": reference}

    def check(self) -> None:
        """Raise ValueError if the fields contradict each other."""

    def named(self, name: str) -> Self:
        """Return the entry with its name, which validation leaves out."""
        changes: dict[str, Any] = {fields(self)[0].name: name}
        return replace(self, **changes)
