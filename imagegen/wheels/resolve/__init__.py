"""Resolve a cell to a lock: uv's resolution, the choice of wheels, source builds."""

from imagegen.wheels.resolve.candidates import LocalWheelSelector, WheelSelector, uncatalogued
from imagegen.wheels.resolve.lock import LockOptions, gpus_of, lock_cell, parse_as_of

__all__ = ["LocalWheelSelector", "LockOptions", "WheelSelector", "gpus_of", "lock_cell", "parse_as_of", "uncatalogued"]
