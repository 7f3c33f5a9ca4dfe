"""data/messages.yaml explains what users post: the messages of bench/log_truth, and the form of its entries."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from imagegen.audit.finding_texts import catalogue
from imagegen.compat.models import Models
from imagegen.run.doctor import symbols
from imagegen.run.doctor.container import examine_log
from imagegen.run.doctor.messages import known_messages

BENCH = Path(__file__).parents[2] / "bench"
GLIBC = "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found"


@pytest.fixture(scope="module")
def truth() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        return importlib.import_module("log_truth")


@pytest.fixture(autouse=True)
def _mangled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Demangling takes a process, which unit tests may not start."""
    monkeypatch.setattr(symbols, "demangle", str)


def ids(truth: ModuleType, log: str) -> list[str]:
    findings = truth.explain_log(log, Models(""), truth.rules())
    return [name for finding in findings for name in truth.ids_of(finding)]


@pytest.mark.parametrize("draw", ["first", "later", "last", "held", "final"])
def test_most_messages_of_threads_are_explained_and_hardly_one_wrongly(truth: ModuleType, draw: str) -> None:
    verdicts = Counter(verdict for _, verdict in truth.judged(draw))
    assert verdicts["right"] >= 0.7 * verdicts.total()
    assert verdicts["wrong"] <= 0.02 * verdicts.total()


def test_ids_differ_and_findings_exist() -> None:
    entries = known_messages()
    assert len({entry.id for entry in entries}) == len(entries)
    assert {entry.finding for entry in entries} - {""} <= set(catalogue())


def test_a_rule_beside_a_known_message_needs_its_package_in_the_line(truth: ModuleType) -> None:
    assert ids(truth, f"{GLIBC} (required by x.so)") == ["glibc"]
    assert "flash-attn-pip-glibc" in ids(truth, f"{GLIBC} (required by flash_attn_2_cuda.so)")


def test_a_rule_stands_for_a_general_message(truth: ModuleType) -> None:
    text = "ptxas fatal   : Value '{}' is not defined for option 'gpu-name'"
    assert ids(truth, text.format("sm_121a")) == ["triton-gb10"]
    assert ids(truth, text.format("sm_999")) == ["ptxas-gpu"]


def test_a_rule_about_an_imported_name_needs_its_package(truth: ModuleType) -> None:
    text = "ImportError: cannot import name 'EncoderDecoderCache' from 'transformers'"
    assert ids(truth, text) == ["api-missing"]
    assert ids(truth, f'File "/site-packages/peft/peft_model.py"\n{text}') == [
        "api-peft-transformers-EncoderDecoderCache"
    ]
    (finding,) = examine_log("log", text, Models(""), rules=truth.rules()).findings
    assert "transformers <4.43.0" in finding.fix


def test_an_error_that_reports_another_one_explains_nothing() -> None:
    effect = "RuntimeError: Engine core initialization failed. See root cause above."
    diagnosis = examine_log("log", effect, Models(""))
    assert (diagnosis.exit_code, [finding.severity for finding in diagnosis.findings]) == (2, ["unknown"])
    cause = f"CUDA out of memory\nTraceback (most recent call last):\n  File\n{effect}\n"
    diagnosis = examine_log("log", cause, Models(""))
    assert (diagnosis.exit_code, [finding.severity for finding in diagnosis.findings]) == (1, ["error"])
