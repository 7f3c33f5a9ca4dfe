"""Resolve a cell to a lock: uv's resolution, the choice of wheels, source builds."""

from imagegen.wheels.resolve.candidates import LocalWheelSelector, WheelSelector, uncatalogued
from imagegen.wheels.resolve.make import gpus_of, lock_cell, parse_as_of

__all__ = ["LocalWheelSelector", "WheelSelector", "gpus_of", "lock_cell", "parse_as_of", "uncatalogued"]
