"""The doctor's report: facts, checks and findings, as text or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from . import formatting, snapshot, table
from .model import Finding, Image, Machine
from .probe import probe


def main(image: Image, arguments: Sequence[str]) -> int:
    """Run the checks, print the report, return the exit code: 1 for an error, 64 for unknown arguments."""
    if list(arguments) not in ([], ["--json"]):
        print("usage: /opt/imagegen/doctor [--json]")
        return 64
    machine = snapshot.gather(os.environ, snapshot.begin(os.environ))
    if machine.driver or machine.devices:
        machine = machine._replace(probe=probe(os.environ))
    findings = table.examine(image, machine)
    if arguments:
        print(json.dumps(as_dict(image, machine, findings), indent=2, sort_keys=True))
    else:
        print(f"{formatting.headline(image)} on {formatting.hardware(image, machine)}")
        print(formatting.table(table.rows(image, machine, findings), findings), end="")
    return int(any(finding.severity == "error" for finding in findings))


def as_dict(image: Image, machine: Machine, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the report as {"cell", "machine", "checks", "findings"}. It has no environment, which may hold secrets."""
    shown = machine._asdict()
    del shown["environ"]
    shown |= {name: [each._asdict() for each in shown[name]] for name in ("gpus", "libraries")}
    shown["probe"] = machine.probe and machine.probe._asdict()
    return {
        "cell": image.cell or None,
        "machine": {**shown, "writable": dict(machine.writable)},
        "checks": [row._asdict() for row in table.rows(image, machine, findings)],
        "findings": [finding._asdict() for finding in findings],
    }
