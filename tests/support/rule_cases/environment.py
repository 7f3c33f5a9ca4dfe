"""Variables, and names that are not what they seem."""

from __future__ import annotations

from tests.support.rule_cases import case, stack

EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
HIDDEN = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
COMPAT = {"LD_LIBRARY_PATH": "/usr/local/cuda/compat:/usr/local/nvidia/lib64"}

CASES = {
    # read: cumem.py of vllm 0.8.0 to 0.20.0 asserts, 0.20.1's toggles; 0.7.3 says nothing of it
    "vllm-expandable-segments": case(
        stack("12.8", vllm="0.12.0", env=EXPANDABLE),
        stack("13.0", vllm="0.20.1", env=EXPANDABLE),
        stack("12.8", vllm="0.12.0"),
        stack("12.8", vllm="0.12.0", env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}),
    ),
    # trl#5794: "setting only PYTORCH_ALLOC_CONF bypasses vLLM's detection"; read: 0.24.0 looks at the other one alone
    "vllm-expandable-segments-alias": case(
        stack("13.0", vllm="0.24.0", env=HIDDEN),
        stack("13.0", vllm="0.24.0", env=EXPANDABLE),
        stack("13.0", torch="2.11.0", env=HIDDEN),
        stack("12.4", vllm="0.7.3", env=HIDDEN),
    ),
    # read in 0.0.9: TorchMemorySaver "is disabled for the current process because expandable_segments is not supported"
    "memory-saver-expandable-segments": case(
        stack(torch_memory_saver="0.0.9", env=EXPANDABLE),
        stack(torch_memory_saver="0.0.9"),
        stack(torch="2.11.0", env=EXPANDABLE),
    ),
    # read: llm_engine.py of 0.11.0 raises when VLLM_USE_V1 is 0; 0.10.2 still has V0
    "vllm-v0-is-gone": case(
        stack("12.8", vllm="0.11.0", env={"VLLM_USE_V1": "0"}),
        stack("12.8", vllm="0.11.0", env={"VLLM_USE_V1": "1"}),
        stack("12.8", vllm="0.10.2", env={"VLLM_USE_V1": "0"}),
    ),
    # prime-rl's run on vLLM V1: a segfault in cuCtxGetDevice in a forked child, gone with spawn
    "vllm-fork": case(
        (
            stack("13.0", vllm="0.24.0", env={"VLLM_WORKER_MULTIPROC_METHOD": ""}),
            stack("13.0", vllm="0.24.0", env={"VLLM_WORKER_MULTIPROC_METHOD": "fork"}),
        ),
        stack("13.0", vllm="0.24.0", env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}),
        stack("12.4", vllm="0.7.3", env={"VLLM_WORKER_MULTIPROC_METHOD": ""}),
    ),
    # read: envs.py of 0.14.0 has VLLM_ATTENTION_BACKEND, 0.15.0's does not
    "vllm-attention-backend": case(
        stack("12.8", vllm="0.16.0", env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
        stack("12.8", vllm="0.14.0", env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
        stack("12.8", vllm="0.16.0"),
    ),
    # the crash on an RTX PRO 6000 Blackwell: TORCH_CUDA_ARCH_LIST unset, or without 12.0
    "arch-list-sm120": case(
        (
            stack(gpu="12.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": ""}),
            stack(gpu="12.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": "8.0 9.0"}),
        ),
        stack(gpu="12.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": "10.0 12.0+PTX"}),
        stack(gpu="8.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": "8.0"}),
        stack(gpu="12.0", env={"TORCH_CUDA_ARCH_LIST": ""}),
    ),
    # the same on other GPUs: torch's extensions are compiled for the list, or for what is visible
    "arch-list-sm100": case(
        stack(gpu="10.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": "9.0"}),
        stack(gpu="10.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": "10.0"}),
        stack(gpu="8.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": "8.0"}),
        stack(gpu="10.0", env={"TORCH_CUDA_ARCH_LIST": ""}),
    ),
    "arch-list-sm90": case(
        stack(gpu="9.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": "8.0"}),
        stack(gpu="9.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": "9.0a"}),
        stack(gpu="8.0", flashinfer_python="0.6.12", env={"TORCH_CUDA_ARCH_LIST": "8.0"}),
        stack(gpu="9.0", env={"TORCH_CUDA_ARCH_LIST": ""}),
    ),
    # vllm#33447, gpustack#4678: error 803 on driver 580.105.08 with compat of CUDA 12.9; vllm#33992: 575 needs compat
    "compat-on-the-loader-path": case(
        stack("12.9", driver="580.105.08", env=COMPAT),
        stack("12.9", driver="580.105.08", env={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}),
        stack("12.9", driver="575.57.08", env=COMPAT),
        stack("13.2", driver="595.58.03", env=COMPAT),
    ),
    # vllm#34821: opt-in by VLLM_ENABLE_CUDA_COMPATIBILITY=1
    "compat-switch": case(
        stack("13.0", driver="580.105.08", vllm="0.24.0", env={"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}),
        stack("13.0", driver="580.105.08", vllm="0.24.0", env={"VLLM_ENABLE_CUDA_COMPATIBILITY": "0"}),
        stack("12.9", driver="575.57.08", vllm="0.19.0", env={"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}),
        stack("13.2", driver="595.58.03", vllm="0.24.0", env={"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}),
        stack("13.0", driver="580.105.08", env={"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}),
    ),
    # prime-rl's run: no W&B key, and the run dies; WANDB_MODE=offline
    "wandb-offline": case(
        stack(wandb="0.22.0", env={"WANDB_MODE": ""}),
        stack(wandb="0.22.0", env={"WANDB_MODE": "offline"}),
        stack(env={"WANDB_MODE": ""}),
    ),
    # PyPI's apex 0.9.10dev: "Pyramid toolkit to add Velruse, Flash Messages, CSRF, ReCaptcha and Sessions"
    "pypi-apex": case(
        stack(torch="2.11.0", apex="0.9.10.dev0"),
        stack(torch="2.11.0", apex="0.1"),
        stack(apex="0.9.10.dev0"),
    ),
    # listed: pynvml 11.5.3 holds pynvml.py's code, nvidia-ml-py holds pynvml.py; pynvml 12 requires nvidia-ml-py
    "pynvml-two-names": case(
        stack(pynvml="11.5.3", nvidia_ml_py="13.580.82"),
        stack(pynvml="13.0.1", nvidia_ml_py="13.580.82"),
        stack(pynvml="11.5.3"),
    ),
    # pytorch#188892: cu12 9.10.2.21 and cu13 9.20.0.48 together: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH
    "cudnn-two-cudas": case(
        stack(torch="2.12.1+cu130", nvidia_cudnn_cu12="9.10.2.21", nvidia_cudnn_cu13="9.20.0.48"),
        stack(torch="2.12.1+cu130", nvidia_cudnn_cu13="9.20.0.48"),
        stack(nvidia_cudnn_cu12="9.10.2.21"),
    ),
    # listed: nvidia/nccl/lib/libnccl.so.2 is in both
    "nccl-two-cudas": case(
        stack(torch="2.11.0", nvidia_nccl_cu12="2.27.5", nvidia_nccl_cu13="2.28.9"),
        stack(torch="2.11.0", nvidia_nccl_cu13="2.28.9"),
        stack(nvidia_nccl_cu12="2.27.5"),
    ),
}
