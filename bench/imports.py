"""Measure the first import in a fresh container, with imagegen's byte-code and without any.

    python bench/imports.py [--repeat N] [--save NAME] [TAG] [MODULE...]

"Without" is the same image with another directory for byte-code (PYTHONPYCACHEPREFIX) and none written.
Files are in the page cache on both sides after the first round, which is not counted. Medians of seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

import results

from imagegen.core.config import Settings
from imagegen.engine import Engine

WITHOUT = {"PYTHONPYCACHEPREFIX": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
PROGRAM = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


MODULES = ["torch", "transformers.models.llama.modeling_llama", "trl.trainer.grpo_trainer"]


def once(engine: Engine, tag: str, module: str, env: dict[str, str]) -> float:
    with engine.container(tag, env=env) as container:
        ended = container.exec(["python", "-c", PROGRAM.format(module)], timeout=300)
    if ended.exit_code:
        sys.exit(f"import {module}: exit code {ended.exit_code}\n{ended.stderr.decode()}")
    return float(ended.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag", nargs="?", default="imagegen/cpu-grpo:cpu-py311")
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--repeat", type=int, default=5)
    results.add_option(parser)
    chosen = parser.parse_args()
    rows: list[list[results.Value]] = []
    with Engine.connect(Settings.from_environment(os.environ)) as engine:
        for module in chosen.modules:
            times: dict[str, list[float]] = {"with": [], "without": []}
            for round_ in range(chosen.repeat + 1):
                for name, env in (("with", {}), ("without", WITHOUT)):
                    seconds = once(engine, chosen.tag, module, env)
                    if round_:
                        times[name].append(seconds)
            fast, slow = statistics.median(times["with"]), statistics.median(times["without"])
            rows.append([module, fast, slow, slow / fast])
    columns = {"import": 0, "with byte-code": 2, "without": 2, "ratio": 1}
    results.publish(chosen.save, {chosen.tag: results.Table(columns, rows)})


if __name__ == "__main__":
    main()
