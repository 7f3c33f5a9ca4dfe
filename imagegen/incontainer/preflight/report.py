"""The doctor's own words: facts, checks and findings, for people or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from . import snapshot, table, words
from .model import Finding, Image, Machine
from .probe import probe


def main(image: Image, arguments: Sequence[str]) -> int:
    """Look, print, and return the exit code: 1 where something is an error, 64 for arguments that it does not know."""
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
        print(f"{words.headline(image)} on {words.hardware(image, machine)}")
        print(words.table(table.rows(image, machine, findings), findings), end="")
    return int(any(finding.severity == "error" for finding in findings))


def as_dict(image: Image, machine: Machine, findings: Sequence[Finding]) -> dict[str, Any]:
    """For JSON: {"cell", "machine", "checks", "findings"}. The environment stays out: it may hold secrets."""
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
