"""The smoke checks in the real images: they pass, they notice another image, and every break in them is found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from imagegen.core.progress import Quiet
from imagegen.engine import Engine
from imagegen.run import numerics
from imagegen.run.smoke import runner as smoke_checks
from imagegen.run.smoke.runner import ROOT, files, spec
from imagegen.spec.model import Declarations
from tests.support.machines import Built, Place
from tests.support.smoke_programs import PROGRAMS, judge

pytestmark = pytest.mark.integration


GPU_CHECKS = {"cuda", "attention-cuda", "nccl", "grpo-cuda", "trl-grpo-cuda", "fabric-cuda"}


@pytest.fixture(scope="module")
def report(cpu_grpo: Built, machine: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checks of a run that requires a GPU, by name; the run fails for want of one alone."""
    junit = tmp_path_factory.mktemp("report") / "report.xml"
    done = machine.run("test", cpu_grpo.lock.cell, "--json", "--junit", str(junit), "--require-gpu", code=1)
    report = json.loads(done.stdout)
    assert report["passed"] is False
    failed = [each for each in report["checks"] if each["status"] != "pass" and each["check"] not in GPU_CHECKS]
    assert failed == []
    assert f'failures="{len(GPU_CHECKS)}"' in junit.read_text()
    return {each["check"]: each for each in report["checks"]}


def test_the_image_passes_but_for_the_gpu_that_is_required(report: dict[str, Any]) -> None:
    assert {name for name, each in report.items() if each["status"] != "pass"} == GPU_CHECKS
    assert all("a GPU is required" in report[name]["reason"] for name in GPU_CHECKS)
    assert report["grpo"]["details"]["model"] == "transformers"


def test_gpu_checks_are_skipped_by_name(engine: Engine, cpu_grpo: Built) -> None:
    found = smoke_checks.run(
        engine, cpu_grpo.ref, cpu_grpo.lock, cpu_grpo.declared, require_gpu=False, progress=Quiet(),
        only=tuple(GPU_CHECKS),
    )  # fmt: skip
    assert {each.check: (each.status, each.reason) for each in found.results} == dict.fromkeys(
        GPU_CHECKS, ("skip", "no NVIDIA GPU in this container")
    )


def numerical(engine: Engine, built: Built) -> Any:
    """Run the numerics checks, and return the details of the one that needs no GPU."""
    found = smoke_checks.run(
        engine, built.ref, built.lock, built.declared, require_gpu=False, progress=Quiet(), only=numerics.CHECKS
    )
    assert [each.status for each in found.results] == ["pass", "skip"]
    return found.results[0].details


def test_numerics_are_within_their_bounds(engine: Engine, cpu_grpo: Built) -> None:
    rows = numerical(engine, cpu_grpo)["operations"]
    assert {row["operation"] for row in rows} == {
        "matmul", "attention", "rms_norm", "softmax", "log_softmax", "all_reduce", "decoder",
    }  # fmt: skip
    assert all(row["bound"] is not None and row.get("repeatable", True) for row in rows)


@pytest.mark.slow
def test_numerics_are_equal_in_another_container(engine: Engine, cpu_grpo: Built) -> None:
    first, second = (numerics.read(numerical(engine, cpu_grpo)) for _ in range(2))
    assert first is not None
    assert first == second


@pytest.mark.slow
def test_an_image_without_transformers_trains_a_model_of_torch(engine: Engine, sb3_maskable: Built) -> None:
    found = smoke_checks.run(
        engine, sb3_maskable.ref, sb3_maskable.lock, sb3_maskable.declared, require_gpu=False, progress=Quiet(),
        only=("grpo", "sb3"),
    )  # fmt: skip
    assert {each.check: each.status for each in found.results} == {"grpo": "pass", "sb3": "pass"}
    assert {each.check: each.details for each in found.results}["grpo"]["model"] == "torch"


def test_an_image_that_is_not_its_lock_fails(engine: Engine, cpu_grpo: Built) -> None:
    wheels = tuple(wheel for wheel in cpu_grpo.lock.wheels if wheel.name != "torch")  # and with it the slow checks
    numpy = next(wheel for wheel in wheels if wheel.name == "numpy")
    wheels = tuple(replace(wheel, version="0.1") if wheel is numpy else wheel for wheel in wheels)
    other = replace(cpu_grpo.lock, wheels=wheels, axes={**cpu_grpo.lock.axes, "python": "3.12"})
    declared = Declarations({"numpy": ("numpy", "no_such_module")})
    report = smoke_checks.run(engine, cpu_grpo.ref, other, declared, require_gpu=False, progress=Quiet())
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
        pytest.param("sb3_maskable", "sb3", marks=pytest.mark.slow),
        pytest.param("cpu_grpo", "rollout", marks=pytest.mark.slow),
        pytest.param("cpu_grpo", "trl_vllm", marks=pytest.mark.slow),
    ],
)
def test_every_mutation_is_found(image: str, check: str, engine: Engine, request: pytest.FixtureRequest) -> None:
    built: Built = request.getfixturevalue(image)
    suite = {**files(spec(built.lock, built.declared)), **{f"{ROOT}/{p.name}": p.read_bytes() for p in PROGRAMS}}
    program = "smoke_stack_mutations" if check in ("rollout", "trl_vllm") else "smoke_mutations"
    with engine.container(built.ref, files=suite) as container:
        outcome = container.exec(["env", "-C", ROOT, "python", "-m", program, check], timeout=600)
    assert outcome.exit_code == 0, outcome.stderr.decode()
    lines = [json.loads(line) for line in outcome.stdout.splitlines() if line.startswith(b"{")]
    assert len(lines) > 3
    judge(lines)
