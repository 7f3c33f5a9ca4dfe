"""Run the check `fabric-cuda` with each transport between the GPUs of one host; runs where the suite runs, on 2+ GPUs.

In an image, beside the package `smoke`:   python -m smoke_fabric spec.json

The transports are chosen by NCCL's own variables, as its user guide has them ("Environment Variables"). Prints one JSON
line for each: the variables, the expected transport, those that NCCL's log names, the notes, the bus bandwidth in GB/s
for each size, and the seconds. The exit code is 1 where a run took another transport.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from smoke import runner
from smoke.table import CHECKS

OFF = {"NCCL_P2P_DISABLE": "1"}
# Variables -> the beginning of each transport's name.
RUNS: tuple[tuple[dict[str, str], str], ...] = (
    ({}, "P2P"),
    (OFF, "SHM"),
    ({**OFF, "NCCL_SHM_DISABLE": "1"}, "NET/Socket"),
)


def main(spec: str) -> int:
    check = next(check for check in CHECKS if check.name == "fabric-cuda")
    before = dict(os.environ)
    wrong = 0
    for variables, transport in RUNS:
        os.environ.update(variables)
        result: dict[str, Any] = runner.run(check, runner.command(check, spec))
        for name in variables:
            os.environ.pop(name)
        os.environ.update(before)
        details = result["details"]
        found = details.get("nccl", {}).get("transports", {})
        same = result["status"] == "pass" and bool(found) and all(name.startswith(transport) for name in found)
        wrong += not same
        line = {
            "variables": variables,
            "expected": transport,
            "same": same,
            "transports": found,
            "notes": [note["id"] for note in details.get("notes", [])],
            "bus_bandwidth": details.get("bus_bandwidth"),
            "link": details.get("link"),
            **{key: result[key] for key in ("status", "reason", "seconds", "log") if result.get(key)},
        }
        print(json.dumps(line), flush=True)  # noqa: T201  # its output is its result
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
