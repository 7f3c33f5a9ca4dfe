"""The smoke checks in the real images: they pass, they notice another image, and every break in them is found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from imagegen.core.progress import Quiet
from imagegen.plan.matrix.model import Declarations
from imagegen.run import numerics, smoke
from imagegen.run.engine import Engine
from imagegen.run.smoke import ROOT, files, spec
from tests.support.machines import Built
from tests.support.smoke_programs import PROGRAMS, judge

pytestmark = pytest.mark.integration


def test_the_image_passes_and_its_gpu_checks_are_skipped_by_name(engine: Engine, cpu_grpo: Built) -> None:
    report = smoke.run(engine, cpu_grpo.ref, cpu_grpo.lock, cpu_grpo.declared, require_gpu=False, progress=Quiet())
    failed = {result.check: (result.reason, result.log) for result in report.results if result.failed}
    assert not failed
    skipped = {result.check: result.reason for result in report.results if result.status == "skip"}
    assert skipped == dict.fromkeys(
        ["cuda", "attention-cuda", "nccl", "grpo-cuda", "trl-grpo-cuda", "fabric-cuda"],
        "no NVIDIA GPU in this container",
    )
    details = {result.check: result.details for result in report.results}
    assert details["grpo"]["model"] == "transformers"


def test_numerics_are_within_their_bounds_and_equal_in_a_second_run(engine: Engine, cpu_grpo: Built) -> None:
    reports = [
        smoke.run(
            engine, cpu_grpo.ref, cpu_grpo.lock, cpu_grpo.declared, require_gpu=False, progress=Quiet(),
            only=numerics.CHECKS,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert [[each.status for each in report.results] for report in reports] == [["pass", "skip"]] * 2
    first, second = (numerics.read(report.results[0].details) for report in reports)
    assert first is not None
    assert first == second
    operations = {operation for operation, _, _ in first.results}
    assert operations == {
        "matmul", "attention", "rms_norm", "softmax", "log_softmax", "all_reduce", "decoder",
    }  # fmt: skip
    assert all(row["bound"] is not None for row in reports[0].results[0].details["operations"])


def test_an_image_that_is_not_its_lock_fails(engine: Engine, cpu_grpo: Built) -> None:
    wheels = tuple(wheel for wheel in cpu_grpo.lock.wheels if wheel.name != "torch")  # and with it the slow checks
    numpy = next(wheel for wheel in wheels if wheel.name == "numpy")
    wheels = tuple(replace(wheel, version="0.1") if wheel is numpy else wheel for wheel in wheels)
    other = replace(cpu_grpo.lock, wheels=wheels, axes={**cpu_grpo.lock.axes, "python": "3.12"})
    declared = Declarations({"numpy": ("numpy", "no_such_module")})
    report = smoke.run(engine, cpu_grpo.ref, other, declared, require_gpu=False, progress=Quiet())
    results = {result.check: result for result in report.results}
    assert "numpy: import no_such_module: ModuleNotFoundError" in results["imports"].reason
    assert results["pip-check"].status == "pass"
    assert f"numpy {numpy.version} is installed, 0.1 is locked" in results["versions"].reason
    assert "is installed and not locked" in results["versions"].reason
    assert "the lock is for 3.12" in results["environment"].reason


@pytest.mark.parametrize(
    ("image", "check"),
    [
        ("cpu_grpo", "grpo"),
        ("cpu_grpo", "checkpoint"),
        ("cpu_grpo", "attention"),
        pytest.param("cpu_grpo", "numerics", marks=pytest.mark.slow),
        pytest.param("cpu_grpo", "collective", marks=pytest.mark.slow),
        pytest.param("cpu_grpo", "fabric", marks=pytest.mark.slow),
        ("cpu_grpo", "loading"),
        pytest.param("cpu_grpo", "trl_grpo", marks=pytest.mark.slow),
        ("sb3_maskable", "sb3"),
        pytest.param("cpu_grpo", "rollout", marks=pytest.mark.slow),
    ],
)
def test_every_mutation_is_found(image: str, check: str, engine: Engine, request: pytest.FixtureRequest) -> None:
    built: Built = request.getfixturevalue(image)
    suite = {**files(spec(built.lock, built.declared)), **{f"{ROOT}/{p.name}": p.read_bytes() for p in PROGRAMS}}
    program = "smoke_stack_mutations" if check == "rollout" else "smoke_mutations"
    with engine.container(built.ref, files=suite) as container:
        outcome = container.exec(["env", "-C", ROOT, "python", "-m", program, check], timeout=600)
    assert outcome.exit_code == 0, outcome.stderr.decode()
    lines = [json.loads(line) for line in outcome.stdout.splitlines() if line.startswith(b"{")]
    assert len(lines) > 3
    judge(lines)
