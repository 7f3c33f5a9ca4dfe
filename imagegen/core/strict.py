"""The base class of pydantic's models of files. Modules that import it are imported where such a file is read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """The base class of tables that files hold: no unknown keys, no coercion, immutable."""

    # Built at the first validation: most commands validate few of the tables.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
