"""Measure the judgement of all cells of the matrix.

    python bench/grid.py [REPEAT]

Each round reads the rules and the metadata anew, as a command does. Prints medians as Markdown.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from imagegen.core.data import shipped
from imagegen.plan import matrix
from imagegen.plan.matrix import metadata, scans
from imagegen.plan.rules import (
    CellAnswer,
    MetadataCache,
    PlatformChoices,
    ScanCache,
    Vocabulary,
    cell_answers,
    check_rules,
    explain,
    parse_question,
    suggest,
)

T = TypeVar("T")
ASKED = ["torch==2.9.1", "vllm==0.11.0", "cuda==12.8", "gpu==sm_120", "python==3.12"]


def timed(times: dict[str, list[float]], name: str, work: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = work()
    times.setdefault(name, []).append(time.perf_counter() - start)
    return result


def scanned(directories: list[Path]) -> ScanCache:
    return ScanCache(lambda package: scans.load(directories, package))


def once(directories: list[Path], times: dict[str, list[float]]) -> dict[str, CellAnswer]:
    loaded = timed(times, "read the matrix", lambda: matrix.load(directories))
    timed(times, "check the rules against each other", lambda: check_rules(loaded))
    library = MetadataCache(lambda package: metadata.load(directories, package), scanned(directories))
    rows = timed(times, "judge the whole grid", lambda: cell_answers(loaded.all_cells, loaded.rules, library))
    fresh = MetadataCache(lambda package: metadata.load(directories, package), scanned(directories))
    vocabulary = Vocabulary.of(loaded, metadata.names(directories))
    question = parse_question(ASKED, [], loaded, vocabulary)
    timed(times, "why, for one combination", lambda: explain(question, loaded.rules, fresh))
    around = PlatformChoices.of(loaded)
    timed(times, "what is nearest to it", lambda: suggest(question, loaded.rules, fresh, around))
    return rows


def main(repeat: int) -> None:
    times: dict[str, list[float]] = {}
    for _ in range(repeat):
        rows = once([shipped("matrices")], times)
    print(f"{len(rows)} cells\n")
    print("| what | time |\n|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {statistics.median(seconds):.2f} s |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
