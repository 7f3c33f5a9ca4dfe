"""The audit's verdicts beside what the loader did with the same files, as bench/audit_truth_load.py wrote it down."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from audit_truth import cases

pytestmark = pytest.mark.integration

# As docs/internals/audit-accuracy.md has them, with the reasons.
MISSED = {
    ("executorch==1.0.0", "2.8.0"),
    ("fbgemm-gpu-genai==1.3.0", "2.9.1"),
    ("fbgemm-gpu-genai==1.4.2", "2.8.0"),
    ("mooncake-transfer-engine==0.3.8", "2.13.0+cpu"),
    ("torch-memory-saver==0.0.10", "2.13.0+cpu"),
}


def test_wheels_that_load_are_not_flagged_and_hardly_any_that_do_not_is_missed() -> None:
    every = {(case.wheel, case.torch): case for case in cases()}
    assert len(every) == 195
    assert not [name for name, case in every.items() if case.flagged and not case.broken]
    assert {name for name, case in every.items() if case.broken and not case.flagged} <= MISSED
    assert all(every[name].warnings for name in MISSED)
    assert sum(case.broken for case in every.values()) == 140
