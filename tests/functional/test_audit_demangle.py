"""Symbols as C++, and hostile names. The text itself is LLVM's."""

from __future__ import annotations

import time

import pytest

from imagegen.audit.demangle import demangle
from imagegen.audit.torch_rule import has_old_string


def test_a_symbol_as_cpp() -> None:
    assert demangle("_ZN3c104cuda9SetDeviceEab") == "c10::cuda::SetDevice(signed char, bool)"


@pytest.mark.parametrize("name", ["malloc", "", "_Z", "_ZN3c10", "_Z3fo", "_RNvCs1234_7mycrate3foo", "_Z1f\0v"])
def test_another_name_is_returned_as_it_is(name: str) -> None:
    assert demangle(name) == name


def doubled(times: int) -> str:
    """A function of types each of which is made of two of the one before: 278 characters stand for 436 million."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1A1BIS_S_E" + "".join(f"S0_IS{digits[i]}_S{digits[i]}_E" for i in range(1, times + 1))


@pytest.mark.parametrize("name", [doubled(20), doubled(30), "_Z1f" + "P" * 9000 + "i", "_Z" + "1a" * 100_000])
def test_a_hostile_name_is_bounded(name: str) -> None:
    start = time.monotonic()
    assert len(demangle(name)) <= 1 << 18
    assert time.monotonic() - start < 10  # seconds; its process is killed after 2


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", True),
        ("_ZN3c1020SetStackTraceFetcherESt8functionIFSsvEE", True),
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", False),
        ("_ZN3c109ClassSsfoE", False),  # a part of an identifier
        ("_ZN3c104cuda9SetDeviceEab", False),
        ("Ss", False),
    ],
)
def test_a_string_of_the_old_abi(symbol: str, expected: bool) -> None:
    assert has_old_string(symbol) is expected
