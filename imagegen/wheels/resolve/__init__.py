"""Resolve a cell to a lock: uv's resolution, the choice of wheels, source builds."""

from typing import TYPE_CHECKING

from imagegen.core.lazy import lazy_names

if TYPE_CHECKING:
    from imagegen.wheels.resolve.candidates import LocalWheelSelector, WheelSelector, uncatalogued
    from imagegen.wheels.resolve.lock import gpus_of, lock_cell, parse_as_of
    from imagegen.wheels.resolve.options import LockOptions

__all__ = ["LocalWheelSelector", "LockOptions", "WheelSelector", "gpus_of", "lock_cell", "parse_as_of", "uncatalogued"]

__getattr__ = lazy_names(
    __name__,
    {
        "candidates": ("LocalWheelSelector", "WheelSelector", "uncatalogued"),
        "lock": ("gpus_of", "lock_cell", "parse_as_of"),
        "options": ("LockOptions",),
    },
)
