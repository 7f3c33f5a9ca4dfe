"""imagegen wheels list: show the wheels that were compiled or pulled."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import click

from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.table import Table
from imagegen.core.progress import human
from imagegen.core.text import shown
from imagegen.lock.builds import BuiltWheel
from imagegen.wheels import wheelhouse

_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


@click.command("list")
@json_option()
@pass_app
def list_wheels(app: App, *, as_json: bool) -> None:
    """List the wheels of the store: torch, Python, GPUs, size, age, key."""
    wheels = list(wheelhouse.every(app.project.store))
    if as_json:
        app.json([dataclasses.asdict(wheel) for wheel in wheels])
        return
    table = Table("wheel", "version", "torch", "python", "GPUs", "size", "made", "key")
    for wheel in wheels:
        age = _age(wheel.record.get("made"), time.time())
        size = human(wheel.size)
        table.add_row(wheel.name, wheel.version, *map(_cell, _facts(wheel)), size, age, wheel.key)
    if wheels:
        table.print(app.out)
    else:
        app.progress.say("the store has no wheels; `imagegen wheels build` compiles the source builds of a cell's lock")


def _facts(wheel: BuiltWheel) -> tuple[Any, ...]:
    """Return torch, Python and architectures of a wheel's record; None for a missing or invalid field."""
    architectures = wheel.record.get("architectures")
    gpus = " ".join(map(str, architectures)) if isinstance(architectures, list | tuple) else None
    return wheel.record.get("torch"), wheel.record.get("python"), gpus


def _cell(fact: Any) -> str:
    return shown(str(fact)) if fact else "-"


def _age(timestamp: Any, now: float) -> str:
    """Return an age as text: "3 days"."""
    if not isinstance(timestamp, int | float) or not 0 <= timestamp < 1 << 40:
        return "-"
    passed = max(0.0, now - timestamp)
    for unit, seconds in _UNITS:
        if (number := int(passed // seconds)) > 0:
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "just now"
