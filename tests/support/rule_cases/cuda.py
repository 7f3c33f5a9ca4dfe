"""CUDA: its toolkit's wheels, drivers, and what each knows of GPUs."""

from __future__ import annotations

from tests.support.rule_cases import case, stack

CASES = {
    # NVIDIA_REQUIRE_CUDA of the images: branches between the listed ones, which report an older CUDA, are refused
    "driver-base-cuda-124-ubuntu2204": case(
        stack("12.4", driver="545.23.08", base="cuda12.4-ubuntu22.04"),
        stack("12.4", driver="550.54.15", base="cuda12.4-ubuntu22.04"),
        stack("12.4", driver="535.183.01", base="cuda12.4-ubuntu22.04"),
    ),
    "driver-base-cuda-126-ubuntu2204": case(
        (
            stack("12.6", driver="525.147.05", base="cuda12.6-ubuntu22.04"),
            stack("12.6", driver="555.42.06", base="cuda12.6-ubuntu22.04"),
        ),
        stack("12.6", driver="560.35.03", base="cuda12.6-ubuntu22.04"),
        stack("12.6", driver="550.54.15", base="cuda12.6-ubuntu22.04"),
    ),
    "driver-base-cuda-128-ubuntu2204": case(
        stack("12.8", driver="545.23.08", base="cuda12.8-ubuntu22.04"),
        stack("12.8", driver="570.26", base="cuda12.8-ubuntu22.04"),
        stack("12.8", driver="545.23.08", base="ubuntu22.04"),
    ),
    "driver-base-cuda-128-ubuntu2404": case(
        stack("12.8", driver="555.42.06", base="cuda12.8-ubuntu24.04"),
        stack("12.8", driver="570.26", base="cuda12.8-ubuntu24.04"),
        stack("12.8", driver="565.57.01", base="cuda12.8-ubuntu24.04"),
    ),
    # resolved on 2026-11-20 for CUDA 13.0: nvcc and nvvm 13.2.86 beside runtime 13.0.96; cuda-toolkit 13.0.3 lets
    # nvJitLink alone be newer, and torch 2.13.0 resolves to 13.5.37
    "toolkit-wheels-13.0": case(
        (
            stack("13.0", nvidia_cuda_nvcc="13.2.86", nvidia_cuda_runtime="13.0.96", driver="595.58.03"),
            stack("13.0", nvidia_nvvm="13.2.86"),
            stack("13.0", nvidia_cuda_crt="13.5.37"),
            stack("13.0", nvidia_cuda_cccl="13.3.5.0.6"),
            stack("13.0", nvidia_cuda_runtime="13.5.37"),
            stack("13.0", nvidia_cuda_nvrtc="13.5.37"),
            stack("13.0", cuda_toolkit="13.5.0"),
        ),
        stack(
            "13.0",
            nvidia_cuda_nvcc="13.0.88",
            nvidia_nvvm="13.0.88",
            nvidia_cuda_crt="13.0.88",
            nvidia_cuda_cccl="13.0.85",
            nvidia_cuda_runtime="13.0.96",
            nvidia_cuda_nvrtc="13.0.88",
            cuda_toolkit="13.0.3.0",
            nvidia_nvjitlink="13.5.37",
        ),
        stack("13.2", nvidia_cuda_nvcc="13.2.86"),
    ),
    # torch 2.15 is the CUDA 13.2 build; the wheels of PyPI whose versions begin with 13.2
    "toolkit-wheels-13.2": case(
        stack("13.2", nvidia_cuda_nvcc="13.5.37", driver="615.71.09"),
        stack("13.2", nvidia_cuda_nvcc="13.2.86", nvidia_cuda_cccl="13.2.86", cuda_toolkit="13.2.2"),
        stack("13.0", nvidia_cuda_nvcc="13.0.88"),
    ),
    # torch 2.9.1+cu129 requires runtime 12.9.79; the newest ptxas of CUDA 12 is 12.9.86 for everybody else
    "toolkit-wheels-12.4": case(
        stack("12.4", nvidia_cuda_nvcc_cu12="12.9.86"),
        stack("12.4", nvidia_cuda_nvcc_cu12="12.4.131", nvidia_cuda_runtime_cu12="12.4.127"),
        stack("12.9", nvidia_cuda_nvcc_cu12="12.9.86"),
    ),
    "toolkit-wheels-12.6": case(
        stack("12.6", nvidia_cuda_nvrtc_cu12="12.9.86"),
        stack("12.6", nvidia_cuda_nvrtc_cu12="12.6.85", nvidia_cuda_nvcc_cu12="12.6.85"),
        stack("12.9", nvidia_cuda_nvrtc_cu12="12.9.86"),
    ),
    "toolkit-wheels-12.8": case(
        stack("12.8", nvidia_cuda_runtime_cu12="12.9.79"),
        stack("12.8", nvidia_cuda_runtime_cu12="12.8.90", nvidia_cuda_nvcc_cu12="12.8.93"),
        stack("12.9", nvidia_cuda_runtime_cu12="12.9.79"),
    ),
    "toolkit-wheels-12.9": case(
        stack("12.9", nvidia_cuda_nvcc_cu12="12.8.93"),
        stack("12.9", nvidia_cuda_nvrtc_cu12="12.9.86", nvidia_cuda_nvcc_cu12="12.9.86"),
        stack("12.8", nvidia_cuda_nvcc_cu12="12.8.93"),
    ),
    # the wheels of PyPI whose versions begin so; driver: CUDA 13.4 came with R615
    "toolkit-wheels-13.1": case(
        stack("13.1", nvidia_cuda_nvcc="13.2.86", driver="615.71.09"),
        stack("13.1", nvidia_cuda_nvcc="13.1.115", nvidia_cuda_runtime="13.1.1", driver="615.71.09"),
        stack("13.0", nvidia_cuda_nvcc="13.0.88"),
    ),
    "toolkit-wheels-13.3": case(
        stack("13.3", nvidia_cuda_nvcc="13.5.37", driver="615.71.09"),
        stack("13.3", nvidia_cuda_nvcc="13.3.73", nvidia_cuda_runtime="13.3.1", driver="615.71.09"),
        stack("13.0", nvidia_cuda_nvcc="13.0.88"),
    ),
    "toolkit-wheels-13.4": case(
        stack("13.4", nvidia_cuda_nvcc="13.5.37", driver="615.71.09"),
        stack("13.4", nvidia_cuda_nvcc="13.4.92", nvidia_cuda_runtime="13.4.1", driver="615.71.09"),
        stack("13.0", nvidia_cuda_nvcc="13.0.88"),
    ),
    "toolkit-wheels-13.5": case(
        stack("13.5", nvidia_cuda_nvcc="13.4.92", driver="615.71.09"),
        stack("13.5", nvidia_cuda_nvcc="13.5.37", nvidia_cuda_runtime="13.5.1", driver="615.71.09"),
        stack("13.0", nvidia_cuda_nvcc="13.0.88"),
    ),
    # on an H200 with driver 580: PTX of ISA 9.1 and 9.2 (CUDA 13.1 and 13.2) gives error 222; 9.0 loads
    "nvcc-ptx-driver": case(
        stack("13.1", driver="580.95.05", nvidia_cuda_nvcc="13.1.115"),
        stack("13.0", driver="580.95.05", nvidia_cuda_nvcc="13.0.88"),
        stack("13.1", driver="590.44", nvidia_cuda_nvcc="13.1.115"),
    ),
    "nvcc-13.2-ptx-driver": case(
        stack("13.2", driver="590.48.01", nvidia_cuda_nvcc="13.2.86"),
        stack("13.2", driver="595.58.03", nvidia_cuda_nvcc="13.2.86"),
        stack("13.1", driver="590.48.01", nvidia_cuda_nvcc="13.1.115"),
    ),
    "nvcc-13.3-ptx-driver": case(
        stack("13.3", driver="595.58.03", nvidia_cuda_nvcc="13.3.73"),
        stack("13.3", driver="610.43.02", nvidia_cuda_nvcc="13.3.73"),
        stack("13.2", driver="595.58.03", nvidia_cuda_nvcc="13.2.86"),
    ),
    "nvcc-13.4-ptx-driver": case(
        stack("13.4", driver="610.43.02", nvidia_cuda_nvcc="13.4.92"),
        stack("13.4", driver="615.71.09", nvidia_cuda_nvcc="13.4.92"),
        stack("13.3", driver="610.43.02", nvidia_cuda_nvcc="13.3.73"),
    ),
    # CUDA 12.8's release notes: the compiler's first support of sm_100, sm_101 and sm_120
    "nvcc-cu12-blackwell": case(
        stack("13.0", gpu="10.0", nvidia_cuda_nvcc_cu12="12.6.85"),
        stack("13.0", gpu="10.0", nvidia_cuda_nvcc_cu12="12.8.93"),
        stack("13.0", gpu="9.0", nvidia_cuda_nvcc_cu12="12.6.85"),
    ),
    # CUDA 11.8's release notes: the first with Hopper and Ada
    "cuda-hopper": case(stack("11.7", gpu="9.0"), stack("11.8", gpu="9.0"), stack("11.7", gpu="8.0")),
    # fatbins of torch 2.7.1 (cu126): nothing for 10.0 to 12.1; pytorch#175253: cu126 is 5.0 to 9.0
    "cuda-blackwell": case(
        stack("12.6", gpu="12.0", torch="2.7.1"),
        stack("12.8", gpu="12.0", torch="2.7.1+cu128"),
        stack("12.6", gpu="9.0", torch="2.7.1"),
        stack("cpu", gpu="12.0", torch="2.7.1+cpu"),
    ),
    # CUDA 12.9's release notes: sm_103 and sm_121, family targets; flashinfer#2188: "sm121 on 12.9"
    "cuda-b300": case(stack("12.8", gpu="10.3"), stack("12.9", gpu="10.3"), stack("12.8", gpu="10.0")),
    "cuda-gb10": case(stack("12.8", gpu="12.1"), stack("12.9", gpu="12.1"), stack("12.8", gpu="12.0")),
    # flashinfer#2188: "SM110 now requires CUDA 13.0 (raised from 12.9)"
    "cuda-thor": case(stack("12.9", gpu="11.0"), stack("13.0", gpu="11.0"), stack("12.9", gpu="10.0")),
    # CUDA 13.0's release notes: Maxwell, Pascal and Volta are gone
    "cuda13-before-turing": case(stack("13.0", gpu="7.0"), stack("12.6", gpu="7.0"), stack("13.0", gpu="7.5")),
    # sglang#12320: "it only supports SM90 and SM100"; DeepGEMM#305: no plans for sm_120
    "deep-gemm-gpus": case(
        stack("12.9", gpu="12.0", deep_gemm="2.1.0"),
        stack("12.9", gpu="10.0", deep_gemm="2.1.0"),
        stack("12.9", gpu="12.0", deep_gemm="2.5.0"),  # DeepGEMM#324, merged on 2026-06-24 into nv_dev, which is 2.5.0
    ),
    "deep-gemm-before-hopper": case(
        (stack("12.9", gpu="8.9", deep_gemm="2.1.0"), stack("12.9", gpu="8.9", deep_gemm="2.5.0")),
        stack("12.9", gpu="12.0", deep_gemm="2.5.0"),
        stack("12.9", gpu="8.9"),
    ),
    # sglang#34827, and the wheels of 0.1.4 and 0.1.5 listed; from 10.0 down 0.1.4 has its sources
    "sgl-deep-gemm-rtx-blackwell": case(
        stack("13.0", gpu="12.0", sgl_deep_gemm="0.1.4"),
        stack("13.0", gpu="10.0", sgl_deep_gemm="0.1.4"),
        stack("13.0", gpu="12.0", sgl_deep_gemm="0.1.5"),
    ),
    # vllm-gb10#28: the arch list is 9.0a and 10.0a; DeepEP#162: intranode kernels run on A100
    "deep-ep-gb10": case(
        stack("12.9", gpu="12.1", deep_ep="1.2.1"),
        stack("12.9", gpu="10.0", deep_ep="1.2.1"),
        stack("12.9", gpu="12.1"),
    ),
    # NVIDIA's page on minor-version compatibility: 11.x >= 450, 12.x >= 525, 13.x >= 580
    "driver-cuda11": case(
        stack("11.8", gpu="8.0", driver="440.33"),
        stack("11.8", gpu="8.0", driver="450.80.02"),
        stack("10.2", gpu="7.5", driver="440.33"),
    ),
    "driver-cuda12": case(
        stack("12.4", driver="520.61.05"), stack("12.4", driver="525.60.13"), stack("11.8", driver="520.61.05")
    ),
    "driver-cuda13": case(
        stack("13.0", driver="575.57.08"), stack("13.0", driver="580.65.06"), stack("12.9", driver="575.57.08")
    ),
    # as remembered: R570 is the first with Blackwell, R575 with B300 and GB10
    "driver-blackwell": case(
        stack("12.8", gpu="10.0", driver="565.57.01"),
        stack("12.8", gpu="10.0", driver="570.26"),
        stack("12.8", gpu="9.0", driver="565.57.01"),
    ),
    "driver-b300": case(
        stack("12.9", gpu="10.3", driver="570.26"),
        stack("12.9", gpu="10.3", driver="580.65.06"),
        stack("12.9", gpu="10.0", driver="570.26"),
    ),
    "driver-gb10": case(
        stack("12.9", gpu="12.1", driver="570.26"),
        stack("12.9", gpu="12.1", driver="580.65.06"),
        stack("12.9", gpu="12.0", driver="570.26"),
    ),
    # counted: 1,177 zstd entries in cuBLAS 12.8; that they load from CUDA 12.4's driver on is remembered
    "driver-zstd": case(
        stack("12.8", driver="535.54.03", nvidia_cublas_cu12="12.8.4.1"),
        stack("12.8", driver="550.54.14", nvidia_cublas_cu12="12.8.4.1"),
        stack("12.6", driver="535.54.03", nvidia_cublas_cu12="12.6.4.1"),
    ),
}
