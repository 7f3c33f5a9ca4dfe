"""Findings about GPU code: each failure in a made-up package, and none in sound ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit import catalogue, gpu
from imagegen.audit.model import CodeGroup, Elf, File, Finding, Package, Severity, Subject
from imagegen.core.gpu import Gpu
from tests.support.golden import Golden
from tests.support.gpu_targets import TARGETS, targets
from tests.support.matrix_samples import shipped_matrix

GPUS = shipped_matrix().gpus
X86, CUDA = 62, 190


def code(text: str, count: int = 1, size: int = 1000) -> CodeGroup:
    """A group of `count` containers, `size` bytes for each target."""
    found = tuple(sorted(targets(text), key=str))
    return CodeGroup(found, count, (size,) * len(found))


MUCH = 2_000_000  # bytes of PTX that take time to compile


def library(*groups: CodeGroup) -> File:
    return File(10_000, elf=Elf(X86, needed=("libc10.so",)), code=groups)


def cubin(text: str, size: int = 1000) -> File:
    return File(size, elf=Elf(CUDA), code=(code(text, 1, size),))


def audit(files: Mapping[str, File], *names: str, name: str = "ext", driver: str | None = "580") -> list[Finding]:
    subject = Subject("test", (Package(name, "1.0", files),), gpus=tuple(GPUS[each] for each in names), driver=driver)
    return [finding for finding in gpu.check(subject) if finding.id != "dead-weight"]


def ids(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(str(finding.severity), finding.id) for finding in findings]


def test_a_library_without_code_for_a_gpu_is_an_error(golden: Golden) -> None:
    (found,) = audit({"ext/_C.so": library(code("sm_80 sm_86 sm_89", 7))}, "sm_90", "sm_100", "sm_120")
    assert (found.severity, found.id, found.package, found.path) == (
        Severity.ERROR, "gpu-code-missing", "ext 1.0", "ext/_C.so"
    )  # fmt: skip
    golden.check(found.evidence)
    assert found.details == ("ext/_C.so: sm_90, sm_100, sm_120: holds sm_80, sm_86, sm_89",)


@pytest.mark.parametrize(
    ("path", "elf", "severity"),
    [
        ("ext/_C.abi3.so", Elf(X86), "error"),
        ("ext/_C.cpython-311-x86_64-linux-gnu.so", Elf(X86), "error"),
        ("ext/_C.so", Elf(X86, exported=frozenset({"PyInit__C"})), "error"),
        ("ext/libops.so", Elf(X86, needed=("libtorch_cuda.so",)), "error"),
        ("ext/libcublas.so.13", Elf(X86, soname="libcublas.so.13"), "error"),
        ("ext/libplugin.so", Elf(X86), "warning"),
    ],
)
def test_it_is_an_error_where_something_loads_the_library(path: str, elf: Elf, severity: str) -> None:
    user = File(1, elf=Elf(X86, needed=("libcublas.so.13",)))
    files = {path: File(1, elf=elf, code=(code("sm_80"),)), "ext/user.so": user}
    assert ids(audit(files, "sm_90")) == [(severity, "gpu-code-missing")]


def test_modules_for_another_python_are_not_judged() -> None:
    files = {"torchao/_C_mxfp8.cpython-310-x86_64-linux-gnu.so": library(code("sm_100"))}
    subject = Subject("test", (Package("torchao", "0.17.0", files),), python="3.11", gpus=(GPUS["sm_90"],))
    assert {finding.id for finding in gpu.check(subject)} == {"dead-weight"}


def test_many_libraries_of_one_package_are_one_finding() -> None:
    files = {f"ext/lib{n:02}.so": library(code("sm_80")) for n in range(30)}
    (found,) = audit(files, "sm_90")
    assert found.path is None
    assert len(found.details) == 13
    assert found.details[-1] == "and 18 more"


def test_the_release_that_first_has_the_code_is_named(golden: Golden) -> None:
    ops = library(code("sm_80 sm_89 sm_90 sm_90a sm_100a sm_120a"))
    (found,) = audit({"sgl_kernel/common_ops.abi3.so": ops}, "sm_103", "sm_121", "sm_120", name="sglang-kernel")
    golden.check(found.details[1:])


def test_a_library_runs_when_its_package_has_another_build_of_it() -> None:
    hopper, newer = library(code("sm_90 sm_90a")), library(code("sm_100a sm_103a sm_120a"))
    builds = {"sgl_kernel/sm90/common_ops.abi3.so": hopper, "sgl_kernel/sm100/common_ops.abi3.so": newer}
    assert not audit(builds, "sm_90", "sm_100", "sm_103", "sm_120")
    assert ids(audit(builds, "sm_121")) == [("error", "gpu-code-missing")]
    cudas = {"lib_cuda118.so": library(code("sm_80")), "lib_cuda130.so": library(code("sm_120"))}
    assert not audit(cudas, "sm_80", "sm_120")
    pythons = {"deep_gemm/_C.cpython-311-x.so": hopper, "deep_gemm/_C.cpython-312-x.so": hopper}
    assert not audit(pythons, "sm_90")
    unrelated = {"one/_C.so": hopper, "two/_C.so": library(code("sm_120"))}  # the folders name no architecture
    assert ids(audit(unrelated, "sm_90")) == [("error", "gpu-code-missing")]


MAIN = library(code("sm_80 sm_90 sm_100f sm_120f"))
GATED = {
    "FlashMLA": ("vllm/_flashmla_C.abi3.so", "sm_90a sm_100f", "sm_120"),
    "FP4": ("vllm/_qutlass_C.abi3.so", "sm_100a", "sm_90"),
    "FlashAttention 3": ("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "sm_80 sm_90a", "sm_100"),
    "SGLang's FlashAttention 3": ("sgl_kernel/flash_ops.abi3.so", "sm_80 sm_86 sm_90a", "sm_103"),
    "torchao's quantisation": ("torchao/_C.abi3.so", "sm_80 sm_86", "sm_90"),
    "NCCL's expert parallelism": ("nvidia/nccl/lib/libnccl_ep.so", "sm_90 sm_100", "sm_89"),
}


@pytest.mark.parametrize("module", GATED)
def test_a_module_that_is_made_for_other_gpus_is_no_error(module: str) -> None:
    path, holds, name = GATED[module]
    assert ids(audit({path: library(code(holds)), "main.so": MAIN}, name)) == [("info", "gpu-code-gated")]


def test_a_package_of_which_nothing_runs_is_no_gated_one() -> None:
    """A package for sm_90a alone is a mistake in an image for sm_100, unless the data know the module."""
    assert ids(audit({"ext/_C.so": library(code("sm_90a"))}, "sm_100")) == [("error", "gpu-code-missing")]
    (found,) = audit({"flash_attn_3/_C.abi3.so": library(code("sm_90a"))}, "sm_100")
    assert ids([found]) == [("warning", "gpu-code-gated")]
    assert "Hopper" in found.details[-1]


def test_a_module_named_after_its_gpu_is_no_error_anywhere() -> None:
    for name, holds in (("_C_cutlass_90a.abi3.so", "sm_90a"), ("ops_sm100.abi3.so", "sm_100")):
        assert ids(audit({f"torchao/{name}": library(code(holds))}, "sm_120")) == [("info", "gpu-code-gated")]
    other = {"ext/ops_sm100.abi3.so": library(code("sm_90"))}  # it does not hold what it says
    assert ids(audit(other, "sm_120")) == [("error", "gpu-code-missing")]


def test_ptx_alone_is_a_warning_with_the_driver_that_it_takes(golden: Golden) -> None:
    fa2 = {"vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": library(code("sm_80 compute_80@9.0", 72, MUCH))}
    (found,) = audit(fa2, "sm_90", "sm_120")
    assert ids([found]) == [("warning", "ptx-only")]
    golden.check(found.evidence, found.details)
    assert ids(audit(fa2, "sm_90", driver=None)) == [("warning", "ptx-only")]
    assert not audit(fa2, "sm_80")
    little = {"lib/libcufile.so.0": library(code("sm_80 compute_86@7.1"))}
    assert ids(audit(little, "sm_90")) == [("info", "ptx-only")]


def test_ptx_that_the_promised_driver_does_not_compile_is_an_error(golden: Golden) -> None:
    files = {"ext/_C.so": library(code("sm_80 compute_90@9.1", 3, MUCH))}
    (found,) = audit(files, "sm_90", driver="580.65.06")
    assert ids([found]) == [("error", "ptx-too-new")]
    golden.check(found.evidence)
    assert ids(audit(files, "sm_90", driver="590")) == [("warning", "ptx-only")]
    assert not audit(files, "sm_80", driver="450")  # machine code: PTX is not asked for


def test_ptx_too_new_in_some_containers_is_a_warning(golden: Golden) -> None:
    files = {"ext/_C.so": library(code("sm_90", 5), code("compute_80@9.2", 2))}
    (found,) = audit(files, "sm_90")
    assert ids([found]) == [("warning", "ptx-too-new")]
    golden.check(found.details)


def test_ptx_too_new_of_a_library_that_another_one_replaces_is_a_warning() -> None:
    fa2 = {"vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": library(code("sm_80 compute_80@8.8", 52, MUCH))}
    fa3 = {"vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": library(code("sm_80", 5), code("sm_90a", 40))}
    assert ids(audit(fa2, "sm_90", driver="525")) == [("error", "ptx-too-new")]
    assert ("warning", "ptx-too-new") in ids(audit(fa2 | fa3, "sm_90", driver="525"))
    assert ("error", "ptx-too-new") not in ids(audit(fa2 | fa3, "sm_90", driver="525"))
    assert ("error", "ptx-too-new") in ids(audit(fa2 | fa3, "sm_90", "sm_120", driver="525"))  # no FlashAttention 3


def test_a_library_that_keeps_its_kernels_elsewhere_is_not_judged() -> None:
    assert not audit({"nvidia/cu13/lib/libcufft.so.12": library(code("sm_75"))}, "sm_90", name="nvidia-cufft")


def test_containers_for_other_gpus_are_notes() -> None:
    (found,) = audit({"lib/libcublasLt.so.13": library(code("sm_90", 1591), code("sm_80", 1327))}, "sm_90", "sm_80")
    assert ids([found]) == [("info", "gpu-code-partial")]
    assert found.details == ("lib/libcublasLt.so.13: sm_90, sm_80: 1327, 1591 of 2918 containers",)


def test_a_library_of_which_hardly_anything_runs_is_a_warning() -> None:
    files = {"vllm/_C.abi3.so": library(code("sm_80 sm_90", 55), code("sm_80 compute_52@8.4"))}
    assert ids(audit(files, "sm_120")) == [("info", "ptx-only"), ("warning", "gpu-code-partial")]


def test_sound_packages_are_not_mentioned() -> None:
    files = {"ext/_C.so": MAIN, "ext/cpu.so": library(), "ext/__init__.py": File(10)}
    assert not audit(files, "sm_80", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
    assert not audit({"ext/_C.so": library(code("sm_50"))})  # nothing is promised


def weights(files: Mapping[str, File], *names: str) -> list[Finding]:
    subject = Subject("test", (Package("ext", "1.0", files),), gpus=tuple(GPUS[each] for each in names))
    return [finding for finding in gpu.check(subject) if finding.id == "dead-weight"]


def test_loose_cubins_are_weighed_and_never_an_error(golden: Golden) -> None:
    cubins = {f"flashinfer_cubin/cubins/{n}.cubin": cubin("sm_100f", 300_000) for n in range(1000)}
    one, total = weights(cubins, "sm_90", "sm_100")
    golden.check(one.evidence)
    assert (total.package, total.evidence) == ("", one.evidence)
    assert not audit(cubins, "sm_90")


def test_dead_weight_is_reported_for_heavy_packages_and_in_all() -> None:
    fat = {"lib.so": library(code("sm_70 sm_80 sm_90", 1, 150_000_000))}
    one, total = weights(fat, "sm_90")
    assert one.evidence == total.evidence == "of 450 MB of GPU code, not for sm_90: 300 MB"
    (alone,) = weights({"lib.so": library(code("sm_70 sm_90", 1, 10_000_000))}, "sm_90")
    assert alone.package == ""
    assert not weights({"lib.so": library(code("sm_90", 1, 150_000_000))}, "sm_90")


GROUPS = st.lists(
    st.builds(
        lambda each, count: CodeGroup(tuple(sorted(each, key=str)), count, (5,) * len(each)),
        st.sets(TARGETS, min_size=1, max_size=4),
        st.integers(1, 9),
    ),
    max_size=4,
)


@given(GROUPS, GROUPS.filter(bool), st.sampled_from(sorted(GPUS)), st.sampled_from([None, "570", "580", "610"]))
def test_a_library_that_runs_is_no_error_whatever_else_it_holds(
    groups: list[CodeGroup], more: list[CodeGroup], name: str, driver: str | None
) -> None:
    native = code(f"sm_{name.removeprefix('sm_')}", 2)
    found = audit({"x.so": library(*groups, *more, native)}, name, driver=driver)
    assert all(finding.severity is not Severity.ERROR for finding in found)


DRIVERS = ["525", "550", "560", "570", "575", "580", "590", "595", "610"]
RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.ERROR: 2}


@given(GROUPS, st.sampled_from(sorted(GPUS)), st.sampled_from(DRIVERS), st.sampled_from(DRIVERS))
def test_a_newer_promised_driver_never_makes_it_worse(groups: list[CodeGroup], name: str, one: str, two: str) -> None:
    worst = [
        max((RANK[finding.severity] for finding in audit({"x.so": library(*groups)}, name, driver=driver)), default=0)
        for driver in sorted([one, two], key=int)
    ]
    assert worst == sorted(worst, reverse=True)


@given(GROUPS.filter(bool), st.sampled_from(sorted(GPUS)))
def test_each_container_is_counted_once(groups: list[CodeGroup], name: str) -> None:
    one: Gpu = GPUS[name]
    for isa in (None, (8, 7)):
        assert gpu.use(groups, one, isa).count == sum(group.count for group in groups)


def test_every_rule_of_the_data_says_why_and_whence() -> None:
    facts = catalogue.data("gpu")
    for entry in [facts["ptx"], facts["renamed"], *facts["gated"], *facts["replaced"], *facts["hidden"]]:
        assert entry["because"] and entry["source"] and entry["date"], entry
    assert facts["first_builds_source"]
    assert {each for entry in facts["first_builds"] for each in entry["gpus"]} <= {"11.0"} | {
        each.capability for each in GPUS.values()
    }
