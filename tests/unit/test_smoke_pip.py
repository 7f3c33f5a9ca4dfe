"""The lines of `pip check` that are about the matrix's overrides."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

import imagegen.checks

sys.path.insert(0, str(Path(imagegen.checks.__file__).parent))

from smoke import stub
from smoke.checks import pip


@pytest.mark.parametrize(
    ("line", "overridden"),
    [
        ("prime-rl 0.8.0 requires dion, which is not installed.", True),
        ("prime-rl 0.8.0 requires torch, which is not installed.", False),
        ("prime-rl 0.8.0 requires protobuf, which is not installed.", False),
        ("modelexpress 0.3.0 has requirement protobuf<6.0.0,>=5.27.0, but you have protobuf 6.33.6.", True),
        ("modelexpress 0.3.0 has requirement protobuf<6.0.0,>=5.27.0, but you have protobuf 7.1.0.", False),
        ("modelexpress 0.3.0 has requirement dion<1, but you have dion 1.0.", False),
        ("modelexpress 0.3.0 has requirement Proto_Buf<6.0.0,>=5.27.0, but you have Proto_Buf 6.33.6.", False),
        ("protobuf 1 has requirement torch<6, but you have torch 6.33.6.", False),
        ("dion 1.0 is not supported on this platform", False),
        ("", False),
    ],
)
def test_a_line_is_about_an_override(line: str, overridden: bool) -> None:
    assert pip.overridden(line, {"dion": None, "protobuf": ">=6.31.1,<7"}) == overridden


def test_names_are_compared_in_their_normalised_form() -> None:
    assert pip.overridden("a 1 requires Ruamel_Yaml, which is not installed.", {"ruamel-yaml": None})


@pytest.mark.parametrize(
    ("symbols", "machine", "expected"),
    [
        (["nvte_gemm"], platform.machine(), True),
        (["nvte_gemm", "PyInit_te"], platform.machine(), False),
        (["nvte_gemm"], {"x86_64": "aarch64"}.get(platform.machine(), "x86_64"), False),
        (None, "", False),
    ],
)
def test_a_wrong_tag_of_a_package_without_modules(
    symbols: list[str] | None, machine: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "te_core-2.11.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: te-core\nVersion: 2.11.0\n")
    (info / "RECORD").write_text("libte.so,,\n" if symbols else "te.py,,\n")
    if symbols:
        (tmp_path / "libte.so").write_bytes(stub.library(symbols, machine))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert pip.is_mistagged("te-core 2.11.0 is not supported on this platform") is expected
    assert not pip.is_mistagged("te-core 2.11.0 requires torch, which is not installed.")
