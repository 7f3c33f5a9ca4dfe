"""The host's side: one container, results as they come, a report for people and machines."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from imagegen.audit import catalogue
from imagegen.checks import SMOKE
from imagegen.checks.smoke.table import CHECKS, applicable
from imagegen.cli.output import print_report
from imagegen.core.errors import ContainerError, EngineError, NoGpuError, OutputLimitError
from imagegen.core.progress import Quiet
from imagegen.lock.model import Lock, LockedBase, LockedEnvironment, LockedFile, LockedGpus, LockedWheel
from imagegen.run.smoke import report as smoke
from imagegen.run.smoke.report import CheckResult, SmokeReport
from imagegen.run.smoke.runner import (
    EMULATED,
    GRACE,
    ROOT,
    apply_gpu_requirement,
    files,
    join_reports,
    parse,
    run,
    run_in_environment,
    spec,
)
from imagegen.spec.model import Declarations, EnvVar
from tests.support.environment_samples import combined
from tests.support.golden import Golden
from tests.support.interpreters import LOCKED

FILE = LockedFile("x.whl", 1, "0" * 64, "pypi")


def lock_of(versions: Mapping[str, str], env: tuple[EnvVar, ...] = ()) -> Lock:
    base = LockedBase("debian12", "debian", "bookworm", {}, ())
    wheels = tuple(LockedWheel(name, version, FILE, via=()) for name, version in sorted(versions.items()))
    axes = {"cuda": "cpu", "python": "3.11", "platform": "linux/amd64"}
    uv = LockedWheel("uv", "0", FILE, via=())
    return Lock(
        cell="cell",
        image="image",
        axes=axes,
        inputs={},
        uv=uv,
        as_of="2026-01-01T00:00:00Z",
        base=base,
        interpreter=LOCKED,
        wheels=wheels,
        env=env,
    )


@dataclass(frozen=True)
class Ended:
    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


class FakeEngine:
    """A container is a folder of this machine; `answer`, if set, is what every program there gives."""

    def __init__(self, root: Path, answer: Ended | Exception | None = None, *, has_gpus: bool = True) -> None:
        self.root, self.answer, self.has_gpus = root, answer, has_gpus
        self.emulated = False
        self.timeouts: list[float] = []
        self.programs: list[list[str]] = []
        self.requested: dict[str, object] = {}

    @contextmanager
    def container(self, ref: str, *, files: Mapping[str, bytes], gpus: bool, shm_size: int) -> Iterator[FakeEngine]:
        if gpus and not self.has_gpus:
            raise NoGpuError("none here")
        self.requested = {"ref": ref, "gpus": gpus, "shm_size": shm_size}
        for name, content in files.items():
            path = self.root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield self

    def exec(self, argv: Sequence[str], *, timeout: float) -> Ended:
        self.timeouts.append(timeout)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer:
            self.programs.append(list(argv))
            return self.answer
        self.programs.append(list(argv))
        assert argv[:4] == ["env", "-C", ROOT, "python"]
        local = ["env", "-C", str(self.root / ROOT.lstrip("/")), sys.executable, *argv[4:]]
        done = subprocess.run(local, capture_output=True, check=False, timeout=60)
        return Ended(done.returncode, done.stdout, done.stderr)


class Said(Quiet):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_the_whole_run_without_an_image(tmp_path: Path, golden: Golden) -> None:
    installed = {
        (d.metadata["Name"] or "").lower().replace("_", "-").replace(".", "-"): d.version for d in distributions()
    }
    lock = lock_of({**installed, "missing": "1.0"}, (EnvVar("WANDB_MODE", "offline", ""),))
    engine = FakeEngine(tmp_path)
    progress = Said()
    report = run(engine, "some:tag", lock, Declarations({"click": ("click",)}), require_gpu=False, progress=progress)
    results = {result.check: result for result in report.results}
    assert list(results) == ["imports", "pip-check", "versions", "environment", "loading"]
    assert [line.split(":")[0].strip() for line in progress.lines] == list(results)
    assert results["pip-check"].status == "pass", results["pip-check"].reason
    golden.check(results["versions"].reason)
    assert {"WANDB_MODE", "prefix"} <= results["environment"].details["wrong"].keys()
    assert not report.passed
    assert engine.requested["gpus"] is False


def test_only_the_named_checks_run(tmp_path: Path) -> None:
    answer = Ended(0, b"", b"")
    lock = lock_of({"torch": "2.11.0"})
    for only, expected in ((["nccl", "gloo"], ["gloo", "nccl"]), (["rollout-vllm"], [])):
        report = run(
            FakeEngine(tmp_path, answer), "t", lock, Declarations(), require_gpu=False, progress=Quiet(), only=only
        )
        assert [result.check for result in report.results] == expected


@pytest.mark.parametrize(("emulated", "times"), [(False, 1), (True, EMULATED)])
def test_an_emulated_processor_has_longer_limits(tmp_path: Path, emulated: bool, times: int) -> None:
    engine = FakeEngine(tmp_path)
    engine.emulated = emulated
    run(engine, "t", lock_of({}), Declarations(), require_gpu=False, progress=Quiet(), only=["pip-check"])
    (check,) = applicable((), ["pip-check"])
    assert engine.timeouts == [check.timeout * times + GRACE]


def test_checks_of_one_environment_of_several_run_as_programs_that_activated_it(tmp_path: Path) -> None:
    engine, lock = FakeEngine(tmp_path, Ended(1, b"", b"")), lock_of({"pip": "26.0"})
    environment = LockedEnvironment("beside", "Tests.", "/opt/venvs/beside", lock)
    report = run_in_environment(engine, "t", environment, Declarations(), require_gpu=False, progress=Quiet())
    assert {result.check.partition(": ")[0] for result in report.results} == {"beside"}
    program = engine.programs[0]
    assert program[:2] == ["sh", "-c"]
    assert "/opt/venvs/beside/bin/activate" in program[2]
    assert program[4:8] == ["env", "-C", ROOT, "python"]
    assert json.loads((tmp_path / ROOT.lstrip("/") / "spec.json").read_text())["prefix"] == "/opt/venvs/beside"


def test_the_checks_of_all_environments_are_one_report(tmp_path: Path) -> None:
    lock = combined({"main": lock_of({"pip": "26.0"}), "beside": lock_of({"torch": "2.11.0"})})
    declared = Declarations(environments={"main": Declarations(), "beside": Declarations({"torch": ("torch",)})})
    engine, only = FakeEngine(tmp_path, Ended(1)), ["gloo", "imports"]
    report = run(engine, "t", lock, declared, require_gpu=False, progress=Quiet(), only=only)
    assert [result.check for result in report.results] == ["main: imports", "beside: imports", "beside: gloo"]
    fields = json.loads((tmp_path / ROOT.lstrip("/") / "spec.json").read_text())
    assert (fields["prefix"], fields["imports"]) == ("/opt/venvs/beside", {"torch": ["torch"]})


def test_an_image_passes_if_each_of_its_environments_does() -> None:
    passed, skipped, failed = (
        SmokeReport("i", name, (CheckResult(f"{name}: one", name, 0.0),)) for name in ("pass", "skip", "fail")
    )
    assert join_reports("i", "c", [passed, passed]).passed
    assert not join_reports("i", "c", [passed, skipped]).passed
    assert not join_reports("i", "c", [failed, passed]).passed


def test_an_answer_that_never_comes_is_a_failure_and_the_report_goes_on(tmp_path: Path) -> None:
    for error in (TimeoutError("still running after 180 s"), ContainerError("it has gone")):
        report = run(FakeEngine(tmp_path, error), "t", lock_of({}), Declarations(), require_gpu=False, progress=Quiet())
        assert [result.status for result in report.results] == ["fail"] * 5
        assert str(error) in report.results[0].reason


def test_output_without_end_is_a_failure_that_shows_its_end(tmp_path: Path, golden: Golden) -> None:
    error = OutputLimitError("output exceeds 8 MiB", why="the last line")
    report = run(FakeEngine(tmp_path, error), "t", lock_of({}), Declarations(), require_gpu=False, progress=Quiet())
    assert [result.status for result in report.results] == ["fail"] * 5
    golden.check(report.results[0].reason, report.results[0].log)


def test_an_engine_that_dies_says_nothing_about_the_image(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, EngineError("no answer from the engine"))
    with pytest.raises(EngineError, match="no answer"):
        run(engine, "t", lock_of({}), Declarations(), require_gpu=False, progress=Quiet())


@given(st.integers(-1, 255), st.binary(), st.binary())
def test_a_container_that_lies_about_the_form_is_a_failure(code: int, out: bytes, err: bytes) -> None:
    result = parse("imports", Ended(code, out, err), 1.0)
    assert result.failed
    assert f"exit code {code}" in result.reason


@pytest.mark.parametrize(
    "change",
    [{"check": "other"}, {"status": "fine"}, {"seconds": "1"}, {"reason": None}, {"details": []}, {"more": 1}],
)
def test_only_the_runners_own_form_is_accepted(change: dict[str, object]) -> None:
    sound = {"check": "imports", "status": "pass", "reason": "", "details": {}, "seconds": 1.5}
    assert parse("imports", Ended(0, json.dumps(sound).encode()), 9.0) == smoke.CheckResult("imports", "pass", 1.5)
    assert parse("imports", Ended(1, json.dumps(sound).encode()), 9.0).failed
    assert parse("imports", Ended(0, json.dumps({**sound, **change}).encode()), 9.0).failed


def test_a_required_gpu_turns_only_gpu_skips_into_failures() -> None:
    for check in CHECKS:
        skipped = smoke.CheckResult(check.name, "skip", 0.1, "no NVIDIA GPU in this container")
        assert apply_gpu_requirement(skipped, check, require_gpu=False) == skipped
        strict = apply_gpu_requirement(skipped, check, require_gpu=True)
        assert strict.failed == (check.device == "cuda" and check.gpus == 1)
        assert "no NVIDIA GPU in this container" in strict.reason
        passed = smoke.CheckResult(check.name, "pass", 0.1)
        assert apply_gpu_requirement(passed, check, require_gpu=True) == passed
    # These have no part that goes without a GPU.
    alone = {"cuda", "nccl", "fabric-cuda", "rollout-vllm", "rollout-sglang", "flash-attn-cuda", "conv1d-cuda"}
    alone |= {"apex-cuda", "openrlhf-grpo", "te-cuda", "trl-vllm-grpo"}
    verl = {f"verl-{name}" for name in ("grpo", "gspo", "lora", "megatron", "grpo-2gpu", "megatron-2gpu")}
    prime = {"prime-rl-grpo", "prime-rl-grpo-2gpu"}
    assert {check.name for check in CHECKS if check.device == "cuda"} == {
        *alone,
        *verl,
        *prime,
        *(
            f"{name}-cuda"
            for name in ("toolkit", "triton", "flashinfer", "attention", "grpo", "megatron", "trl-grpo", "numerics")
        ),
    }


@pytest.mark.parametrize(
    ("cuda", "has_gpus", "given"), [("cpu", True, False), ("cu130", True, True), ("cu130", False, False)]
)
def test_a_gpu_image_gets_the_gpus_that_there_are(tmp_path: Path, cuda: str, has_gpus: bool, given: bool) -> None:
    skip = {"check": "imports", "status": "skip", "reason": "x", "details": {}, "seconds": 0}
    engine = FakeEngine(tmp_path, Ended(0, json.dumps(skip).encode()), has_gpus=has_gpus)
    lock = lock_of({"torch": "2"})
    lock = replace(lock, axes={**lock.axes, "cuda": cuda})
    run(engine, "t", lock, Declarations(), require_gpu=False, progress=Quiet())
    assert engine.requested["gpus"] is given


def test_the_suite_travels_whole_and_alone() -> None:
    copied = files(spec(lock_of({"torch": "2"}), Declarations({"torch": ("torch",)}, {}, {"apex": "It is on GitHub."})))
    home = SMOKE
    assert set(copied) == {
        f"{ROOT}/spec.json",
        *(f"{ROOT}/smoke/{path.relative_to(home)}" for path in home.rglob("*.py")),
    }
    content = json.loads(copied[f"{ROOT}/spec.json"])
    assert content == {
        "python": "3.11",
        "prefix": "/opt/venv",
        "env": {},
        "versions": {"torch": "2"},
        "imports": {"torch": ["torch"]},
        "gpus": [],
        "omits": {"apex": "It is on GitHub."},
        "modules": catalogue.data("modules"),
        "overrides": {},
        "undeclared": [],
    }


def test_the_spec_has_the_gpus_that_the_lock_is_for() -> None:
    lock = replace(lock_of({"torch": "2"}), gpu=LockedGpus(("9.0", "12.1"), "580.65.06"))
    assert spec(lock, Declarations())["gpus"] == ["sm_90", "sm_121"]


def report_of(*statuses: str, reason: str = "why", log: str = "") -> smoke.SmokeReport:
    results = tuple(
        smoke.CheckResult(check.name, status, 1.5, reason, {"n": 1}, log)
        for check, status in zip(applicable({"torch"}), statuses, strict=False)
    )
    return smoke.SmokeReport("some:tag", "cell", results)


@pytest.mark.parametrize(
    ("statuses", "passed"),
    [
        (("pass", "pass"), True),
        (("pass", "skip"), True),
        (("pass", "fail"), False),
        (("crash", "pass"), False),
        (("skip", "skip"), False),
        ((), False),
    ],
)
def test_a_report_passes_when_something_was_proven_and_nothing_failed(statuses: tuple[str, ...], passed: bool) -> None:
    assert report_of(*statuses).passed is passed


def test_the_report_as_json_counts_every_status() -> None:
    data = json.loads(json.dumps(report_of("pass", "skip", "fail", "crash", "pass").as_dict()))
    assert data["counts"] == {"pass": 2, "skip": 1, "fail": 1, "crash": 1}
    assert (data["image"], data["cell"], data["passed"]) == ("some:tag", "cell", False)
    assert data["checks"][2] == {
        "check": "versions", "status": "fail", "seconds": 1.5, "reason": "why", "details": {"n": 1}, "log": "",
    }  # fmt: skip


def test_a_pass_that_left_something_out_says_so_everywhere(tmp_path: Path, golden: Golden) -> None:
    note = "against a stub libcuda.so.1"
    said = {"check": "imports", "status": "pass", "reason": "", "details": {"note": note}, "seconds": 1.5}
    progress = Said()
    engine = FakeEngine(tmp_path, Ended(0, json.dumps(said).encode()))
    report = run(engine, "t", lock_of({}), Declarations(), require_gpu=False, progress=progress)
    assert report.results[0].explanation == note
    golden.check(progress.lines)
    assert f"<system-out>{note}</system-out>" in report.junit("cell")
    out = Console(file=io.StringIO(), width=200)
    print_report(out, report)
    assert note in out.file.getvalue()  # type: ignore[attr-defined]
    assert smoke.CheckResult("imports", "fail", 1.0, "why", {"note": note}).explanation == "why"
    assert smoke.CheckResult("imports", "pass", 1.0, "", {"note": 7}).explanation == ""


def test_junit_is_what_the_readers_of_that_format_expect(golden: Golden) -> None:
    golden.check(report_of("pass", "skip", "fail", "crash", log="end of stderr").junit("cpu-grpo"))


@given(st.text(), st.text())
def test_junit_stays_xml_whatever_a_program_wrote(reason: str, log: str) -> None:
    root = ET.fromstring(report_of("fail", reason=reason, log=log).junit("cell").encode())
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert len(failure.attrib["message"]) == len(reason)


def test_the_program_checks_the_modules_of_undeclared_distributions(tmp_path: Path) -> None:
    fields = spec(lock_of({"packaging": "1"}), Declarations({"packaging": ()}, undeclared=("packaging",)))
    (tmp_path / "spec.json").write_text(json.dumps({**fields, "prefix": sys.prefix}))
    command = [sys.executable, "-m", "smoke.entry", "imports", str(tmp_path / "spec.json")]
    ended = subprocess.run(command, cwd=SMOKE.parent, capture_output=True, text=True, check=False)
    assert json.loads(ended.stdout.splitlines()[-1])["details"]["modules"] == ["packaging"]
