"""One check as a process: `python -m smoke.entry NAME SPEC` prints one JSON object as its last line."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from smoke.program import Details, Spec, answer
from smoke.table import CHECKS


def main(name: str, spec: str) -> None:
    row = next(check for check in CHECKS if check.name == name)

    def check(given: Spec) -> Details:
        # Late: where the GPU is missing nothing heavy is imported, and an import that fails is an answer too.
        return importlib.import_module(f"smoke.checks.{row.module}").check(given)

    fields = json.loads(Path(spec).read_text(encoding="utf-8"))
    same = (fields[key] for key in ("python", "prefix", "env", "versions", "imports"))
    more = (tuple(fields["gpus"]), fields["omits"], fields["modules"], fields["overrides"], fields["undeclared"])
    given = Spec(row.device, *same, *more, check=name)
    status, reason, details = answer(check, given)
    print(json.dumps({"check": name, "status": status, "reason": reason, "details": details}), flush=True)
    sys.exit(status == "fail")


if __name__ == "__main__":
    main(*sys.argv[1:])
