"""imagegen wheels list: the wheels that were compiled or pulled."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import click

from imagegen.cli.app import App, pass_app
from imagegen.cli.table import Table
from imagegen.core.progress import human
from imagegen.core.text import shown
from imagegen.plan.lock.built_wheel import BuiltWheel
from imagegen.wheels import wheelhouse

_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def command(app: App, *, as_json: bool) -> None:
    """List the wheels of the store: torch, Python, GPUs, size, age, key."""
    wheels = list(wheelhouse.every(app.store))
    if as_json:
        app.json([dataclasses.asdict(wheel) for wheel in wheels])
        return
    table = Table("wheel", "version", "torch", "python", "GPUs", "size", "made", "key")
    for wheel in wheels:
        made = _age(wheel.record.get("made"), time.time())
        size = human(wheel.size)
        table.add_row(wheel.name, wheel.version, *map(_cell, _facts(wheel)), size, made, wheel.key)
    if wheels:
        table.print(app.out)
    else:
        app.progress.say("no wheel is kept here: `imagegen wheels build` compiles what a cell's lock wants compiled")


def _facts(wheel: BuiltWheel) -> tuple[Any, ...]:
    """Return torch, Python and architectures of a wheel's record, as far as it has them: other programs may write
    records.
    """
    architectures = wheel.record.get("architectures")
    gpus = " ".join(map(str, architectures)) if isinstance(architectures, list | tuple) else None
    return wheel.record.get("torch"), wheel.record.get("python"), gpus


def _cell(fact: Any) -> str:
    return shown(str(fact)) if fact else "-"


def _age(made: Any, now: float) -> str:
    """Return an age as text: "3 days"."""
    if not isinstance(made, int | float) or not 0 <= made < 1 << 40:
        return "-"
    passed = max(0.0, now - made)
    for unit, seconds in _UNITS:
        if (number := int(passed // seconds)) > 0:
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "just now"
