"""The overrides of a cell, compared with what its packages require."""

from __future__ import annotations

from collections.abc import Iterable

from imagegen.core.errors import LockError
from imagegen.plan.lock.file import LockErrors
from imagegen.plan.lock.resolve import Pinned
from imagegen.plan.matrix.model import Cell


def require_used(cell: Cell, found: Iterable[Pinned]) -> None:
    """Raise LockError for each override of a package that no found package requires."""
    required = {each.name for each in found if each.via}
    unused = [
        LockError(
            f'"{each.package}" overrides nothing',
            code="lock-unused-override",
            where=cell.override_places.get(each.package),
            why=f"no package of this cell requires {each.package}",
            fix="remove it from `overrides`" + ("" if each.specifier is None else ", or add it to `components`"),
        )
        for each in cell.overrides
        if each.package not in required
    ]
    if len(unused) > 1:
        raise LockErrors(unused)
    if unused:
        raise unused[0]
