"""Scans of releases: which wheel is read for a release, what is kept of it, and the verdict on that."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import pytest

from imagegen.audit.examine import examine
from imagegen.audit.model import Package
from imagegen.compat.wheel_scans import CAPABILITIES, WheelVerdict
from imagegen.core.errors import FetchError
from imagegen.core.net.package_index import IndexLink
from tests.support.elf_files import AARCH64, make_elf, make_fatbin
from tests.support.errors import raises
from tests.support.gpu_targets import targets
from tools.harvest.scans import condense, judge, wheels

DAY = dt.date(2026, 11, 20)
OLD, STABLE = "_ZNK3c106SymInt6sym_neERKS0_", "torch_call_dispatcher"  # torch 2.4 to 2.8; 2.10 and newer
MODULE = "pack/_C.abi3.so"


def link(
    filename: str, uploaded: dt.date | None = DAY, *, sha256: str | None = "ab" * 32, yanked: bool = False
) -> IndexLink:
    return IndexLink(filename, f"https://index/{filename}", sha256, uploaded=uploaded, yanked=yanked)


def chosen(*filenames: str) -> list[str]:
    return [each.link.filename for each in wheels("pack", "2026-01-01", map(link, filenames))]


def test_one_wheel_for_each_release_is_read_the_oldest_first() -> None:
    newest = "pack-1.10-cp39-abi3-manylinux_2_28_x86_64.whl"
    assert chosen(newest, "pack-1.9-py3-none-manylinux1_x86_64.whl") == [
        "pack-1.9-py3-none-manylinux1_x86_64.whl",
        newest,
    ]


@pytest.mark.parametrize(
    "others",
    [
        ["pack-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "pack-1.0-cp313-cp313-manylinux_2_28_x86_64.whl"],
        ["pack-1.0-cp312-cp312-manylinux_2_28_aarch64.whl", "pack-1.0-cp312-cp312-win_amd64.whl"],
        ["pack-1.0-cp312-cp312t-manylinux_2_28_x86_64.whl", "pack-1.0-cp312-cp312-musllinux_1_2_x86_64.whl"],
    ],
)  # fmt: skip
def test_of_several_wheels_the_one_for_python_312_is_read(others: list[str]) -> None:
    best = "pack-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    assert chosen(*others, best) == [best]
    assert chosen(best, *others) == [best]


@pytest.mark.parametrize(
    "filename",
    [
        "pack-1.0-py3-none-any.whl", "pack-1.0rc1-py3-none-manylinux1_x86_64.whl", "pack-1.0.tar.gz",
        "other-1.0-py3-none-manylinux1_x86_64.whl", "pack-1.0-pp310-pypy310_pp73-manylinux_2_28_x86_64.whl",
        "pack-1.0-cp313-abi3-manylinux_2_28_x86_64.whl",
    ],
)  # fmt: skip
def test_what_holds_no_code_for_this_platform_is_not_read(filename: str) -> None:
    assert chosen(filename) == []


def test_yanked_and_old_releases_are_not_read() -> None:
    name = "pack-1.0-py3-none-manylinux1_x86_64.whl"
    assert wheels("pack", "2026-11-20", [link(name)])
    assert not wheels("pack", "2026-11-21", [link(name)])
    assert not wheels("pack", "2026-01-01", [link(name, yanked=True)])


def test_an_index_without_upload_times_or_hashes_cannot_be_scanned() -> None:
    name = "pack-1.0-py3-none-manylinux1_x86_64.whl"
    with raises("fetch-no-upload-times"):
        wheels("pack", "2026-01-01", [link(name, None)])
    with pytest.raises(FetchError) as caught:
        wheels("pack", "2026-01-01", [link(name, sha256=None)])
    assert caught.value.code == "fetch-no-digest"


def package(files: Mapping[str, bytes], name: str = "pack") -> Package:
    return Package(name, "1.0", {path: examine(data, size=len(data)) for path, data in files.items()})


def verdict(files: Mapping[str, bytes], name: str = "pack") -> WheelVerdict:
    return judge(name, condense(package(files, name)))


def test_what_the_audit_judges_by_is_kept_and_the_rest_is_not() -> None:
    code = make_fatbin([targets("sm_80 compute_80@8.7"), targets("sm_90a"), targets("sm_90a")])
    module = make_elf(
        ["libtorch.so", "libcudart.so.13", "libown.so", "libc.so.6"], [OLD, "malloc", "_ZN2at3ownEv"], fatbin=code,
        verneed={"libc.so.6": ["GLIBC_2.4", "GLIBC_2.28"], "libstdc++.so.6": ["GLIBCXX_3.4.21", "CXXABI_1.3"]},
    )  # fmt: skip
    files = {
        MODULE: module, "pack/libown.so": make_elf(exported=["_ZN2at3ownEv"]), "pack/__init__.py": b"x = 1\n",
        "pack/plugin.so": make_elf(["libc.so.6"]), "pack/arm.abi3.so": make_elf(machine=AARCH64),
        "pack/_C.cpython-311-x86_64-linux-gnu.so": module,
    }  # fmt: skip
    own, kept = sorted(condense(package(files)), key=lambda each: each.path != "pack/libown.so")
    assert (own.path, own.loaded, own.symbols) == ("pack/libown.so", True, ())
    assert (kept.path, kept.loaded, kept.needed) == (MODULE, True, ("libcudart.so.13", "libtorch.so"))
    assert (kept.symbols, kept.glibc, kept.libstdcxx) == ((OLD,), "2.28", "3.4.21")
    assert kept.code == ((("compute_80@8.7", "sm_80"), 1), (("sm_90a",), 2))


def test_the_symbols_of_torch_tell_the_minors_that_have_them() -> None:
    found = verdict({MODULE: make_elf(["libtorch.so"], [OLD])})
    assert (found.torch, found.later, found.strings) == (("2.4", "2.5", "2.6", "2.7", "2.8"), False, "")
    stable = verdict({MODULE: make_elf(["libtorch.so"], [STABLE])})
    assert (stable.torch[0], stable.later) == ("2.10", True)
    assert verdict({MODULE: make_elf(["libtorch.so"])}).torch == ()


def test_symbols_with_strings_tell_the_cpp_abi() -> None:
    old, new = "_ZN3c105ErrorC1ESs", "_ZN3c105ErrorC1ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    assert verdict({MODULE: make_elf(["libtorch.so"], [old])}).strings == "old"
    assert verdict({MODULE: make_elf(["libtorch.so"], [new])}).strings == "new"


def test_builds_for_several_cuda_versions_take_any_of_them() -> None:
    twelve, thirteen = (make_elf([f"libcudart.so.{major}"]) for major in (12, 13))
    assert verdict({MODULE: thirteen}).cuda == (13,)
    assert verdict({"pack/ops_cu12.abi3.so": twelve, "pack/ops_cu13.abi3.so": thirteen}).cuda == (12, 13)


def test_the_glibc_of_what_is_loaded_counts() -> None:
    new, old = (make_elf(verneed={"libc.so.6": [node]}) for node in ("GLIBC_2.34", "GLIBC_2.17"))
    assert verdict({MODULE: new, "pack/other.abi3.so": old}).glibc == "2.34"
    assert verdict({MODULE: old, "pack/plugin.so": new}).glibc == "2.17"
    assert verdict({"pack/ops_cu12.abi3.so": new, "pack/ops_cu13.abi3.so": old}).glibc == "2.17"  # builds of one


VLLM = "vllm/_C.abi3.so"


def on_gpus(code: list[str], path: str = VLLM) -> WheelVerdict:
    return verdict({path: make_elf(["libtorch.so"], fatbin=make_fatbin(map(targets, code)))}, "vllm")


def test_an_essential_library_without_code_for_a_gpu_is_missed_there() -> None:
    found = on_gpus(["sm_80 sm_90", "sm_80 sm_90"])
    assert set(found.lacks) == {"5.0", "5.2", "6.0", "6.1", "7.0", "7.5", "10.0", "10.3", "10.7", "12.0", "12.1"}
    assert set(found.lacks.values()) == {VLLM}
    assert found.compiles == {}


def test_a_library_that_others_replace_is_not_missed() -> None:
    assert on_gpus(["sm_80"], "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so").lacks == {}


def test_ptx_for_all_kernels_is_compiled_and_for_a_few_of_them_does_not_do() -> None:
    assert on_gpus(["sm_80 compute_80@8.7", "sm_80 compute_80@8.8"]).compiles == dict.fromkeys(
        ["9.0", "10.0", "10.3", "10.7", "12.0", "12.1"], "8.8"
    )
    few = on_gpus(["sm_80 compute_80@8.7", *["sm_80"] * 9])
    assert few.compiles == {}
    assert "12.0" in few.lacks


def test_one_container_that_the_linker_left_is_no_code_for_a_gpu() -> None:
    assert "10.0" in on_gpus(["sm_52 compute_52@8.7", *["sm_90"] * 40]).lacks


def test_of_builds_of_one_library_the_one_that_runs_counts() -> None:
    files = {
        f"sgl_kernel/{folder}/common_ops.abi3.so": make_elf(["libtorch.so"], fatbin=make_fatbin([targets(code)]))
        for folder, code in (("sm90", "sm_90a"), ("sm100", "sm_80 sm_100a"))
    }
    found = verdict(files, "sgl-kernel")
    assert not set(found.lacks) & {"8.0", "8.6", "8.9", "9.0", "10.0"}
    assert {"10.3", "12.0"} <= set(found.lacks)


def test_capabilities_are_in_their_order() -> None:
    assert list(CAPABILITIES) == sorted(CAPABILITIES, key=lambda each: tuple(map(int, each.split("."))))
