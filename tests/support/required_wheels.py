"""A required wheel, the tags of its target, and choices among files."""

from __future__ import annotations

from collections.abc import Sequence

from imagegen.core.wheel_target import WheelTarget
from imagegen.wheels.find import Candidate
from imagegen.wheels.naming import WheelRequirement

TARGET = WheelTarget("3.11", "x86_64", 36)
NEED = WheelRequirement("flash-attn", "2.8.3", "3.11", TARGET.uv_platform, TARGET.ranks, "2.11.0", "13.0")
TAGS = "cp311-cp311-linux_x86_64.whl"


def choice(found: Sequence[Candidate]) -> Candidate:
    """The first that fits, as a lock takes it."""
    return next(each for each in found if each.fits)
