"""Undefined symbols of a pasted message: the releases of torch that export them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit.torch_exports import ExportIndex
from imagegen.compat.models import Models
from imagegen.run.doctor import symbols
from imagegen.run.doctor.container import examine_log
from imagegen.run.doctor.symbols import explain_symbols
from tests.support.golden import Golden
from tests.support.timing import within

GONE, NEVER = "_ZN3c104cuda4goneEv", "_ZN3c105neverEv"
INDEX = ExportIndex(("2.6.0", "2.7.0", "2.8.0", "2.9.0"), {GONE: 0b1011})
IMPORT = "ImportError: /opt/venv/flash_attn_2_cuda.so: undefined symbol: "


@pytest.fixture(autouse=True, scope="module")
def _mangled() -> Iterator[None]:
    """Demangling takes a process, which unit tests may not start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symbols, "demangle", str)
        yield


def test_the_releases_that_export_the_symbol_are_named() -> None:
    (found,) = explain_symbols(f"{IMPORT}{GONE}\n{IMPORT}{GONE}", INDEX)
    assert "2.6.0 to 2.7.0, 2.9.0" in found.text
    assert "2.8.0" not in found.text
    assert GONE in found.fix


def test_a_symbol_of_no_release_is_reported_as_such(golden: Golden) -> None:
    (found,) = explain_symbols(IMPORT + NEVER, INDEX)
    golden.check(found.text)


def test_symbols_of_others_are_none_of_torchs() -> None:
    assert list(explain_symbols(f"{IMPORT}cublasLtCreate\nRuntimeError: no", INDEX)) == []


@pytest.mark.fault("Audits", "a log of a megabyte without a blank or a newline", "explained within seconds")
@pytest.mark.parametrize(
    "unit",
    ["a", "aGVsbG8=", "\rProgress |###| 7%", "\x1b[31m", "undefined symbol:", f"undefined symbol: {'_ZN2at' * 500}\n"],
)
def test_a_long_log_is_explained_within_seconds(unit: str, golden: Golden) -> None:
    message = "Qwen/Qwen3 is not a local folder and is not a valid model identifier"
    with within(4):
        diagnosis = examine_log("the log", unit * (1_000_000 // len(unit)) + f"\n{message}\n", Models(""))
    golden.check([finding.text for finding in diagnosis.findings])


def test_a_log_gets_symbols_and_known_messages() -> None:
    diagnosis = examine_log("the message", f"{IMPORT}_ZN3c105ErrorC2E\nNo CUDA GPUs are available", Models(""))
    assert {each.check for each in diagnosis.findings} == {"symbols", "log"}
    assert not diagnosis.passed
    assert examine_log("the message", "all is well", Models("")).passed


ARM = ExportIndex(("2.11.0", "2.12.0"), {GONE: 0b10})


@pytest.mark.parametrize(
    ("text", "machine", "expected"),
    [
        (f"{IMPORT}{GONE}", None, "2.6.0 to 2.7.0, 2.9.0"),
        (f"x.cpython-311-aarch64-linux-gnu.so: undefined symbol: {GONE}", None, "2.12.0 for aarch64"),
        (f"{IMPORT}{GONE}\nLinux host 6.8 aarch64 GNU/Linux", None, "2.12.0 for aarch64"),
        (f"{IMPORT}{GONE}\nx86_64, not aarch64", None, "2.6.0 to 2.7.0, 2.9.0"),
        (f"{IMPORT}{GONE}", "aarch64", "2.12.0 for aarch64"),
        (f"x-aarch64-linux-gnu.so: undefined symbol: {GONE}", "x86_64", "2.6.0 to 2.7.0, 2.9.0"),
        (f"manylinux_2_28_aarch64.so: undefined symbol: {NEVER}", None, "from 2.11.0 to 2.12.0 for aarch64"),
    ],
)
def test_the_index_is_that_of_the_logs_processor(
    monkeypatch: pytest.MonkeyPatch, text: str, machine: str | None, expected: str
) -> None:
    indexes = {"x86_64": INDEX, "aarch64": ARM}
    monkeypatch.setattr("imagegen.audit.torch_exports.shipped", lambda machine="x86_64": indexes[machine])
    (found,) = [each for each in examine_log("a log", text, Models(""), machine).findings if each.check == "symbols"]
    assert expected in found.text
    assert ("aarch64" in found.text) is ("aarch64" in expected)


@pytest.mark.parametrize("prefix", ["", IMPORT])
@given(text=st.text())
def test_any_text_is_explained_or_not(prefix: str, text: str) -> None:
    list(explain_symbols(prefix + text, INDEX))
