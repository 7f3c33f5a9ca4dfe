"""The bytes that a daily puller of an image moved in a year, for several ways to share wheels among layers.

    python bench/layer_layout.py [--save NAME] [CELL]

A simulation: on each day, every package of the lock that released a version on that day is upgraded, as if nothing held
it back; so the numbers compare layouts, and are above what a project with pins moves. Days of releases are those of
`matrices/metadata/`. For a package without metadata they are drawn: a package with metadata and of the same weight (in
a layer of its own, or in a shared one) lends it its number of releases, on random days, the same for each layout. A
layer has the size that the lock records; of a shared layer, a wheel has a part in proportion to its file. Layouts by
frequency are made from the first half of the year, and all are judged in the second.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import results

from imagegen.cli.app import App
from imagegen.core.data import shipped
from imagegen.image.layers.plan import GROUPS, LayerPlan, plan
from imagegen.lock.model import Lock

DAYS = 364
Sizes = Mapping[str, float]
Days = Mapping[str, Sequence[int]]
COLUMNS = {
    "layout": 0,
    "layers of wheels": 0,
    "GB in half a year": 2,
    "to today's": 3,
    "median of days with a pull, MB": 1,
}


def releases(name: str, until: dt.date) -> list[int] | None:
    """Return the days of the year on which a package released, the first as 0; None without metadata."""
    path = shipped("matrices") / "metadata" / f"{name}.json"
    if not path.exists():
        return None
    dates = [dt.date.fromisoformat(each["uploaded"][:10]) for each in json.loads(path.read_text())["versions"].values()]
    days = {DAYS - 1 - (until - date).days for date in dates if date <= until}
    return sorted(day for day in days if day >= 0)


def sizes(lock: Lock, plans: Sequence[LayerPlan]) -> dict[str, float]:
    """Return the bytes that each wheel has in its layer."""
    recorded = {layer.name: layer.size for layer in lock.record.layers} if lock.record else {}
    found: dict[str, float] = {}
    for each in plans:
        whole = sum(wheel.file.estimate for wheel in each.wheels)
        found |= {wheel.name: recorded[each.name] * wheel.file.estimate / whole for wheel in each.wheels}
    return found


def moved(layers: Iterable[Sequence[str]], size: Sizes, days: Days) -> list[float]:
    """Return the bytes of each day of the second half on which there were any."""
    total: dict[int, float] = {}
    for layer in layers:
        changed = {day for name in layer for day in days[name] if day >= DAYS // 2}
        for day in changed:
            total[day] = total.get(day, 0) + sum(size[name] for name in layer)
    return list(total.values())


def by_hash(light: Sequence[str], count: int) -> list[list[str]]:
    """Share `count` layers among wheels by a hash of the name, as `image.layers.plan.group_of` does with GROUPS."""
    layers: list[list[str]] = [[] for _ in range(count)]
    for name in light:
        layers[int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % count].append(name)
    return [layer for layer in layers if layer]


def by_frequency(light: Sequence[str], count: int, size: Sizes, days: Days) -> list[list[str]]:
    """Share `count` layers among wheels in the order of their releases in the first half of the year.

    Each layer gets the same share of sqrt(rate * size), which evens the bytes that the layers move.
    """

    def rate(name: str) -> float:
        return (sum(day < DAYS // 2 for day in days[name]) + 0.5) / (DAYS // 2)

    ordered = sorted(light, key=lambda name: (rate(name), name))
    weight = {name: (rate(name) * size[name]) ** 0.5 for name in ordered}
    share, filled = sum(weight.values()) / count, 0.0
    layers: list[list[str]] = [[] for _ in range(count)]
    for name in ordered:
        layers[min(count - 1, int(filled / share))].append(name)
        filled += weight[name]
    return [layer for layer in layers if layer]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cell", nargs="?", default="blackwell-vllm")
    parser.add_argument("--project", type=Path, default=Path.cwd())
    results.add_option(parser)
    chosen = parser.parse_args()
    app = App(dict(os.environ), chosen.project)
    (cell,) = app.session.matrix.select(chosen.cell)
    lock = app.session.lock_files.fresh(cell)
    plans = [each for each in plan(lock) if each.wheels]
    size = sizes(lock, plans)
    until = dt.date.fromisoformat(lock.as_of[:10])
    heavy = {each.wheels[0].name for each in plans if len(each.wheels) == 1}
    known = {name: found for name in size if (found := releases(name, until)) is not None}
    draw = random.Random(20)
    days = dict(known)
    for name in sorted(size.keys() - known.keys()):
        alike = sorted(other for other in known if (other in heavy) == (name in heavy))
        days[name] = sorted(draw.sample(range(DAYS), len(known[draw.choice(alike)])))
    light = sorted(size.keys() - heavy)
    own = [[name] for name in sorted(heavy)]
    today = [*own, *by_hash(light, GROUPS)]
    layouts = {
        f"today: wheels of 10 MB alone, {GROUPS} groups by hash": today,
        "one layer of all wheels": [sorted(size)],
        "16 groups by hash": [*own, *by_hash(light, 16)],
        "40 groups by hash": [*own, *by_hash(light, 40)],
        f"{GROUPS} groups by frequency": [*own, *by_frequency(light, GROUPS, size, days)],
        "16 groups by frequency": [*own, *by_frequency(light, 16, size, days)],
        "40 groups by frequency": [*own, *by_frequency(light, 40, size, days)],
        "one layer per wheel": [[name] for name in sorted(size)],
    }
    rows: list[list[results.Value]] = []
    most = sum(moved(today, size, days))
    for name, layers in layouts.items():
        pulled = moved(layers, size, days)
        rows.append([name, len(layers), sum(pulled) / 1e9, sum(pulled) / most, statistics.median(pulled) / 1e6])
    share = sum(size[name] for name in known) / sum(size.values())
    print(f"{len(known)} of {len(size)} packages have metadata, {share:.0%} of the bytes\n")
    results.publish(chosen.save, {"layouts": results.Table(COLUMNS, rows)})


if __name__ == "__main__":
    main()
