"""Results of benchmarks: tables, printed as Markdown and written as JSON.

`bench/results/NAME.json` is what a program measured last with `--save NAME`; bench/report.py makes a page from these
files, bench/results/README.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
Value = str | float | None


@dataclass(frozen=True)
class Table:
    """Rows of values below `columns`: header -> decimals of its numbers. None is a value that was not measured."""

    columns: Mapping[str, int]
    rows: Sequence[Sequence[Value]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        head = [f"| {' | '.join(self.columns)} |", "|" + "---|" * len(self.columns)]
        decimals = list(self.columns.values())
        return "\n".join([*head, *(f"| {' | '.join(map(_text, row, decimals))} |" for row in self.rows)])


def _text(value: Value, decimals: int) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,.{decimals}f}"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --save."""
    parser.add_argument("--save", metavar="NAME", help="also write bench/results/NAME.json")


def publish(save: str | None, tables: Mapping[str, Table]) -> None:
    """Print the tables as Markdown. With `save`, write them to bench/results/, with the command and the machine."""
    for name, table in tables.items():
        print(f"{name}\n\n{table.markdown()}\n")
    if save:
        document = {
            "command": shlex.join(["python", *map(_public, sys.argv)]),
            "date": str(dt.datetime.now(dt.UTC).date()),
            "machine": _machine(),
            "tables": {name: {"columns": table.columns, "rows": table.rows} for name, table in tables.items()},
        }
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{save}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def read(name: str) -> tuple[dict[str, Any], dict[str, Table]]:
    """Return the document of a file of bench/results/, and its tables by name."""
    document = json.loads((FOLDER / name).read_text())
    return document, {title: Table(**each) for title, each in document["tables"].items()}


def _public(argument: str) -> str:
    """Return the argument; of an absolute path its last part, since the directories are this machine's."""
    return Path(argument).name if os.path.isabs(argument) else argument


def _machine() -> str:
    """Return processor, cores, memory, Python and load (proc(5): cpuinfo, meminfo, loadavg) in words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return (
        f"{processor or platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"{int(memory.split()[1]) * 1024 / 1e9:.0f} GB, Python {platform.python_version()}, "
        f"load {os.getloadavg()[2]:.1f}"
    )
