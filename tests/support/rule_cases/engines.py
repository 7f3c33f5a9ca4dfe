"""vLLM and SGLang with their kernels."""

from __future__ import annotations

from tests.support.rule_cases import case, stack

BLACKWELL = {"TORCH_CUDA_ARCH_LIST": "10.0 10.3 12.0 12.1"}

CASES = {
    # vLLM's installation guide: CPU has wheels of its own, +cpu on GitHub; PyPI's are for CUDA
    "vllm-pypi-cpu": case(
        stack("cpu", vllm="0.24.0"),
        stack("13.0", vllm="0.24.0"),
        stack("cpu", vllm="0.24.0+cpu"),
    ),
    # vllm#41103: 0.20.0+cu129 on Ubuntu 20.04; 0.22.0's file has the tag manylinux_2_28
    "vllm-cu129-glibc": case(
        stack("12.9", glibc="2.31", vllm="0.20.0+cu129"),
        stack("12.9", glibc="2.35", vllm="0.20.0+cu129"),
        stack("12.9", glibc="2.31", vllm="0.22.0+cu129"),
        stack("12.9", glibc="2.31", vllm="0.20.0+another"),
    ),
    # vllm#26592, of 2025-10-10: "The CUDA 12.9.1 wheels in the vllm index are missing sm100 and sm120 support"
    "vllm-cu129-blackwell": case(
        stack("12.9", gpu="12.0", vllm="0.11.0+cu129"),
        stack("12.8", gpu="12.0", vllm="0.11.0"),
        stack("12.9", gpu="9.0", vllm="0.11.0+cu129"),
        stack("12.9", gpu="12.0", vllm="0.11.1+cu129"),
    ),
    # fatbins: 100a and 120a until 0.16 (partial on 10.3 and 12.1), 100f and 120f from 0.20 on
    "vllm-b300": case(
        stack("12.9", gpu="10.3", vllm="0.16.0"),
        stack("13.0", gpu="10.3", vllm="0.20.0"),
        stack("12.9", gpu="10.0", vllm="0.16.0"),
        stack("13.0", gpu="10.3", vllm="0.16.0+cu130"),
    ),
    "vllm-gb10": case(
        stack("12.9", gpu="12.1", vllm="0.16.0"),
        stack("13.0", gpu="12.1", vllm="0.20.0"),
        stack("12.9", gpu="12.0", vllm="0.16.0"),
        stack("13.0", gpu="12.1", vllm="0.16.0+cu130"),
    ),
    # fatbin of _vllm_fa2_C: SASS of 80, and PTX of ISA 8.7 (CUDA 12.8) in 0.9.2 to 0.11.2, 8.8 (12.9) in 0.12.0 to
    # 0.19.0; vllm#28305 and its four issues: such a driver says "unsupported toolchain"; on 8.9 the SASS runs
    # vllm 0.10.0: 2 of 81 containers of _C are such PTX alone on sm_80, also beside torch for CUDA 12.6
    # vllm#37140: 0.11.0 serves qwen3-8b on Hopper, and fails with qwen3-vl on the same machine
    "vllm-ptx-8.7": case(
        (
            stack("12.8", gpu="12.0", driver="570.10", vllm="0.11.0"),
            stack("12.8", gpu="9.0", driver="550.54.14", vllm="0.11.0"),
            stack("12.6", gpu="8.0", driver="560.35", vllm="0.10.0"),
        ),
        stack("12.8", gpu="12.0", driver="570.26", vllm="0.11.0"),
        stack("12.4", gpu="9.0", driver="550.54.14", vllm="0.8.5"),
        stack("12.8", gpu="8.9", driver="550.54.14", vllm="0.12.0"),
    ),
    "vllm-ptx-8.8": case(
        stack("12.9", gpu="12.0", driver="570.124.06", vllm="0.12.0"),
        stack("12.9", gpu="12.0", driver="575.51.03", vllm="0.12.0"),
        stack("12.8", gpu="12.0", driver="570.124.06", vllm="0.11.2"),
        stack("12.9", gpu="8.9", driver="550.54.14", vllm="0.12.0"),
    ),
    "vllm-ptx-hopper-8.8": case(
        stack("12.9", gpu="9.0", driver="570.124.06", vllm="0.12.0"),
        stack("12.9", gpu="9.0", driver="575.51.03", vllm="0.12.0"),
        stack("12.9", gpu="8.0", driver="570.124.06", vllm="0.12.0"),
        stack("12.8", gpu="9.0", driver="570.124.06", vllm="0.11.2"),
    ),
    # vllm#22178: 0.9.0 in August 2025: "'aimv2' is already used by a Transformers config"; vllm-fork#1663: 4.53.3 works
    "vllm-aimv2": case(
        stack("12.6", vllm="0.9.2", transformers="4.54.0"),
        stack("12.6", vllm="0.9.2", transformers="4.53.3"),
        stack("12.4", vllm="0.8.5", transformers="4.57.1"),
    ),
    # es-at-scale#41: vllm 0.11.0 with transformers 5.1.0: "no attribute all_special_tokens_extended"
    "vllm-transformers5": case(
        stack("12.8", vllm="0.11.0", transformers="5.1.0"),
        stack("12.8", vllm="0.11.0", transformers="4.57.6"),
        stack("13.0", vllm="0.20.0", transformers="5.6.0"),
    ),
    # Qwen3's README: vllm>=0.8.5; before, "no module or parameter named 'block' in Qwen3ForCausalLM"
    "vllm-qwen3": case(
        stack("12.4", vllm="0.8.4", transformers="4.51.1"),
        stack("12.4", vllm="0.8.5", transformers="4.51.1"),
        stack("12.4", vllm="0.8.4", transformers="4.50.3"),
    ),
    # listed: both wheels hold sgl_kernel/__init__.py, deep_gemm/__init__.py, triton_kernels/__init__.py
    "sgl-kernel-two-names": case(
        stack("12.8", torch="2.9.1", sgl_kernel="0.3.21", sglang_kernel="0.4.1"),
        stack("12.8", torch="2.9.1", sglang_kernel="0.4.1"),
        stack("12.8", torch="2.9.1", sgl_kernel="0.3.21"),
    ),
    # sglang#2552; 0.4.0.post1 bounds vllm itself
    "sglang-0.4.0-vllm": case(
        stack("12.4", torch="2.5.1", sglang="0.4.0", vllm="0.6.5"),
        stack("12.4", torch="2.5.1", sglang="0.4.0", vllm="0.6.4.post1"),
        stack("12.4", torch="2.5.1", sglang="0.4.0.post1", vllm="0.6.5"),
    ),
}
