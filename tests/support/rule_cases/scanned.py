"""Combinations that wheel scans answer, from the threads and measurements behind the rules that they replace.

Wheels for arm64 are not scanned: rules written by hand still answer there, by the same cases.
"""

from __future__ import annotations

from dataclasses import replace

from imagegen.compat import Facts
from tests.support.rule_cases import Case, case, stack

CASES = {
    # pytorch#142064: torch 2.6.0+cu126 has the new ABI; vllm 0.8.5 misses nine symbols there, none on PyPI's 2.6.0
    "vllm-085-abi": case(
        stack("12.6", torch="2.6.0+cu126", vllm="0.8.5.post1"),
        stack("12.4", torch="2.6.0", vllm="0.8.5.post1"),
    ),
    # vllm#31018: 0.13.0 with a torch for CUDA 13: "ImportError: libcudart.so.12"
    "vllm-pypi-cu12": case(
        stack("13.0", vllm="0.13.0"),
        stack("12.8", vllm="0.13.0"),
        stack("13.0", vllm="0.13.0+cu130"),
        stack("13.0", vllm="0.20.0"),
    ),
    # vllm#52300: "ImportError: libcudart.so.13" with torch 2.11.0+cu126; pie#327: so on any CUDA 12 since 0.20.0;
    # prime-rl takes the cu129 wheel of 0.26.0
    "vllm-pypi-cu13": case(
        stack("12.6", vllm="0.23.0"),
        stack("13.0", vllm="0.23.0"),
        stack("12.8", vllm="0.26.0+cu129"),
        stack("12.8", vllm="0.19.0"),
    ),
    # measured: 0.9.2 to 0.11.2 need GLIBC_2.29 under a manylinux1 tag; 0.8.5 needs 2.14
    "vllm-glibc-2.29": case(
        stack("12.6", glibc="2.28", vllm="0.9.2"),
        stack("12.6", glibc="2.31", vllm="0.9.2"),
        stack("12.4", glibc="2.28", vllm="0.8.5"),
    ),
    # fatbins of vllm 0.8.5: sm_70 to sm_90a and no PTX that is newer than compute_52; 0.9.2 has 100a and 120a
    "vllm-before-blackwell": case(
        stack("12.8", gpu="12.0", vllm="0.8.5"),
        stack("12.8", gpu="12.0", vllm="0.9.2"),
        stack("12.8", gpu="9.0", vllm="0.8.5"),
    ),
    # vllm#18995: 0.9.0 on a 5090; vllm#19794 adds 12.0 to the release after 0.9.1
    "vllm-0.9-rtx-blackwell": case(
        stack("12.8", gpu="12.0", vllm="0.9.1"),
        stack("12.8", gpu="12.0", vllm="0.9.2"),
        stack("12.8", gpu="10.0", vllm="0.9.1"),
        stack("12.8", gpu="12.0", vllm="0.9.1+cu128"),
    ),
    # undefined symbols of the wheels, and sglang's own pins: 0.4.9.post4 has 0.2.7 with torch 2.7.1
    "sgl-kernel-torch2.7": case(
        stack("12.8", torch="2.8.0", sgl_kernel="0.2.7"),
        stack("12.8", torch="2.7.1+cu128", sgl_kernel="0.2.7"),
        stack("12.4", torch="2.6.0", sgl_kernel="0.1.4"),
    ),
    # sglang 0.5.5 has 0.3.16.post5 with torch 2.8.0; 0.3.17 misses one symbol on 2.9
    "sgl-kernel-torch2.8": case(
        stack("12.8", torch="2.9.0", sgl_kernel="0.3.17"),
        stack("12.8", torch="2.8.0", sgl_kernel="0.3.16.post5"),
        stack("12.8", torch="2.7.1+cu128", sgl_kernel="0.2.8"),
        stack("13.0", torch="2.9.0+cu130", sgl_kernel="0.3.16.post5+cu130"),  # sglang 0.5.5's Dockerfile
    ),
    # sglang 0.5.6 has 0.3.18.post2 with torch 2.9.1; dlopen of 0.3.21's spatial_ops aborts on 2.8
    "sgl-kernel-torch2.9": case(
        stack("12.8", torch="2.8.0", sgl_kernel="0.3.21"),
        stack("12.8", torch="2.9.1", sgl_kernel="0.3.21"),
        stack("12.8", torch="2.8.0", sgl_kernel="0.3.16.post5"),
    ),
    "sglang-kernel-torch2.9": case(
        stack("12.8", torch="2.10.0", sglang_kernel="0.4.1"),
        stack("12.8", torch="2.9.1", sglang_kernel="0.4.1"),
        stack("13.0", torch="2.11.0", sglang_kernel="0.4.2"),
    ),
    # verl's image of 2026: 0.4.2.post2 with torch 2.11.0; on 2.10 three symbols are missing
    "sglang-kernel-torch2.11": case(
        stack("13.0", torch="2.10.0+cu130", sglang_kernel="0.4.2.post2"),
        stack("13.0", torch="2.11.0", sglang_kernel="0.4.2.post2"),
        stack("13.0", torch="2.13.0", sglang_kernel="0.4.6.post1"),
    ),
    # sglang 0.5.18 has 0.4.6.post1 with torch 2.13.0; one symbol is missing on 2.14
    "sglang-kernel-torch2.13": case(
        stack("13.0", torch="2.14.0", sglang_kernel="0.4.6.post1"),
        stack("13.0", torch="2.13.0", sglang_kernel="0.4.6.post1"),
        stack("13.0", torch="2.14.1", sglang_kernel="0.4.10"),
    ),
    # measured: 0.3.21 needs GLIBC_2.27 under a manylinux2014 tag, others 2.17
    "sgl-kernel-glibc-2.27": case(
        stack("12.8", glibc="2.26", sgl_kernel="0.3.21"),
        stack("12.8", glibc="2.28", sgl_kernel="0.3.21"),
        stack("12.8", glibc="2.26", sgl_kernel="0.2.7"),
    ),
    # fatbins of common_ops: 0.2.7 has 75, 80, 89, 90(a); 0.3.14 has 100a and 120a. sglang's Dockerfile.blackwell takes
    # the build of 0.0.9 for CUDA 12.8, for which sgl-kernel's CMakeLists.txt adds sm_100a and sm_120a
    "sgl-kernel-before-blackwell": case(
        stack("12.8", gpu="10.0", sgl_kernel="0.2.7"),
        stack("12.8", gpu="10.0", sgl_kernel="0.3.14.post1"),
        stack("12.8", gpu="9.0", sgl_kernel="0.2.7"),
        stack("12.8", gpu="10.0", sgl_kernel="0.2.7+cu128"),
    ),
    "sgl-kernel-b300": case(
        stack("12.9", gpu="10.3", sgl_kernel="0.3.21"),
        stack("12.9", gpu="10.0", sgl_kernel="0.3.21"),
        stack("12.9", gpu="10.3", sgl_kernel="0.3.21+cu130"),
    ),
    "sglang-kernel-b300": case(
        stack("12.9", gpu="10.3", sglang_kernel="0.4.1"),
        stack("13.0", gpu="10.3", sglang_kernel="0.4.2"),
        stack("12.9", gpu="10.0", sglang_kernel="0.4.1"),
        stack("12.9", gpu="10.3", sglang_kernel="0.4.1+cu130"),
    ),
    # MEDS_EIC_AR#163: PyPI's has images "only up to sm_120a", the +cu130 builds of SGLang's index have sm_121a;
    # fatbins: 120a alone, in 0.4.6.post1 and 0.4.10 too
    "sgl-kernel-gb10": case(
        (stack("12.9", gpu="12.1", sgl_kernel="0.3.21"), stack("12.9", gpu="12.1", sgl_kernel="0.3.9.post1")),
        stack("12.9", gpu="12.0", sgl_kernel="0.3.21"),
        stack("12.9", gpu="12.1", sgl_kernel="0.3.21+cu130"),
    ),
    "sglang-kernel-gb10": case(
        stack("13.0", gpu="12.1", sglang_kernel="0.4.6.post1"),
        stack("13.0", gpu="12.0", sglang_kernel="0.4.6.post1"),
        stack("13.0", gpu="12.1", sglang_kernel="0.4.4+cu130"),
    ),
    "sglang-kernel-0.4.10-gb10": case(
        stack("13.0", gpu="12.1", sglang_kernel="0.4.10"),
        stack("13.0", gpu="12.0", sglang_kernel="0.4.10"),
    ),
    # sglang-omni#620: 0.3.21 on a machine with CUDA 13 alone: "libnvrtc.so.12 / libcudart.so.12 not found"
    "sgl-kernel-cu12": case(
        (
            stack("13.0", torch="2.9.1+cu130", sgl_kernel="0.3.21"),
            stack("13.0", torch="2.9.1+cu130", sgl_kernel="0.3.18.post2"),  # sglang 0.5.6 beside a torch for CUDA 13
        ),
        stack("13.0", torch="2.9.1+cu130", sgl_kernel="0.3.21+cu130"),
        stack("12.8", torch="2.9.1", sgl_kernel="0.3.21"),
    ),
    # the audited core libraries: transformer-engine-cu12 links CUDA 12's cuBLAS, -cu13 CUDA 13's
    "te-cu12": case(
        stack("13.0", transformer_engine="2.16.1", transformer_engine_cu12="2.16.1"),
        stack("13.0", transformer_engine="2.16.1", transformer_engine_cu13="2.16.1"),
        stack("12.8", transformer_engine="2.16.1", transformer_engine_cu12="2.16.1"),
        stack("13.0", transformer_engine="2.6.0", transformer_engine_cu12="2.6.0"),
    ),
    "te-cu13": case(
        stack("12.8", transformer_engine="2.16.1", transformer_engine_cu13="2.16.1"),
        stack("12.8", transformer_engine="2.16.1", transformer_engine_cu12="2.16.1"),
        stack("13.0", transformer_engine="2.16.1", transformer_engine_cu13="2.16.1"),
    ),
    # measured: transformer-engine-cu12 2.6.0 asks for libcublas.so.13 and libcudart.so.13, 2.6.0.post1 for those of 12
    "te-2.6.0": case(
        stack("12.8", transformer_engine="2.6.0", transformer_engine_cu12="2.6.0"),
        stack("12.8", transformer_engine="2.6.0.post1", transformer_engine_cu12="2.6.0.post1"),
        stack("13.0", transformer_engine_cu12="2.6.0"),
    ),
    # measured: of 0.45.0 to 0.45.5, only libbitsandbytes_cuda126.so needs GLIBC_2.34; 0.46.0 needs 2.2.5
    "bitsandbytes-0.45-cuda12.6": case(
        (stack("12.6", glibc="2.31", bitsandbytes="0.45.5"), stack("12.6", glibc="2.31", bitsandbytes="0.45.0")),
        stack("12.6", glibc="2.34", bitsandbytes="0.45.5"),
        stack("12.4", glibc="2.31", bitsandbytes="0.45.5"),
        stack("12.6", glibc="2.31", bitsandbytes="0.46.0"),
    ),
    # vllm#13608: "undefined symbol" with 0.8.2 and torch 2.6.0 for CUDA 12.6
    "vllm-0.8.2": case(
        stack("12.6", torch="2.6.0+cu126", vllm="0.8.2"),
        stack("12.4", torch="2.6.0", vllm="0.8.2"),
    ),
}

_X86_64_ALONE = {"vllm-085-abi", "vllm-0.9-rtx-blackwell", "vllm-0.8.2", "te-2.6.0", "sglang-kernel-0.4.10-gb10"}
_X86_64_ALONE |= {"sgl-kernel-before-blackwell", "sgl-kernel-torch2.7"}  # there are no other wheels of these releases
_X86_64_ALONE |= {"sglang-kernel-gb10"}  # the wheel for arm64 has sm_121a
_X86_64_ALONE.add("bitsandbytes-0.45-cuda12.6")  # its wheels for arm64 are not scanned


def _on_arm64(facts: Facts) -> Facts:
    return replace(facts, names={**facts.names, "platform": "linux/arm64"})


def _case_on_arm64(each: Case) -> Case:
    silent = (*map(_on_arm64, each.silent), each.fails[0])  # on x86-64, a scan answers
    return Case(tuple(map(_on_arm64, each.fails)), _on_arm64(each.works), silent)


ARM64 = {name: _case_on_arm64(each) for name, each in CASES.items() if name not in _X86_64_ALONE}
