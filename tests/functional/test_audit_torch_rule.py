"""The torch that a package fits: rows of real wheels, and small ones for each case."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import zstandard

from imagegen.audit import torch_exports
from imagegen.audit.model import Elf, File, Finding, Package, Severity, Subject
from imagegen.audit.torch_rule import check, fits
from imagegen.audit.torch_users import Fit
from tests.support.golden import Golden

# Of wheels on PyPI, 2026-11-21: for each file what it wants of torch's own and the wheel does not define itself, and
# what the metadata says of torch.
USERS = Path(__file__).parents[1] / "golden" / "torch_users.json.zst"
MINORS = ("2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
_PATCHED = ("2.4", "2.5", "2.7", "2.9", "2.12", "2.14")
LAST = {minor: f"{minor}.{int(minor in _PATCHED)}" for minor in MINORS}
# Symbols missing on the last release of each minor; 0 where it fits.
ROWS = {
    "vllm 0.8.5": (1, 1, 0, 9, 10, 11, 13, 13, 17, 18, 18, 18),
    "vllm 0.9.2": (10, 10, 9, 0, 1, 2, 4, 4, 8, 9, 9, 9),
    "vllm 0.11.0": (12, 12, 11, 1, 0, 1, 3, 3, 7, 8, 8, 8),
    "vllm 0.11.2": (15, 15, 14, 4, 2, 0, 2, 2, 6, 7, 7, 7),
    "vllm 0.19.0": (35, 35, 34, 19, 16, 12, 0, 1, 5, 6, 7, 7),
    "vllm 0.24.0": (67, 67, 54, 38, 34, 26, 6, 0, 3, 4, 5, 5),
    "vllm 0.27.0": (71, 71, 58, 43, 38, 27, 8, 3, 1, 0, 1, 1),
    "vllm 0.33.0": (56, 56, 44, 35, 32, 23, 6, 3, 3, 0, 0, 0),
    "sgl-kernel 0.2.7": (9, 9, 8, 0, 1, 2, 4, 4, 7, 8, 8, 8),
    "sgl-kernel 0.3.21": (14, 14, 13, 4, 2, 0, 2, 2, 6, 7, 7, 7),
    "sglang-kernel 0.4.2": (20, 20, 19, 11, 9, 7, 3, 0, 4, 5, 6, 6),
    "sglang-kernel 0.4.10": (24, 24, 23, 16, 15, 12, 9, 6, 4, 2, 0, 0),
    "xformers 0.0.33.post1": (19, 18, 16, 5, 3, 0, 2, 2, 3, 6, 6, 6),
    "xformers 0.0.35": (34, 34, 25, 17, 15, 11, 0, 0, 0, 0, 0, 0),
    "torchaudio 2.9.0": (13, 13, 11, 4, 2, 0, 2, 2, 4, 5, 5, 6),
    "torchvision 0.24.0": (22, 21, 17, 3, 1, 0, 2, 2, 4, 7, 7, 7),
    "torchcodec 0.8.0": (10, 10, 9, 1, 0, 0, 1, 1, 2, 3, 3, 3),
    "torchao 0.17.0": (23, 23, 15, 10, 8, 7, 0, 0, 0, 0, 0, 0),
}
STABLE = {"vllm 0.33.0", "xformers 0.0.35", "torchao 0.17.0"}

NEW = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OLD = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
SET_DEVICE = "_ZN3c104cuda9SetDeviceEab"  # torch 2.8 and newer


@cache
def wheels() -> dict[str, Package]:
    table = json.loads(zstandard.decompress(USERS.read_bytes()))
    found = {}
    for wheel, said in table["wheels"].items():
        name, version = wheel.split()
        required = {path: frozenset(table["symbols"][i] for i in some) for path, some in said["files"].items()}
        files = {path: File(1, elf=Elf(62, undefined=symbols)) for path, symbols in required.items()}
        found[wheel] = Package(name, version, files, tuple(said["requires"]))
    return found


def package(
    name: str, *undefined: str, version: str = "1.0", requires: Iterable[str] = (), **more: Iterable[str]
) -> Package:
    """With one extension, or one for each of `more`: names by path, with _ for every dot."""
    files = {"it/_C.abi3.so": undefined} | {path.replace("_so", ".so"): symbols for path, symbols in more.items()}
    elves = {path: File(1, elf=Elf(62, undefined=frozenset(symbols))) for path, symbols in files.items()}
    return Package(name, version, elves, tuple(requires))


@cache
def torch(release: str, version: str | None = None, *without: str) -> Package:
    """Return PyPI's torch as the index has it, in one library, `without` symbols with these prefixes."""
    exported = torch_exports.shipped().of_release(release)
    kept = frozenset(name for name in exported if not (without and name.startswith(without)))
    return Package(
        "torch", version or release, {"torch/lib/libtorch.so": File(1, elf=Elf(62, "libtorch.so", exported=kept))}
    )


def found(*packages: Package, **more: str) -> list[Finding]:
    return list(check(Subject("test", packages, python="3.11", **more)))  # type: ignore[arg-type]


@pytest.mark.parametrize("wheel", ROWS)
def test_real_wheels_on_each_torch(wheel: str) -> None:
    one = wheels()[wheel]
    index = torch_exports.shipped()
    own = [file.elf.undefined for path, file in one.files.items() if file.elf and "cpython-310" not in path]
    required = frozenset().union(*own)
    assert tuple(len(index.lacks(LAST[minor], required)) for minor in MINORS) == ROWS[wheel]
    fit = fits(one, "3.11")
    assert fit
    assert fit.minors == tuple(minor for minor, missing in zip(MINORS, ROWS[wheel], strict=True) if not missing)
    assert fit.stable is (wheel in STABLE)
    assert fit.declared in (None, *fit.minors)


@pytest.mark.parametrize("wheel", ROWS)
def test_a_finding_on_each_torch_that_does_not_fit_and_none_on_the_others(wheel: str) -> None:
    one = wheels()[wheel]
    for minor, missing in zip(MINORS, ROWS[wheel], strict=True):
        wrong = [each for each in found(one, torch(LAST[minor])) if each.id in ("torch-mismatch", "torch-abi-flip")]
        assert len(wrong) == bool(missing), minor
        for each in wrong:
            assert each.id in ("torch-mismatch", "torch-abi-flip")
            assert each.severity is (Severity.WARNING if one.name == "torchao" else Severity.ERROR)
            assert f"{missing} symbol" in each.evidence


def test_a_package_for_arm64_is_compared_with_torch_for_arm64(golden: Golden) -> None:
    elf = Elf(183, undefined=frozenset({SET_DEVICE}))
    one = Package("arm", "1.0", {"it/_C.abi3.so": File(1, elf=elf)}, ())
    fit = fits(one)
    assert fit and fit.minors == tuple(minor for minor in MINORS if int(minor[2:]) >= 11)
    (fitting,) = found(one)
    golden.check(fitting.evidence)
    assert fitting.id == "torch-fits"
    (unknown, _) = found(one, torch="2.10.0")
    golden.check(unknown.evidence)
    assert unknown.id == "torch-unknown"
    lacking = replace(one, files={"it/_C.abi3.so": File(1, elf=replace(elf, undefined=frozenset({"_ZN2at4noneEv"})))})
    assert "torch-mismatch" in {each.id for each in found(lacking, torch="2.12.0")}


def test_what_a_finding_says(golden: Golden) -> None:
    (finding,) = found(wheels()["vllm 0.11.0"], torch("2.9.1"))
    golden.check(finding.evidence)
    assert (finding.package, finding.path) == ("vllm 0.11.0", "vllm/_C.abi3.so")
    assert all(
        path in wheels()["vllm 0.11.0"].files for path, _, _ in (each.partition(": ") for each in finding.details)
    )
    (finding,) = found(wheels()["xformers 0.0.35"], torch("2.9.1"))
    golden.check(finding.evidence, finding.details[-1])
    (finding,) = found(wheels()["torchcodec 0.8.0"], torch("2.10.0"))
    golden.check(finding.evidence)
    (finding,) = found(package("mixed", "_ZN2at4noneEv", SET_DEVICE, requires=["torch==2.8.0"]), torch("2.7.1"))
    golden.check(finding.evidence)
    (finding,) = found(package("mixed", "_ZN2at4noneEv"), torch("2.7.1"))
    golden.check(finding.evidence)


@pytest.mark.parametrize(
    ("symbols", "release", "built"),
    [
        ((NEW, SET_DEVICE), "2.6.0", "with the new C++ ABI (_GLIBCXX_USE_CXX11_ABI=1); this is 2.6.0, with the old"),
        ((OLD,), "2.8.0", "with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0); this is 2.8.0, with the new"),
    ],
)
def test_the_other_cpp_abi_is_recognised(symbols: tuple[str, ...], release: str, built: str, golden: Golden) -> None:
    (finding,) = found(package("flash-attn", *symbols, requires=["torch"]), torch(release))
    assert finding.id == "torch-abi-flip"
    assert built in finding.evidence
    assert "first c10::detail::torchCheckFail(" in finding.evidence
    golden.check(finding.details[-1])


def test_a_missing_symbol_without_strings_is_no_flip() -> None:
    (finding,) = found(package("flash-attn", SET_DEVICE, "aoti_torch_Ss"), torch("2.6.0"))
    assert finding.id == "torch-mismatch"


@pytest.mark.parametrize("version", ["2.8.3+cu12torch2.8cxx11abitrue", "2.1.2+pt28cu128", "0.7+cu128.torch2.8"])
def test_the_torch_in_a_version_counts_although_no_symbol_is_missing(version: str) -> None:
    one = package("flash-attn", NEW, version=version, requires=["torch"])
    assert fits(one) == Fit(False, MINORS[3:], "2.8")
    assert found(one, torch("2.8.0")) == []
    (finding,) = found(one, torch("2.9.1"))
    assert (finding.severity, finding.id) == (Severity.WARNING, "torch-other-minor")
    assert found(package("stable", "aoti_torch_empty_strided", version=version), torch("2.9.1")) == []


@pytest.mark.parametrize(
    ("requires", "declared"),
    [
        (["torch==2.8.0"], "2.8"),
        (["Torch (==2.8.*)"], "2.8"), (["torch~=2.8.0"], "2.8"), (["torch>=2.8,<2.9"], "2.8"),
        (["torch==2.77.0"], "2.77"), (["torch==2.8.0+cu128"], "2.8"), (["torch>=2.8"], None), (["torch>=2.15"], None),
        (["torch<2.5"], None), (["torch~=2.8"], None), (["torch==2.*"], None), (["torch"], None), ([], None),
        (['torch==2.8.0; sys_platform == "win32"'], None), (['torch==2.8.0; extra == "gpu"'], None),
        (['torch==2.8.0; python_version < "3.12"', 'torch>=2.9; python_version >= "3.12"'], "2.8"),
        (["torchvision==0.23.0"], None), (["torch @ file:///x.whl"], None), (["=="], None),
        (["torch>=2.8", "torch<2.9"], "2.8"),
        (["torch===2.8.0"], "2.8"), (["torch===nonsense"], None), (["torch==" + "9" * 5000], None),
    ],
)  # fmt: skip
def test_the_minor_that_metadata_names(requires: list[str], declared: str | None) -> None:
    fit = fits(package("user", NEW, requires=requires), "3.11")
    assert fit
    assert fit.declared == declared


def test_a_pin_on_another_torch_counts_although_no_symbol_is_missing(golden: Golden) -> None:
    (finding,) = found(wheels()["sglang-kernel 0.4.10"], torch("2.15.0"))
    assert (finding.severity, finding.id) == (Severity.WARNING, "torch-other-minor")
    golden.check(finding.evidence)
    assert found(wheels()["vllm 0.33.0"], torch("2.15.0")) == []  # the stable ABI


REGISTERS = (
    "_ZN5torch7LibraryC1ENS0_4KindENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    "St8optionalIN3c1011DispatchKeyEEPKcj"
)


def test_operators_that_fit_two_torches_and_say_neither_may_abort(golden: Golden) -> None:
    """Cases: fbgemm-gpu-genai 1.3.0 beside 2.9.1, and 1.4.2 beside 2.8.0: docs/internals/audit-accuracy.md."""
    one = package("operators", NEW, REGISTERS)
    assert len(fits(one).minors) > 1  # type: ignore[union-attr]
    (finding,) = found(one, torch("2.9.1"))
    assert (finding.severity, finding.id) == (Severity.WARNING, "torch-unpinned")
    golden.check(finding.evidence)
    (finding,) = found(package("functions", NEW), torch("2.9.1"))
    assert finding.severity == Severity.INFO


def test_metadata_that_does_not_pin_is_reported_where_the_torch_fits(golden: Golden) -> None:
    (finding,) = found(wheels()["sgl-kernel 0.3.21"], torch("2.9.1"))
    assert (finding.severity, finding.id) == (Severity.INFO, "torch-unpinned")
    golden.check(finding.evidence)
    assert [each.id for each in found(wheels()["sgl-kernel 0.3.21"], torch("2.8.0"))] == ["torch-mismatch"]


def test_loose_wheels_are_reported_what_they_fit(golden: Golden) -> None:
    (finding,) = found(wheels()["xformers 0.0.35"])
    golden.check(finding.evidence)
    assert finding.id == "torch-fits"
    (finding,) = found(package("mixed", OLD, SET_DEVICE))
    golden.check(finding.evidence)
    assert [each.id for each in found(wheels()["vllm 0.11.0"], torch="2.8.1+cu128")] == ["torch-fits"]
    assert [each.id for each in found(wheels()["vllm 0.11.0"], torch="2.9.0")] == ["torch-mismatch", "torch-fits"]
    for unknown in ("2.99.0", "nonsense", "9" * 5000):
        finding, _ = found(wheels()["vllm 0.11.0"], torch=unknown)
        golden.check(finding.evidence)
        assert finding.id == "torch-unknown"


def test_files_for_other_torches_and_other_interpreters_do_not_count(golden: Golden) -> None:
    one = wheels()["torch-c-dlpack-ext 0.1.5"]
    fit = fits(one)
    assert fit
    assert fit.minors == ("2.4", "2.5", "2.7", "2.8", "2.9")  # PyPI's 2.6 has the old C++ ABI, its file the new one
    (finding,) = found(one)
    golden.check(finding.evidence)
    assert found(one, torch("2.15.0")) == []  # it has nothing for it
    each = {"311": NEW, "312": "_ZN2at4noneEv"}
    files = {
        f"_C.cpython-{tag}-x86_64-linux-gnu.so": Elf(62, undefined=frozenset({name})) for tag, name in each.items()
    }
    many = Package("many", "1.0", {path: File(1, elf=elf) for path, elf in files.items()})
    assert [each.id for each in found(many, torch("2.8.0"))] == ["torch-unpinned"]
    assert [each.id for each in found(many, torch("2.6.0"))] == ["torch-abi-flip"]


def test_what_the_package_defines_itself_does_not_count() -> None:
    one = package("user", "_ZN5torch4mineEv", NEW)
    own = {"it/lib.so": File(1, elf=Elf(62, exported=frozenset({"_ZN5torch4mineEv"})))}
    assert [each.id for each in found(one, torch("2.8.0"))] == ["torch-mismatch"]
    assert [each.id for each in found(replace(one, files={**one.files, **own}), torch("2.8.0"))] == ["torch-unpinned"]


def test_a_library_of_torchs_that_is_missing_is_not_reported_symbol_by_symbol() -> None:
    needs = File(1, elf=Elf(62, needed=("libc10_cuda.so",), undefined=frozenset({SET_DEVICE})))
    cpu = torch("2.8.0", "2.8.0+cpu", "_ZN3c104cuda")
    assert [each.id for each in found(Package("user", "1.0", {"a.so": needs}, ("torch==2.8.0",)), cpu)] == []
    assert [each.id for each in found(package("user", SET_DEVICE, requires=["torch==2.8.0"]), cpu)] == [
        "torch-mismatch"
    ]


def test_nothing_is_said_of_what_does_not_use_torch_or_cannot_be_read() -> None:
    assert fits(package("numpy", "malloc")) is None
    assert fits(torch("2.8.0")) is None
    assert found(package("numpy", "malloc"), torch="2.99.0") == []
    unread = Package("torch", "2.8.0", {"torch/lib/libtorch.so": File(1, unreadable="it is cut off")})
    assert found(package("user", "_ZN2at4noneEv", requires=["torch==2.8.0"]), unread) == []
    other = Package("arm", "1.0", {"a.so": File(1, elf=Elf(183, undefined=frozenset({"_ZN2at4noneEv"})))})
    assert found(other, torch("2.8.0")) == []
    odd = replace(torch("2.8.0"), version="unknown")  # its exports are known all the same
    assert [each.id for each in found(package("user", NEW, "_ZN2at4noneEv"), odd)] == ["torch-mismatch"]
    assert found(package("user", NEW, version="1+torch2.8"), odd) != []


def test_nothing_is_said_against_a_torch_of_which_a_library_cannot_be_read() -> None:
    whole = torch("2.8.0")
    cut = replace(whole, files={**whole.files, "torch/lib/libtorch_cuda.so": File(1, unreadable="it is cut off")})
    user = package("user", "_ZN2at4noneEv", requires=["torch==2.8.0"])
    assert [each.id for each in found(user, whole)] == ["torch-mismatch"]
    assert found(user, cut) == []
