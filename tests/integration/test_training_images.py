"""The training images for real, from an empty store: 4 to 5 GB of wheels each, and 20 GB of disk meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.core.progress import Quiet
from imagegen.engine import Engine
from imagegen.run.smoke.report import SmokeReport
from imagegen.run.smoke.runner import ROOT, files, run, spec
from tests.support.container_shell import Shell
from tests.support.machines import Built, Place, built_in
from tests.support.smoke_programs import PROGRAMS, judge

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module", params=["blackwell-vllm", "blackwell-sglang"])
def image(request: pytest.FixtureRequest, machine: Place, shared: Path, engine: Engine) -> Iterator[Built]:
    built = built_in(machine, request.param, shared / request.param)
    shutil.rmtree(machine.root / request.param)
    yield built
    Shell(engine, built.ref).docker("rmi", built.ref, built.ref.rpartition("-")[0])


@pytest.fixture(scope="module")
def report(image: Built, engine: Engine) -> SmokeReport:
    return run(engine, image.ref, image.lock, image.declared, require_gpu=False, progress=Quiet())


def test_it_is_the_recorded_image(image: Built) -> None:
    assert image.lock.record is not None
    assert image.digest == image.lock.record.digest


def test_it_passes_and_its_gpu_checks_are_skipped_by_name(image: Built, report: SmokeReport) -> None:
    assert {result.check: (result.reason, result.log) for result in report.results if result.failed} == {}
    skipped = {result.check for result in report.results if result.status == "skip"}
    rollout = "rollout-vllm" if "vllm" in image.lock.image else "rollout-sglang"
    cuda = {
        f"{name}-cuda"
        for name in ("attention", "fabric", "flashinfer", "grpo", "megatron", "toolkit", "triton", "trl-grpo")
    }
    verl = {f"verl-{name}" for name in ("grpo", "gspo", "lora", "grpo-2gpu")}
    assert skipped == {*cuda, *verl, "cuda", "nccl", rollout}
    passed = {result.check for result in report.results if result.status == "pass"}
    of_the_stack = {"toolkit", "triton", "flashinfer", "verl", "verl-config", "megatron"}
    assert passed >= {"imports", "grpo", "checkpoint", *of_the_stack}


@pytest.mark.parametrize("check", ["toolkit", "triton", "flashinfer", "verl", "megatron"])
def test_every_mutation_is_found(image: Built, engine: Engine, check: str) -> None:
    suite = {**files(spec(image.lock, image.declared)), **{f"{ROOT}/{p.name}": p.read_bytes() for p in PROGRAMS}}
    with engine.container(image.ref, files=suite) as container:
        outcome = container.exec(["env", "-C", ROOT, "python", "-m", "smoke_stack_mutations", check], timeout=1800)
    assert outcome.exit_code == 0, outcome.stderr.decode()
    judge([json.loads(line) for line in outcome.stdout.splitlines() if line.startswith(b"{")])
