"""Programs that break the subjects of smoke checks, and their verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PROGRAMS = [Path(__file__).with_name(name) for name in ("smoke_mutations.py", "smoke_stack_mutations.py")]


def judge(lines: list[dict[str, Any]]) -> None:
    """The check passes as it is, and whatever is broken in it is found by what should find it."""
    control, *mutations = lines
    assert (control["mutation"], control["found"]) == ("none", [])
    assert mutations
    for mutation in mutations:
        missed = [name for name in mutation["expected"] if not any(f.startswith(name) for f in mutation["found"])]
        assert mutation["expected"], mutation
        assert not missed, mutation
