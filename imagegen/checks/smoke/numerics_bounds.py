"""Measure the differences of the smoke check `numerics` over seeds, and print them as rows of smoke.bounds.BOUNDS.

    python -m smoke.numerics_bounds cpu|cuda SEEDS SOURCE [vllm|sglang]

With the name of an engine, the engine is started once and scores the sequences of every seed. SOURCE is where the rows
come from, as a reader finds it. Standard error has the least and the largest difference of each row.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from contextlib import ExitStack, redirect_stdout

import torch
from smoke.checks import numerics
from smoke.operations import OPERATIONS

REDUCED = 3  # seeds for all-reduce, whose processes take seconds to start


def main(device: str, seeds: str, source: str, engine: str = "") -> None:
    if device == "cpu":
        torch.set_num_threads(1)  # as the check does
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # each step prints a line
        running = None
        for seed in range(int(seeds)):
            measured = numerics.Measurement(device, seed)
            for operation in OPERATIONS:
                numerics.measure(operation, measured)
            if seed < REDUCED:
                numerics.all_reduce(measured)
            models = numerics.trainer(measured)
            if engine:
                running = running or stack.enter_context(numerics.started(engine, models["transformers"]))
                numerics.engine(engine, running, models, measured)
            for row in measured.operations:
                found[row["operation"], row["dtype"]].append(row["largest_relative"])
            for row in measured.pairs:
                if row["operation"] == "decoder":  # of the others, both are judged by the reference
                    found["decoder pair", row["dtype"]].append(row["largest_relative"])
    today = time.strftime("%Y-%m-%d", time.gmtime())
    for (operation, dtype), numbers in sorted(found.items()):
        row = (measured.bound_device, operation, dtype, float(f"{max(numbers):.2g}"), source, today)
        print(f"    Bound{row!r},".replace("'", '"'))
        print(f"{operation}, {dtype}: {min(numbers):.1e} to {max(numbers):.1e} in {len(numbers)}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
