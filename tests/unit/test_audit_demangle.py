"""Symbols as C++. What is expected is what GNU c++filt 2.40 says, but for std::string's short names."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit import torch_exports
from imagegen.audit.demangle import demangle

CODES = [
    *"IENZJXPROKVFMLvijx_",
    *("S_", "S0_", "S1_", "T_", "T0_", "St", "Ss", "Sa", "So", "Dp", "Dn", "A3_", "C1", "D1"),
]
CODES += [
    "Ul",
    "Ut",
    "Ut_",
    "ls",
    "cl",
    "cv",
    "nw",
    "3foo",
    "1a",
    "12_GLOBAL__N_1",
    "TV",
    "TI",
    "GV",
    "Th16_",
    "Tv0_n24_",
]
CODES += ["adL_Z", "Lj5E", "Lb1E", "B3abi", "9999999", "99"]
EXPECTED = {
    "_ZN3c104cuda9SetDeviceEab": "c10::cuda::SetDevice(signed char, bool)",
    "_ZNK3c106SymInt6sym_neERKS0_": "c10::SymInt::sym_ne(c10::SymInt const&) const",
    "_ZN3c1013MessageLoggerC1EPKciib": "c10::MessageLogger::MessageLogger(char const*, int, int, bool)",
    "_ZN3c1013MessageLoggerD2Ev": "c10::MessageLogger::~MessageLogger()",
    "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs": (
        "c10::detail::torchCheckFail(char const*, char const*, unsigned int, std::string const&)"
    ),
    "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE": (
        "c10::detail::torchCheckFail(char const*, char const*, unsigned int, std::__cxx11::string const&)"
    ),
    "_ZNK2at10TensorBase14const_data_ptrIfTnNSt9enable_ifIXntsr3stdE10is_const_vIT_EEiE4typeELi0EEEPKS3_v": None,
    "_ZNKR2at10TensorBase8data_ptrIfEEPT_v": "float* at::TensorBase::data_ptr<float>() const &",
    "_ZTVN5torch8autograd4NodeE": "vtable for torch::autograd::Node",
    "_ZTIN3c105ErrorE": "typeinfo for c10::Error",
    "_ZThn16_N4c10d7BackendD1Ev": "non-virtual thunk to c10d::Backend::~Backend()",
    "_ZN3c10lsERSoNS_10DeviceTypeE": "c10::operator<<(std::ostream&, c10::DeviceType)",
    "_ZNK3c106Device3strB5cxx11Ev": "c10::Device::str[abi:cxx11]() const",
    "_ZN3c1020SetStackTraceFetcherESt8functionIFSsvEE": "c10::SetStackTraceFetcher(std::function<std::string ()>)",
    "_Z1fPFviEPA3_KiM1AFvvE": "f(void (*)(int), int const (*) [3], void (A::*)())",
    "_ZN1AIiLj5ELb1ELln2EE1fIJidEEEvDpRKT_": "void A<int, 5u, true, -2l>::f<int, double>(int const&, double const&)",
    "_ZZN2at3fooEvENKUliE0_clEi": "at::foo()::{lambda(int)#2}::operator()(int) const",
    "_ZN12_GLOBAL__N_13fooEv": "(anonymous namespace)::foo()",
    "_ZNSt6vectorIN2at6TensorESaIS1_EE9push_backERKS1_": (
        "std::vector<at::Tensor, std::allocator<at::Tensor> >::push_back(at::Tensor const&)"
    ),
}


@pytest.mark.parametrize(("symbol", "expected"), EXPECTED.items())
def test_symbols_as_cpp(symbol: str, expected: str | None) -> None:
    assert demangle(symbol) == (expected or symbol)


@pytest.mark.parametrize(
    "name", ["malloc", "", "_Z", "_ZN3c10", "_ZN3c104cudaE.cold", "_Z3fo", "_RNvCs1234_7mycrate3foo"]
)
def test_what_is_no_cpp_stays_as_it_is(name: str) -> None:
    assert demangle(name) == name


def test_most_of_what_torch_exports_can_be_read() -> None:
    names = [name for name in sorted(torch_exports.shipped().names) if name.startswith("_Z")][::50]
    unread = [name for name in names if demangle(name) == name]
    assert len(names) > 1000
    assert len(unread) < len(names) / 100


@given(st.lists(st.sampled_from(CODES), max_size=60).map(lambda codes: "_Z" + "".join(codes)))
def test_any_name_gives_a_short_answer(name: str) -> None:
    assert len(demangle(name)) < 1 << 16


@given(st.text(st.characters(max_codepoint=0x7E), max_size=40).map(lambda text: "_Z" + text))
def test_any_text_gives_an_answer(name: str) -> None:
    assert demangle(name)


def doubled(times: int) -> str:
    """A function of types each of which is made of two of the one before: 278 characters stand for 436 million."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1A1BIS_S_E" + "".join(f"S0_IS{digits[i]}_S{digits[i]}_E" for i in range(1, times + 1))


def test_texts_that_double_are_given_up() -> None:
    assert demangle(doubled(2)) == "f(A, B<A, A>, B<B<A, A>, B<A, A> >, B<B<B<A, A>, B<A, A> >, B<B<A, A>, B<A, A> > >)"
    assert demangle(doubled(24)) == doubled(24)


@pytest.mark.parametrize(
    "name",
    [
        doubled(30),
        "_Z" + "Z" * 2000,
        "_ZN1AI" + "J" * 2000,
        "_Z1f" + "P" * 2000 + "i",
        "_Z1fIJ" + "i" * 300 + "EEv" + "DpSt5tupleIJ" * 40 + "T_" + "EE" * 40,  # a pack in a pack in a pack
        "_Z" + "cv" * 1000,
        "_Z" + "9" * 5000,
        "_Z" + "1a" * 100_000,
    ],
    ids=range(8),
)
def test_a_hostile_name_costs_next_to_nothing(name: str) -> None:
    start = time.process_time()
    assert len(demangle(name)) <= max(len(name), 1 << 16)
    assert time.process_time() - start < 1  # seconds; 0.05 for the longest
