"""Measure the judgement of all cells of the matrix, in processor time.

    python bench/grid.py [--repeat N] [--save NAME]

Each round reads the rules and the metadata anew, as a command does. Medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import results

from imagegen import spec as matrix
from imagegen.compat import (
    MetadataCache,
    ScanCache,
    check_rules,
    explain,
    load_demands,
    load_table,
    metadata,
    suggest,
)
from imagegen.compat.knowledge import Knowledge
from imagegen.core.data import shipped
from imagegen.spec.cell_facts import cell_answers
from imagegen.spec.questions import parse_question, platform_choices, vocabulary_of

T = TypeVar("T")
ASKED = ["torch==2.9.1", "vllm==0.11.0", "cuda==12.8", "gpu==sm_120", "python==3.12"]


def timed(times: dict[str, list[float]], name: str, work: Callable[[], T]) -> T:
    start = time.process_time()
    result = work()
    times.setdefault(name, []).append(time.process_time() - start)
    return result


def scanned(directories: list[Path]) -> ScanCache:
    return ScanCache(lambda package: load_demands(directories, package))


def once(directories: list[Path], times: dict[str, list[float]]) -> None:
    loaded = timed(times, "read the matrix", lambda: matrix.load(directories))
    timed(times, "check the rules against each other", lambda: check_rules(loaded.rules, loaded.places))
    library = MetadataCache(lambda package: load_table(directories, package), scanned(directories))
    timed(
        times,
        f"judge all {len(loaded.all_cells)} cells",
        lambda: cell_answers(loaded.all_cells, Knowledge(loaded.rules, library)),
    )
    fresh = MetadataCache(lambda package: load_table(directories, package), scanned(directories))
    vocabulary = vocabulary_of(loaded, metadata.names(directories))
    question = parse_question(ASKED, [], loaded, vocabulary)
    timed(times, "why, for one combination", lambda: explain(question, Knowledge(loaded.rules, fresh)))
    around = platform_choices(loaded)
    timed(times, "what is nearest to it", lambda: suggest(question, Knowledge(loaded.rules, fresh), around))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    results.add_option(parser)
    chosen = parser.parse_args()
    times: dict[str, list[float]] = {}
    for _ in range(chosen.repeat):
        once([shipped("matrices")], times)
    medians: list[list[results.Value]] = [[name, statistics.median(seconds)] for name, seconds in times.items()]
    results.publish(chosen.save, {"grid": results.Table({"what": 0, "CPU s": 2}, medians)})


if __name__ == "__main__":
    main()
