"""Measure commands that answer from files: processor time, elapsed time and imported modules.

    python bench/startup.py [--repeat N] [--save NAME] [--project DIR] [COMMAND...]

Each round runs every command once, so that other work on the machine affects all alike. The first round, which fills
the cache of results, is not counted. Medians; a command may fail as long as it prints no traceback.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import results

PROGRAM = (sys.executable, "-P", "-c", "from imagegen.cli.main import main; main()")
COUNT = "import sys, atexit; atexit.register(lambda: print(len(sys.modules), file=sys.stderr)); "
COMMANDS = [
    "--version",
    "--help",
    "list",
    "show cpu-grpo",
    "why cpu-grpo",
    "why torch==2.9.1 vllm==0.11.0",
    "lock cpu-grpo --check",
    "matrix",
]


def once(command: str, project: Path) -> tuple[float, float]:
    """Run a command and return its processor time and its elapsed time, in seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([*PROGRAM, *command.split()], capture_output=True, text=True, check=False, cwd=project)
    elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if "Traceback" in done.stderr:
        sys.exit(f"imagegen {command}\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, elapsed


def modules(command: str, project: Path) -> int:
    """Return how many modules the command imports."""
    *program, code = PROGRAM
    counting = [*program, COUNT + code, *command.split()]
    done = subprocess.run(counting, capture_output=True, text=True, check=False, cwd=project)
    return int(done.stderr.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", default=COMMANDS, metavar="COMMAND")
    parser.add_argument("--project", type=Path, default=Path())
    parser.add_argument("--repeat", type=int, default=9)
    results.add_option(parser)
    chosen = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed imagegen has its byte-code
    costs: dict[str, list[tuple[float, float]]] = {command: [] for command in chosen.commands}
    for round_ in range(chosen.repeat + 1):
        for command, found in costs.items():
            cost = once(command, chosen.project)
            if round_:
                found.append(cost)
    rows: list[list[results.Value]] = []
    for command, found in costs.items():
        middle = [statistics.median(column) for column in zip(*found, strict=True)]
        rows.append([f"`imagegen {command}`", *middle, modules(command, chosen.project)])
    columns = {"command": 0, "CPU s": 2, "s": 2, "modules": 0}
    results.publish(chosen.save, {"commands": results.Table(columns, rows)})


if __name__ == "__main__":
    main()
