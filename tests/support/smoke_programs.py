"""Programs that break the subjects of smoke checks, and their verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imagegen.run.engine import Engine
from imagegen.run.smoke import ROOT, files, spec
from tests.support.machines import Built

PROGRAMS = [Path(__file__).with_name(name) for name in ("smoke_mutations.py", "smoke_stack_mutations.py")]


def break_check(built: Built, check: str, engine: Engine, *, program: str = "smoke_mutations") -> None:
    """Run the mutations of a check in a container of the image; each must be found."""
    suite = {**files(spec(built.lock, built.declared)), **{f"{ROOT}/{p.name}": p.read_bytes() for p in PROGRAMS}}
    with engine.container(built.ref, files=suite) as container:
        outcome = container.exec(["env", "-C", ROOT, "python", "-m", program, check], timeout=600)
    assert outcome.exit_code == 0, outcome.stderr.decode()
    lines = [json.loads(line) for line in outcome.stdout.splitlines() if line.startswith(b"{")]
    assert len(lines) > 3
    judge(lines)


def judge(lines: list[dict[str, Any]]) -> None:
    """The check passes as it is, and whatever is broken in it is found by what should find it."""
    control, *mutations = lines
    assert (control["mutation"], control["found"]) == ("none", [])
    assert mutations
    for mutation in mutations:
        missed = [name for name in mutation["expected"] if not any(f.startswith(name) for f in mutation["found"])]
        assert mutation["expected"], mutation
        assert not missed, mutation
