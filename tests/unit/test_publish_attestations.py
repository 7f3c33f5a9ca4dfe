"""The conditions under which an earlier report of the smoke checks holds for an image."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.checks.smoke.table import applicable
from imagegen.core.store import Store
from imagegen.lock import read
from imagegen.publish.attachments import find_attested, smoke_document
from imagegen.run.smoke import passed as smoke_reports
from imagegen.run.smoke.passed import (
    PassedSmokeReport,
    SmokeRequirement,
    find_run,
    find_saved,
    passed_report,
    save_passed_report,
    save_run,
)
from imagegen.run.smoke.report import CheckResult, SmokeConditions, SmokeReport
from imagegen.run.smoke.runner import parts
from imagegen.spec.model import Declarations
from imagegen.trust.documents import AUDIT, SMOKE, Attached, Document
from tests.support.environment_samples import combined

LOCKS = Path(__file__).parents[2] / "locks"
GPU, CPU = read(LOCKS / "blackwell-vllm-cu130-py311.toml"), read(LOCKS / "cpu-grpo-cpu-py311.toml")
IMAGE = "sha256:" + "1" * 64


def report(*, gpu: bool) -> SmokeReport:
    checks = applicable(parts(GPU))
    results = (CheckResult(each.name, "skip" if each.device == "cuda" and not gpu else "pass", 0.1) for each in checks)
    return SmokeReport(IMAGE, GPU.cell, tuple(results))


def required(*, gpu: bool = False) -> SmokeRequirement:
    return SmokeRequirement.of(IMAGE, GPU, Declarations(), require_gpu=gpu)


def proven(*, gpu: bool) -> PassedSmokeReport:
    return passed_report(report(gpu=gpu), required(), GPU)


def test_what_ran_with_a_gpu_proves_more(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert (proven(gpu=False).gpu, proven(gpu=True).gpu) == (False, True)
    save_passed_report(store, proven(gpu=False))
    assert find_saved(store, required()) == proven(gpu=False)
    assert find_saved(store, required(gpu=True)) is None
    save_passed_report(store, proven(gpu=True))
    for each in (required(), required(gpu=True)):
        assert find_saved(store, each) == proven(gpu=True)


@pytest.mark.parametrize(
    ("ran_on_gpu", "may_have_gpus", "require_gpu", "holds"),
    [
        (False, False, False, True),
        (False, True, False, False),  # a GPU is there now: the skipped checks run
        (False, False, True, False),
        (True, False, False, True),
        (True, True, True, True),
    ],
)
def test_a_run_holds_under_its_conditions(
    ran_on_gpu: bool, may_have_gpus: bool, require_gpu: bool, holds: bool, tmp_path: Path
) -> None:
    store, conditions = Store(tmp_path / "store"), SmokeConditions("engine", may_have_gpus)
    save_passed_report(store, proven(gpu=ran_on_gpu))
    assert find_run(store, required(gpu=require_gpu), conditions, GPU) is None, "it ran elsewhere"
    save_run(store, proven(gpu=ran_on_gpu), conditions, 7)
    expected = (proven(gpu=ran_on_gpu), 7) if holds else None
    assert find_run(store, required(gpu=require_gpu), conditions, GPU) == expected
    assert find_run(store, required(gpu=require_gpu), SmokeConditions("other", may_have_gpus), GPU) is None


def test_the_conditions_of_an_engine_name_its_gpus() -> None:
    info = {"ID": "a", "ServerVersion": "29.0", "KernelVersion": "6.1", "Runtimes": {"runc": {}}}
    plain = SmokeConditions.of(info, [])
    assert not plain.may_have_gpus
    assert plain == SmokeConditions.of({**info, "Containers": 3}, [])
    for changed in (
        SmokeConditions.of(info, ["nvidia0", "580.95.05"]),
        SmokeConditions.of({**info, "Runtimes": {"nvidia": {}, "runc": {}}}, []),
        SmokeConditions.of({**info, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, []),
    ):
        assert changed.may_have_gpus
        assert changed.identity != plain.identity


def test_an_image_without_gpus_is_proven_without_one() -> None:
    assert not SmokeRequirement.of(IMAGE, CPU, Declarations(), require_gpu=True).gpu
    assert required(gpu=True).gpu


def test_the_inputs_of_the_checks_are_in_their_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    save_passed_report(store, proven(gpu=True))
    assert find_saved(store, replace(required(), image="sha256:" + "2" * 64)) is None
    assert (
        find_saved(store, SmokeRequirement.of(IMAGE, GPU, Declarations({"torch": ("torch",)}), require_gpu=False))
        is None
    )
    monkeypatch.setattr(smoke_reports, "files", lambda _: {"suite/x.py": b"changed"})
    assert find_saved(store, required()) is None


SEVERAL = combined({"gpu": GPU, "cpu": CPU})


def declared(**changed: Declarations) -> Declarations:
    return Declarations(environments={"gpu": Declarations(), "cpu": Declarations()} | changed)


def test_a_report_of_several_environments_is_of_the_checks_of_each(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    required = SmokeRequirement.of(IMAGE, SEVERAL, declared(), require_gpu=True)
    assert required.gpu
    own = tuple(replace(each, check=f"gpu: {each.check}") for each in report(gpu=True).results)
    save_passed_report(store, passed_report(SmokeReport(IMAGE, SEVERAL.cell, own), required, SEVERAL))
    assert find_saved(store, required)
    without = tuple(replace(each, status="skip") for each in own)
    assert not passed_report(SmokeReport(IMAGE, SEVERAL.cell, without), required, SEVERAL).gpu
    for name in ("gpu", "cpu"):
        other = declared(**{name: Declarations({"torch": ("torch",)})})
        assert find_saved(store, SmokeRequirement.of(IMAGE, SEVERAL, other, require_gpu=False)) is None, name


def test_who_is_trusted_to_have_run_them() -> None:
    document = smoke_document(proven(gpu=True))

    def found(document: Document, signer: str | None, requested: SmokeRequirement) -> object:
        return find_attested([Attached(document, "sha256:0", signer)], requested)

    assert found(document, "release", required(gpu=True)) == (proven(gpu=True), "release")
    assert found(document, None, required()) is None
    assert found(document, "release", replace(required(), image="sha256:" + "2" * 64)) is None
    assert found(Document(AUDIT, document.content), "release", required()) is None
    assert found(smoke_document(proven(gpu=False)), "release", required(gpu=True)) is None
    statement = json.loads(document.content)
    for wrong in ({**statement, "result": "FAILED"}, {"result": "PASSED"}, [], {**statement, "imagegen": None}):
        assert found(Document(SMOKE, json.dumps(wrong).encode()), "release", required()) is None
    assert found(Document(SMOKE, b"{"), "release", required()) is None


@pytest.mark.parametrize("report", [{"passed": True}, {"passed": True, "checks": [1]}, {"passed": True, "checks": 1}])
def test_a_report_that_could_not_be_attached_again_is_ignored(report: object) -> None:
    own = {"image": IMAGE, "suite": required().programs, "gpu": True, "report": report}
    content = json.dumps({"result": "PASSED", "imagegen": own}).encode()
    assert find_attested([Attached(Document(SMOKE, content), "sha256:a", "release")], required()) is None


def test_the_document_is_a_test_result() -> None:
    """Its form is in-toto's test-result v0.1: result and configuration are required."""
    statement = json.loads(smoke_document(proven(gpu=False)).content)
    assert statement["result"] == "PASSED"
    assert statement["configuration"][0]["digest"] == {"sha256": required().programs.removeprefix("sha256:")}
    assert "imports" in statement["passedTests"]
    assert "cuda" not in statement["passedTests"], "it was skipped"
