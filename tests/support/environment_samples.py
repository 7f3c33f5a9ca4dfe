"""Locks of images with several environments, of small wheels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from imagegen.core.image_format import PREFIX
from imagegen.lock.environments import combine
from imagegen.lock.model import Lock, LockedEnvironment
from imagegen.spec.prefix import VENVS


def combined(locks: Mapping[str, Lock]) -> Lock:
    """Join locks by the name of their environments, of which the first is the default one."""
    default = next(iter(locks))
    names = [default, *sorted(locks.keys() - {default})]
    found = [
        LockedEnvironment(
            name,
            f"Why {name}.",
            PREFIX if name == default else f"{VENVS}/{name}",
            replace(locks[name], cell=f"{name}-cpu-py311", image=name),
        )
        for name in names
    ]
    return combine("several-cpu-py311", "several", found, None)
