"""The runner inside the container: whatever a program does, there is one honest answer."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import imagegen.checks
from imagegen.run import numerics

HOME = Path(imagegen.checks.__file__).parent
sys.path.insert(0, str(HOME))  # as in a container, where the folder `suite` is copied to

from smoke import runner  # noqa: E402
from smoke.arch import arch_names, dotted, runs_on, targets  # noqa: E402
from smoke.checks.versions import canonical_version, compare  # noqa: E402
from smoke.program import Failed, Findings, Skipped, Spec, answer, compile_targets  # noqa: E402
from smoke.table import CHECKS, Check, applicable  # noqa: E402

from tests.support.golden import Golden  # noqa: E402

SPEC = Spec("cpu", "3.11", sys.prefix, {}, {}, {})
PROGRAMS = sorted((HOME / "smoke" / "checks").glob("[a-z]*.py"))


def run(code: str, timeout: int = 20) -> dict[str, Any]:
    return runner.run(Check("it", "it", "nothing", timeout), [sys.executable, "-c", code])


def said(status: str, **changes: object) -> str:
    return json.dumps({"check": "it", "status": status, "reason": "why", "details": {"n": 1}, **changes})


@pytest.mark.parametrize(("status", "code"), [("pass", 0), ("skip", 0), ("fail", 1)])
def test_a_programs_answer_is_taken_as_it_is(status: str, code: int) -> None:
    result = run(f"print('working'); print({said(status)!r}); raise SystemExit({code})")
    assert (result["check"], result["status"], result["reason"], result["details"]) == ("it", status, "why", {"n": 1})
    assert 0 < result["seconds"] < 20


def test_of_endless_output_the_end_alone_is_read() -> None:
    noise = "import sys; sys.stdout.write('x' * (40 << 20)); sys.stderr.write('y' * (40 << 20)); print();"
    result = run(f"{noise} print({said('fail')!r}); raise SystemExit(1)")
    assert (result["status"], result["reason"]) == ("fail", "why")
    assert len(result["log"]) <= runner.LONGEST


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGKILL"])
def test_death_by_signal_is_a_crash_with_a_name_and_the_last_step(name: str, golden: Golden) -> None:
    result = run(
        f"import os, signal; print({said('pass')!r}); print('import torch', flush=True);"
        f"os.kill(os.getpid(), signal.{name})"
    )
    assert result["status"] == "crash"
    assert result["details"] == {"signal": name}
    golden.check(result["reason"])
    assert ("want of memory" in result["reason"]) == (name == "SIGKILL")


def test_a_real_segmentation_fault_leaves_the_python_stack_in_the_log() -> None:
    result = run("import ctypes\ndef culprit():\n    ctypes.string_at(0)\nculprit()")
    assert (result["status"], result["details"]) == ("crash", {"signal": "SIGSEGV"})
    assert "culprit" in result["log"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("pass", "exit code 0 and no output: nothing was proven"),
        ("raise SystemExit(3)", "exit code 3 and no output"),
        ("print('all fine')", "exit code 0 and no result in its last line: all fine"),
        ("print('[1]')", "no result in its last line"),
        (f"print({said('pass')!r}); print('and more')", "no result in its last line: and more"),
        (f"print({said('pass', check='other')!r})", "no result in its last line"),
        (f"print({said('fine')!r})", "no result in its last line"),
        (f"print({said('pass', details=None)!r})", "no result in its last line"),
        (f"print({said('pass', reason=None)!r})", "no result in its last line"),
        (f"print({said('pass')!r}); raise SystemExit(3)", "said pass and then ended with exit code 3"),
        (f"print({said('fail')!r})", "said fail and then ended with exit code 0"),
    ],
)
def test_anything_but_the_promised_answer_is_a_failure(code: str, reason: str) -> None:
    result = run(code)
    assert result["status"] == "fail"
    assert reason in result["reason"]


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path, golden: Golden) -> None:
    pid = tmp_path / "pid"
    child = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    start = time.monotonic()
    result = run(
        f"import subprocess, sys, time; print('waiting', flush=True);"
        f"subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)",
        timeout=3,
    )
    assert time.monotonic() - start < 30
    golden.check(result["reason"])
    assert result["status"] == "fail"
    assert gone(int(pid.read_text()))


def test_children_that_outlive_a_check_are_ended() -> None:
    code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    result = run(code + f"d = {said('pass')!r}.replace('1', str(p.pid)); print(d)")
    assert result["status"] == "pass"
    assert gone(result["details"]["n"])


def gone(pid: int) -> bool:
    """Return whether the process has ended, a zombie included."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False


def test_the_log_is_the_end_of_stderr_and_only_of_what_did_not_pass() -> None:
    noise = "import sys; print('\\n'.join(map(str, range(1000))), file=sys.stderr);"
    assert "log" not in run(noise + f"print({said('pass')!r})")
    assert run(noise + "raise SystemExit(1)")["log"].split("\n")[-1] == "999"
    assert len(run(noise)["log"].splitlines()) == runner.LOG_LINES


@given(st.integers(-64, 255) | st.none(), st.text())
def test_no_exit_code_and_no_output_escape_a_verdict(code: int | None, output: str) -> None:
    result = runner.verdict(CHECKS[0], code, output)
    assert result["status"] in ("fail", "crash")
    assert result["reason"]
    json.dumps(result)


def test_the_runner_runs_what_applies_and_prints_each_line(tmp_path: Path, golden: Golden) -> None:
    spec = tmp_path / "spec.json"
    fields = {
        "python": "3.11",
        "prefix": "/elsewhere",
        "env": {},
        "versions": {},
        "imports": {"json": ["json"]},
        "gpus": [],
        "omits": {},
        "modules": {},
        "overrides": {},
        "undeclared": [],
    }
    spec.write_text(json.dumps(fields))
    argv = [sys.executable, "-m", "smoke.runner", str(spec)]
    lines = subprocess.run([*argv, "imports", "pip-check", "sb3"], cwd=HOME, capture_output=True, check=True).stdout
    results = [json.loads(line) for line in lines.splitlines()]
    assert [result["check"] for result in results] == ["imports", "pip-check"]  # no sb3-contrib in this lock
    assert "outside /elsewhere" in results[0]["reason"]
    wrong = subprocess.run([*argv, "attenton"], cwd=HOME, capture_output=True, check=False, text=True)
    golden.check(wrong.stderr)
    assert wrong.returncode == 1


def test_all_checks_share_a_time_limit(tmp_path: Path, golden: Golden) -> None:
    """A check that does not end is reported before its own limit, so that the container can be killed after it."""
    for module in (HOME / "smoke").glob("*.py"):
        (tmp_path / "smoke").mkdir(exist_ok=True)
        (tmp_path / "smoke" / module.name).write_bytes(module.read_bytes())
    (tmp_path / "smoke" / "entry.py").write_text("import sys, time; print(sys.argv[1], flush=True); time.sleep(60)")
    (tmp_path / "spec.json").write_text(json.dumps({"versions": {}, "env": {}}))
    table = tmp_path / "smoke" / "table.py"
    table.write_text(table.read_text().replace('alone and together", 1800', 'alone and together", 1'))
    argv = [sys.executable, "-m", "smoke.runner", "spec.json", "--times", "2", "--seconds", "4", "imports", "pip-check"]
    start = time.monotonic()
    lines = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=True).stdout.splitlines()
    assert time.monotonic() - start < 20
    results = [json.loads(line) for line in lines]
    assert [(each["check"], each["status"]) for each in results] == [("imports", "fail"), ("pip-check", "fail")]
    golden.check(results[0]["reason"])


HANG = """\
import sys
from pathlib import Path
from types import SimpleNamespace
sys.modules["smoke.engines"] = SimpleNamespace(ALONE={})  # the module itself needs torch
from smoke.checks import verl_trainer
verl_trainer.RAY_LOGS = Path("ray")
found = verl_trainer.run(Path.cwd(), [], verl_trainer.VARIANTS["grpo"])
assert found.exit_code is None and found.metrics == [], found
sys.stdout.write(found.log)
"""


def test_a_trainer_that_hangs_leaves_its_stacks(tmp_path: Path) -> None:
    """Trainer and workers are stand-ins: a module of verl's name that sleeps, and files named as Ray names stderr."""
    package = tmp_path / "verl" / "trainer"
    package.mkdir(parents=True)
    (package / "main_ppo.py").write_text("import time\ndef culprit():\n    time.sleep(60)\nculprit()\n")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "worker-1.err").write_text("Traceback of another day\n")
    (tmp_path / "ray" / "worker-2.err").write_text("noise\nFatal Python error: Aborted\nworker_culprit\n")
    environment = {**os.environ, "PYTHONPATH": f"{HOME}:{tmp_path}", "PYTHONFAULTHANDLER": "1"}
    environment["IMAGEGEN_CHECK_SECONDS"] = "22"
    argv = [sys.executable, "-c", HANG]
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, check=False, text=True, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    assert "in culprit" in done.stdout and "worker_culprit" in done.stdout
    assert "noise" not in done.stdout and "worker-1.err" not in done.stdout


def test_the_table_and_the_programs_are_one_set() -> None:
    assert {check.module for check in CHECKS} == {path.stem for path in PROGRAMS}
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    names = [check.name for check in CHECKS]
    assert [check for check in CHECKS if check not in applicable(check.needs, names)] == []
    plain = {check.name for check in CHECKS if check.needs <= {"torch"} and not check.by_name}
    assert {check.name for check in applicable({"torch"})} == plain
    toolkit = {"flashinfer", "flashinfer-cuda", "toolkit", "toolkit-cuda"}
    cuda12 = {"torch", "flashinfer-python", "nvidia-cuda-nvcc-cu12"}  # whose wheels hold no nvcc
    assert not toolkit & {check.name for check in applicable(cuda12)}
    assert toolkit <= {check.name for check in applicable({*cuda12, "CUDA_HOME"})}
    assert [check.name for check in applicable(())] == ["imports", "pip-check", "versions", "environment", "loading"]


def test_trl_is_run_with_vllm_where_it_is_made_for_that_vllm() -> None:
    trl = {"torch", "transformers", "trl", "vllm"}
    assert "trl-vllm-grpo" in {check.name for check in applicable(trl)}
    assert {check.name for check in applicable(trl)} - {check.name for check in applicable({*trl, "verl"})} == {
        "trl-vllm-grpo"
    }
    assert "trl-vllm-grpo" not in {check.name for check in applicable(trl - {"vllm"})}


def test_measurements_run_where_they_are_named_alone() -> None:
    measurements = {check.name for check in CHECKS if check.by_name}
    assert measurements == set(numerics.CHECKS)
    assert {check.name for check in applicable({"torch"}, numerics.CHECKS)} == measurements
    assert not measurements & {check.name for check in applicable({"torch"})}
    assert applicable((), numerics.CHECKS) == ()


@pytest.mark.parametrize("path", sorted((HOME / "smoke").rglob("*.py")), ids=lambda path: path.stem)
def test_the_suite_keeps_to_python_310(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 10))


# ---- what programs are made of


def test_findings_show_the_first_and_keep_all() -> None:
    findings = Findings()
    for number in range(7):
        findings.expect(f"n{number}", number == 0, f"sentence {number}")
        findings.expect(f"n{number}", False, "a second one of that name") if number else None
    with pytest.raises(Failed, match=r"^sentence 1; .*; sentence 5; and 1 more$") as failed:
        findings.done({"seen": 7})
    assert failed.value.details["seen"] == 7
    assert list(failed.value.details["wrong"]) == [f"n{number}" for number in range(1, 7)]
    assert Findings().done({"seen": 7}) == {"seen": 7}


def raising(error: Exception) -> Callable[[Spec], dict[str, Any]]:
    def check(_: Spec) -> dict[str, Any]:
        raise error

    return check


def test_every_end_of_a_check_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(lambda _: {"n": 1}, SPEC) == ("pass", "", {"n": 1})
    assert answer(raising(Skipped("no GPU")), SPEC) == ("skip", "no GPU", {})
    assert answer(raising(Failed("wrong", {"n": 1})), SPEC) == ("fail", "wrong", {"n": 1})
    assert answer(raising(OSError("broken")), SPEC) == ("fail", "OSError: broken", {})
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU")
def test_without_a_gpu_a_gpu_check_is_skipped_before_it_runs(golden: Golden) -> None:
    spec = Spec("cuda", "3.11", sys.prefix, {}, {}, {})
    golden.check(answer(raising(AssertionError()), spec))


# ---- versions


def test_versions_equal_to_the_lock_pass() -> None:
    assert compare({"torch": "2.13.0+cpu", "six": "1.16"}, {"torch": ["2.13.0+cpu"], "six": ["1.16"]}) == {
        "distributions": 2
    }


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        ({}, "torch 2.13.0+cpu is locked and not installed"),
        ({"torch": ["2.13.0"]}, "torch 2.13.0 is installed, 2.13.0+cpu is locked"),
        ({"torch": ["2.13.0+cpu"], "extra": ["1"]}, "extra 1 is installed and not locked"),
        ({"torch": ["2.13.0+cpu", "2.13.0+cpu"]}, "torch 2.13.0+cpu, 2.13.0+cpu is installed"),
    ],
)
def test_every_difference_from_the_lock_is_found(installed: dict[str, list[str]], reason: str) -> None:
    with pytest.raises(Failed, match=re.escape(reason)):
        compare({"torch": "2.13.0+cpu"}, installed)


def test_versions_are_compared_in_normal_form() -> None:
    assert canonical_version("V2024.02.01-1") == canonical_version("2024.2.1.1")
    assert canonical_version("1.0rc01") != canonical_version("1.0")
    assert canonical_version("1.10") != canonical_version("1.1")
    assert canonical_version("0.10.0") == "0.10.0"


# ---- GPU architectures


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((9, 0), ["sm_90"], True),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((12, 0), ["sm_90", "sm_100"], False),
        ((12, 0), ["compute_90"], True),
        ((8, 0), ["compute_90"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100a"], False),
        ((10, 3), ["sm_100f"], True),
        ((12, 1), ["sm_120"], True),
        ((12, 0), ["compute_90a"], False),
        ((9, 0), [], False),
    ],
)
def test_which_code_runs_on_which_device(capability: tuple[int, int], built: list[str], runs: bool) -> None:
    assert runs_on(capability, built) is runs


def test_what_is_compiled_for_is_what_the_lock_says_else_what_the_image_does(golden: Golden) -> None:
    env = {"TORCH_CUDA_ARCH_LIST": "9.0a 12.0+PTX"}
    assert targets(("sm_100",), env) == ["sm_100"]
    assert targets((), env) == ["sm_90a", "sm_120"]
    assert [dotted(name) for name in targets((), env)] == ["9.0a", "12.0"]
    with pytest.raises(Skipped) as caught:
        compile_targets(SPEC)
    golden.check(caught.value)


def test_torchs_two_spellings_of_architectures() -> None:
    assert arch_names("8.6 9.0a;12.0+PTX") == ["sm_86", "sm_90a", "sm_120", "compute_120"]
