"""The index of torch's exports: its bytes, what a release adds to it, and the one that is shipped."""

from __future__ import annotations

import time

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from imagegen.audit import torch_exports
from imagegen.audit.torch_exports import ExportIndex, is_shim, loads, owned, shipped
from imagegen.core.types import minor
from tools.harvest.torch_exports import dumps, with_release

RELEASES = st.builds("2.{}.{}".format, st.integers(0, 30), st.integers(0, 9))
NAMES = st.builds("{}{}".format, st.sampled_from(["_ZN2at", "_ZNK3c10", "aoti_torch_", "torch_"]), st.integers(0, 40))
EXPORTS = st.dictionaries(RELEASES, st.frozensets(NAMES, max_size=12), max_size=6)


def index_of(exports: dict[str, frozenset[str]]) -> ExportIndex:
    index = ExportIndex()
    for release, names in exports.items():
        index = with_release(index, release, names)
    return index


@given(EXPORTS)
def test_an_index_says_what_was_put_in(exports: dict[str, frozenset[str]]) -> None:
    index = loads(dumps(index_of(exports)))
    assert list(index.releases) == sorted(exports, key=Version)
    for release, names in exports.items():
        assert index.of_release(release) == names
        assert index.lacks(release, names | {"_ZN2at4noneEv"}) == {"_ZN2at4noneEv"}


@given(EXPORTS, st.randoms(use_true_random=False))
def test_the_same_exports_give_the_same_bytes(exports: dict[str, frozenset[str]], chance: object) -> None:
    once = dumps(index_of(exports))
    other = list(exports.items())
    chance.shuffle(other)  # type: ignore[attr-defined]
    assert dumps(index_of(dict(other))) == once
    for release, names in exports.items():
        assert dumps(with_release(loads(once), release, names)) == once


def test_a_release_that_is_there_is_replaced() -> None:
    index = index_of({"2.8.0": frozenset({"torch_a", "torch_b"}), "2.9.0": frozenset({"torch_b"})})
    index = with_release(index, "2.8.0", {"torch_c"})
    assert dict(index.names) == {"torch_b": 0b10, "torch_c": 0b01}


def test_what_is_not_torchs_own_is_not_kept() -> None:
    kernel = "_ZN2at6native6kernelI18__nv_hdl_wrapper_tILb0EEEEvv"
    local = "_ZN2at6native37_GLOBAL__N__8ee05ebc_4_Some_cu_1234565localEv"
    strange = ["torch_a b", "torch_\nc", "torch_\u202e"]
    assert not with_release(ExportIndex(), "2.8.0", ["malloc", "_ZN5gloo3fooEv", kernel, local, *strange]).names


@pytest.mark.parametrize(
    "symbol",
    [
        "_ZN3c104cuda9SetDeviceEab", "_ZNK3c106SymInt6sym_neERKS0_", "_ZNKR2at10TensorBase4sizeEv",
        "_ZTVN5torch3nn6ModuleE",
        "_ZTIN3c105ErrorE", "_ZThn16_N4c10d7BackendD1Ev", "_ZGVZN2at3fooEvE1x", "_ZN6caffe28TypeMeta3fooEv",
        "_ZTHN3c104implE", "_Z16THPVariable_WrapN2at10TensorBaseE", "THPVariableClass", "aoti_torch_zeros",
        "torch_list_size",
    ],
)  # fmt: skip
def test_torchs_own(symbol: str) -> None:
    assert owned(symbol)
    assert is_shim(symbol) is (symbol[0] not in "_T")


@pytest.mark.parametrize(
    "symbol",
    [
        "_ZN10torchcodec3fooEv", "_ZN14torch_tensorrt3fooEv", "_ZNSt6vectorIN2at6TensorESaIS1_EE9push_backERKS1_",
        "_ZN4vllm2at3fooEv", "_Z3fooN2at6TensorE", "cudaMalloc", "tms_torch_malloc", "_ZN8at_types3fooEv",
    ],
)  # fmt: skip
def test_what_others_may_define(symbol: str) -> None:
    assert not owned(symbol)


def test_a_version_is_judged_by_its_release_or_by_the_last_of_its_minor() -> None:
    index = ExportIndex(("2.4.0", "2.4.1", "2.15.0"))
    assert [index.of(each) for each in ("2.4.0+cu121", "2.4.2", "2.15", "2.16.0")] == ["2.4.0", "2.4.1", "2.15.0", None]
    assert [minor(each) for each in ("2.8.0a0+git123", "3", "2.10.1.post1")] == ["2.8", "3.0", "2.10"]


@pytest.mark.parametrize(
    "data", [b"", b"x" * 99, zstandard.compress(b"imagegen torch-exports 9\n"), zstandard.compress(b"\xff")]
)
def test_what_is_no_index_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an index of torch's exports"):
        loads(data)


def test_the_shipped_index() -> None:
    data = torch_exports.PATHS["x86_64"].read_bytes()
    assert len(data) < 700_000  # bytes
    start = time.process_time()
    index = loads(data)
    assert time.process_time() - start < 1  # seconds; 0.07 on an idle core
    assert index == shipped()
    assert dict.fromkeys(map(minor, index.releases)).keys() >= {f"2.{each}" for each in range(4, 16)}
    assert all(owned(name) for name in index.names)
    # One symbol, release by release: from `signed char` to `signed char, bool` in 2.8.
    has = {each for each in index.releases if not index.lacks(each, ["_ZN3c104cuda9SetDeviceEab"])}
    assert min(has, key=Version) == "2.8.0"
    assert {"2.7.1", "2.8.0"} - has == {"2.7.1"}


def test_the_shipped_index_is_read_once() -> None:
    assert shipped() is shipped("x86_64")


def test_the_shipped_index_for_arm64() -> None:
    """The names are those for x86-64, but for what the compilers generate; PyPI's torch has CUDA from 2.11 on."""
    index, other = shipped("aarch64"), shipped()
    assert index.releases == tuple(each for each in other.releases if Version(each) >= Version("2.11"))
    for release in index.releases:
        names, theirs = index.of_release(release), other.of_release(release)
        assert len(names & theirs) / len(names | theirs) > 0.9, release
        assert not index.lacks(release, ["_ZN3c104cuda9SetDeviceEab"])
