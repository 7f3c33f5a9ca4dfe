"""Logs: the messages of rules are known, and what nothing explains is reported as unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen import spec as matrix
from imagegen.compat.models import Models
from imagegen.compat.rule import Rule
from imagegen.core.data import shipped
from imagegen.run.doctor import log as doctor_log
from imagegen.run.doctor import symbols
from imagegen.run.doctor.container import examine_log
from tests.support.golden import Golden

MODELS = Models("")
KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
DRIVER = "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).\n"


@pytest.fixture(scope="module")
def rules() -> tuple[Rule, ...]:
    return matrix.load([shipped("matrices"), shipped("wheels")]).rules


@pytest.fixture(autouse=True)
def _mangled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Demangling takes a process, which unit tests may not start."""
    monkeypatch.setattr(symbols, "demangle", str)


def traceback(exception: str, prefix: str = "") -> str:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    run()", exception]
    return "".join(f"{prefix}{line}\n" for line in lines)


def fixes(log: str, packages: frozenset[str] = frozenset()) -> str:
    return " ".join(finding.fix for finding in examine_log("log", log, MODELS, packages=packages).findings)


def levels(log: str, rules: tuple[Rule, ...] = ()) -> list[str]:
    return [each.severity for each in examine_log("log", log, MODELS, rules=rules).findings]


def test_the_message_of_each_rule_is_explained(rules: tuple[Rule, ...]) -> None:
    messages = {rule.message for rule in rules if rule.message}
    assert len(messages) > 10
    for message in messages:
        log = traceback(message)
        assert set(levels(log, rules)) == {"error"}, message


def test_a_rule_is_named_with_its_fix(rules: tuple[Rule, ...]) -> None:
    log = "ptxas fatal : Value 'sm_121a' is not defined for option 'gpu-name'\n"
    (found,) = examine_log("log", log, MODELS, rules=rules).findings
    (rule,) = (each for each in rules if each.id == "triton-gb10")
    assert f"[{rule.id};" in found.text
    assert found.fix == rule.fix


@pytest.mark.parametrize(
    ("log", "expected", "code"),
    [
        ("", ["unknown"], 2),
        ("step 1 loss 0.5\n", ["unknown"], 2),
        ("AttributeError: 'Qwen9' object has no attribute 'x'", ["unknown"], 2),
        (traceback("KeyError: 'reward'"), ["unknown"], 2),
        (KERNEL, ["error"], 1),
        (traceback(KERNEL), ["error"], 1),
        (traceback(KERNEL) + traceback(DRIVER), ["error", "error", "note"], 1),
        (KERNEL + traceback("KeyError: 'reward'"), ["error", "unknown"], 1),
        (traceback("KeyError: 'reward'") + traceback(KERNEL), ["error", "unknown"], 1),
        (traceback(KERNEL, "(pid=71) ") + traceback("KeyError: 1", "(pid=72) "), ["error", "unknown"], 1),
        # an exception that another one caused
        (traceback(KERNEL) + "\nThe above exception was the direct cause\n\n" + traceback("X: engine"), ["error"], 1),
        (KERNEL + "Traceback (most recent call last):\n", ["error", "unknown"], 1),  # cut off
    ],
)
def test_what_nothing_explains_is_unknown(log: str, expected: list[str], code: int) -> None:
    diagnosis = examine_log("log", log, MODELS)
    assert [each.severity for each in diagnosis.findings] == expected
    assert diagnosis.exit_code == code
    assert diagnosis.rows[0].status == expected[0]
    assert diagnosis.as_dict()["well"] is False


def test_each_exception_is_named_once_and_without_its_prefix(golden: Golden) -> None:
    log = "".join(traceback(f"KeyError: {number % 5}", "ERROR 11-26 [core.py:1] ") for number in range(50))
    text = doctor_log.unexplained(log, MODELS, ())
    golden.check(text)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("torch==2.8.0+cu128\nvllm==0.11.0.post1\nunheard==1.0\n", "torch==2.8.0+cu128 vllm==0.11.0.post1"),
        ("INFO Initializing vLLM 0.11.0, PyTorch version: 2.8.0, torch version: 2.8.0\n", "vllm==0.11.0 torch==2.8.0"),
        ("site-packages/flash_attn-2.8.3.dist-info/METADATA", "flash-attn==2.8.3"),
        ("Driver Version: 570.86.15   CUDA Version: 12.8", "torch==VERSION driver==570.86"),
        ("torch 2.8.0\ntorch 2.9.0", "torch==2.8.0"),
        ("torch                     2.7.1\ntorchvision    0.22.1", "torch==2.7.1"),
        ("/env/lib/python3.12/site-packages/torch/x.py\ntorch 2.8.0", "torch==2.8.0 python==3.12"),
        ("RTX 5090 with CUDA capability sm_120 is strange; torch 2.6.0+cu124", "torch==2.6.0+cu124 gpu==sm_120"),
        ("driver on your system is too old (found version 12020)", "torch==VERSION driver==535"),
    ],
)
def test_a_question_with_the_versions_of_the_log_is_suggested(log: str, words: str) -> None:
    assert f"`imagegen why {words}`" in fixes(log, frozenset({"torch", "vllm", "flash-attn"}))


WORDS = (
    "Traceback (most recent call last):",
    "The above exception was the direct cause",
    KERNEL,
    "a 1.2.3",
    "==",
    " ",
    "\n",
)


@given(st.lists(st.sampled_from(WORDS), max_size=30).map("".join) | st.text(max_size=200))
def test_any_log_is_explained_or_unknown(log: str) -> None:
    found = levels(log)
    assert found and set(found) <= {"error", "note", "unknown"}


def test_the_time_of_a_long_log_grows_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracebacks that are examined are bounded, and so is the text of each."""
    examined: list[int] = []

    def explain(text: str, **_: object) -> list[object]:
        examined.append(len(text))
        return []

    monkeypatch.setattr(doctor_log, "explain_symbols", explain)
    doctor_log.unexplained("".join(traceback(f"KeyError: {number}") for number in range(1000)), MODELS, ())
    doctor_log.unexplained("Traceback (most recent call last):\n" + "  frame\n" * 30_000, MODELS, ())
    assert len(examined) <= 21
    assert max(examined) < 50_000
