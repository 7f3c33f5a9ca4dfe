"""Code that compilers make at run time, and cuDNN: the first and last GPUs that each release serves."""

from __future__ import annotations

from tests.support.rule_cases import case, stack

# Measured on 2026-11-28: each triton of PyPI compiled a copy and a tl.dot of float16 for each GPU, with its own ptxas,
# and with the one of CUDA 13.5; the fatbins of cuDNN were listed; `ptxas --help` names what each nvcc knows.
ARM64 = "linux/arm64"
RUBIN = {"gpu": "10.7", "driver": "615.71.09", "platform": ARM64}

CASES = {
    "triton-blackwell": case(
        (stack("12.8", gpu="10.0", triton="3.2.0"), stack("12.8", gpu="12.0", triton="3.1.0")),
        stack("12.8", gpu="10.0", triton="3.3.1"),
        stack("12.4", gpu="9.0", triton="3.2.0"),
    ),
    # the copy compiles, the tl.dot does not
    "triton-3.3.0-rtx-blackwell": case(
        stack("12.8", gpu="12.0", triton="3.3.0"),
        stack("12.8", gpu="12.0", triton="3.3.1"),
        stack("12.8", gpu="10.0", triton="3.3.0"),
    ),
    "triton-3.3-turing": case(
        (stack("12.6", gpu="7.5", triton="3.3.1"), stack("12.6", gpu="7.0", triton="3.3.0")),
        stack("12.6", gpu="7.5", triton="3.4.0"),
        stack("12.6", gpu="8.0", triton="3.3.1"),
    ),
    "triton-3.3-b300": case(
        stack("12.9", gpu="10.3", triton="3.3.1"),
        stack("12.9", gpu="10.3", triton="3.6.0"),
        stack("12.9", gpu="10.0", triton="3.3.1"),
    ),
    "triton-3.5.0-b300": case(
        stack("13.0", gpu="10.3", triton="3.5.0"),
        stack("13.0", gpu="10.3", triton="3.6.0"),
        stack("13.0", gpu="10.0", triton="3.5.0"),
    ),
    # with the ptxas of CUDA 13.5, 3.5.1 compiles for 10.3; 3.4.0 takes none of CUDA 13
    "triton-ptxas-b300": case(
        (stack("13.0", gpu="10.3", triton="3.5.1"), stack("12.9", gpu="10.3", triton="3.4.0")),
        stack("13.0", gpu="10.3", triton="3.6.0"),
        stack("13.0", gpu="10.0", triton="3.5.1"),
    ),
    # triton#8539 and #10331: 3.5.0's ptxas is 12.8.93 and says "Value 'sm_121a' is not defined"; 3.6.0 brings 12.9.86
    "triton-gb10": case(
        stack("12.9", gpu="12.1", triton="3.5.0"),
        stack("12.9", gpu="12.1", triton="3.6.0"),
        stack("12.9", gpu="12.0", triton="3.5.0"),
    ),
    "triton-thor": case(
        stack("13.0", gpu="11.0", triton="3.6.0", platform="linux/arm64"),
        stack("13.0", gpu="11.0", triton="3.7.0", platform="linux/arm64"),
        stack("13.0", gpu="10.3", triton="3.6.0", platform="linux/arm64"),
    ),
    "triton-3.3-rubin": case(
        (
            stack("13.4", gpu="10.7", driver="615.71.09", triton="3.7.1"),
            stack("13.4", gpu="10.7", driver="615.71.09", triton="3.3.1"),
        ),
        stack("13.4", gpu="10.7", driver="615.71.09", triton="3.9.0"),
        stack("13.4", gpu="10.3", triton="3.7.1"),
        stack("13.4", gpu="10.7", driver="615.71.09", triton="3.8.0"),
    ),
    "triton-ptxas-rubin": case(
        stack("13.4", gpu="10.7", driver="615.71.09", triton="3.8.0"),
        stack("13.4", gpu="10.7", driver="615.71.09", triton="3.9.0"),
        stack("13.4", gpu="10.3", triton="3.8.0"),
    ),
    "nvcc-cu12-blackwell-variants": case(
        (
            stack("13.0", gpu="10.3", nvidia_cuda_nvcc_cu12="12.8.93"),
            stack("13.0", gpu="12.1", nvidia_cuda_nvcc_cu12="12.8.61"),
        ),
        stack("13.0", gpu="10.3", nvidia_cuda_nvcc_cu12="12.9.86"),
        stack("12.8", gpu="12.0", nvidia_cuda_nvcc_cu12="12.8.93"),
        stack("12.8", gpu="10.0", nvidia_cuda_nvcc_cu12="12.8.93"),
    ),
    # flashinfer#4217: "sm_107a is not defined" with CUDA 13.2; CUDA 14 stands for one that no other rule is about
    "nvcc-rubin": case(
        stack("14.0", gpu="10.7", driver="615.71.09", nvidia_cuda_nvcc="13.3.73"),
        stack("13.4", gpu="10.7", driver="615.71.09", nvidia_cuda_nvcc="13.4.92"),
        stack("13.0", gpu="10.3", nvidia_cuda_nvcc="13.0.88"),
    ),
    "nvcc-cu12-rubin": case(
        stack("13.4", gpu="10.7", driver="615.71.09", nvidia_cuda_nvcc_cu12="12.9.86"),
        stack("13.4", gpu="10.7", driver="615.71.09", nvidia_cuda_nvcc="13.4.92"),
        stack("12.9", gpu="10.3", nvidia_cuda_nvcc_cu12="12.9.86"),
    ),
    # pytorch#190654: CUDA 13.4 adds 10.7, and code for 10.0 runs on it
    "cuda-rubin": case(
        stack("13.2", gpu="10.7", driver="615.71.09"),
        stack("13.4", gpu="10.7", driver="615.71.09"),
        stack("13.2", gpu="10.3"),
    ),
    "driver-rubin": case(
        stack("13.4", gpu="10.7", driver="610.43.02"),
        stack("13.4", gpu="10.7", driver="615.71.09"),
        stack("13.4", gpu="10.3", driver="610.43.02"),
    ),
    "cudnn-cu12-before-turing": case(
        (
            stack("12.6", gpu="7.0", nvidia_cudnn_cu12="9.11.0.98"),
            stack("12.6", gpu="6.1", nvidia_cudnn_cu12="9.28.0.42"),
        ),
        stack("12.6", gpu="7.0", nvidia_cudnn_cu12="9.10.2.21"),
        stack("12.6", gpu="7.5", nvidia_cudnn_cu12="9.11.0.98"),
    ),
    "cudnn-before-blackwell": case(
        stack("12.8", gpu="12.0", nvidia_cudnn_cu12="9.5.1.17"),
        stack("12.8", gpu="12.0", nvidia_cudnn_cu12="9.7.1.26"),
        stack("12.8", gpu="9.0", nvidia_cudnn_cu12="9.5.1.17"),
    ),
    # flashinfer#3633: on an RTX PRO 6000, 0.6.18 compiles nothing with nvcc 12.8, and all with 12.9
    "flashinfer-nvcc-sm12": case(
        (
            stack("12.8", gpu="12.0", flashinfer_python="0.6.18", env={"TORCH_CUDA_ARCH_LIST": "12.0"}),
            stack("12.8", gpu="12.0", flashinfer_python="0.6.7", env={"TORCH_CUDA_ARCH_LIST": "12.0"}),
        ),
        stack("12.9", gpu="12.0", flashinfer_python="0.6.18", env={"TORCH_CUDA_ARCH_LIST": "12.0"}),
        stack("12.8", gpu="12.0", flashinfer_python="0.7.1", env={"TORCH_CUDA_ARCH_LIST": "12.0"}),
        stack("12.8", gpu="9.0", flashinfer_python="0.6.18"),
        stack("12.8", gpu="12.0", flashinfer_python="0.6.6", env={"TORCH_CUDA_ARCH_LIST": "12.0"}),
    ),
    # flashinfer#5479: "Unknown option '--compress-mode=size'" with 0.6.18
    "flashinfer-nvcc-compress-mode": case(
        stack("12.6", flashinfer_python="0.6.18"),
        stack("12.8", flashinfer_python="0.6.18"),
        stack("12.6", flashinfer_python="0.6.17"),
    ),
    # pytorch#172663: builds for aarch64 have 8.0, 9.0, 10.0 and 12.0, those for CUDA 13 also 11.0
    "torch-arm64-before-ampere": case(
        (
            stack("13.0", gpu="7.5", platform=ARM64, torch="2.11.0"),
            stack("12.6", gpu="7.5", platform=ARM64, torch="2.9.1+cu126"),
        ),
        stack("13.0", gpu="9.0", platform=ARM64, torch="2.11.0"),
        stack("13.0", gpu="7.5", torch="2.11.0"),
        stack("13.0", gpu="8.7", platform=ARM64, torch="2.11.0"),
        stack("12.4", gpu="7.5", platform=ARM64, torch="2.8.0"),
        stack("cpu", gpu="7.5", platform=ARM64, torch="2.10.0"),
        stack("11.8", gpu="7.5", platform=ARM64, torch="2.9.1"),
    ),
    # common_ops of 0.4.1.post1: 90, 90a, 100a, 101a, 120a; of 0.4.2: 103a, 110a and 121a too; of 0.4.6: 100f
    "sglang-kernel-arm64-before-hopper": case(
        stack("13.0", gpu="8.7", platform=ARM64, sglang_kernel="0.4.10"),
        stack("13.0", gpu="9.0", platform=ARM64, sglang_kernel="0.4.10"),
        stack("13.0", gpu="8.7", sglang_kernel="0.4.10"),
        stack("13.0", gpu="8.7", platform=ARM64, sglang_kernel="0.4.10+local"),
    ),
    "sglang-kernel-arm64-gb10": case(
        stack("12.9", gpu="12.1", platform=ARM64, sglang_kernel="0.4.1.post1"),
        stack("13.0", gpu="12.1", platform=ARM64, sglang_kernel="0.4.2"),
        stack("12.9", gpu="12.0", platform=ARM64, sglang_kernel="0.4.1.post1"),
        stack("12.9", gpu="12.1", sglang_kernel="0.4.1.post1"),
        stack("13.0", gpu="12.1", platform=ARM64, sglang_kernel="0.4.1+cu130"),
    ),
    "sglang-kernel-arm64-rubin": case(
        stack("13.4", **RUBIN, sglang_kernel="0.4.5"),
        stack("13.4", **RUBIN, sglang_kernel="0.4.6"),
        stack("13.0", gpu="10.3", platform=ARM64, sglang_kernel="0.4.5"),
        stack("13.4", gpu="10.7", sglang_kernel="0.4.5"),
        stack("13.4", **RUBIN, sglang_kernel="0.4.5+local"),
    ),
    # common_ops of 0.3.20: 90, 90a, 100a, 101a, 120a; of 0.3.21: 80, 87 and 89 too
    "sgl-kernel-arm64-before-hopper": case(
        stack("12.8", gpu="8.7", platform=ARM64, sgl_kernel="0.3.20"),
        stack("12.8", gpu="8.7", platform=ARM64, sgl_kernel="0.3.21"),
        stack("12.8", gpu="9.0", platform=ARM64, sgl_kernel="0.3.20"),
        stack("12.8", gpu="8.7", sgl_kernel="0.3.20"),
        stack("12.8", gpu="8.7", platform=ARM64, sgl_kernel="0.3.20+local"),
    ),
}
