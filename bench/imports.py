"""Measure the first import in a fresh container, with imagegen's byte-code and without any.

    python bench/imports.py [TAG] [REPEAT] [MODULE...]

"Without" is the same image with another directory for byte-code (PYTHONPYCACHEPREFIX) and none written.
Files are in the page cache on both sides after the first round, which is not counted. Prints medians as Markdown.
"""

from __future__ import annotations

import os
import statistics
import sys

from imagegen.core.config import Settings
from imagegen.run.engine import Engine

WITHOUT = {"PYTHONPYCACHEPREFIX": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
PROGRAM = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def once(engine: Engine, tag: str, module: str, env: dict[str, str]) -> float:
    with engine.container(tag, ["python", "-c", PROGRAM.format(module)], env=env) as container:
        if code := container.wait(300):
            sys.exit(f"import {module}: exit code {code}\n{container.logs()[1].decode()}")
        return float(container.logs()[0])


def main(tag: str, repeat: int, modules: list[str]) -> None:
    print("| import | with byte-code | without | ratio |\n|---|---|---|---|")
    with Engine.connect(Settings.from_environment(os.environ)) as engine:
        for module in modules:
            times: dict[str, list[float]] = {"with": [], "without": []}
            for round_ in range(repeat + 1):
                for name, env in (("with", {}), ("without", WITHOUT)):
                    seconds = once(engine, tag, module, env)
                    if round_:
                        times[name].append(seconds)
            fast, slow = statistics.median(times["with"]), statistics.median(times["without"])
            print(f"| {module} | {fast:.2f} s | {slow:.2f} s | {slow / fast:.1f} |")


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "imagegen/cpu-grpo:cpu-py311",
        int(sys.argv[2]) if len(sys.argv) > 2 else 5,
        sys.argv[3:] or ["torch", "transformers.models.llama.modeling_llama", "trl.trainer.grpo_trainer"],
    )
