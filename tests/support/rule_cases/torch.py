"""torch: its builds, what they are for, and what runs beside them."""

from __future__ import annotations

from tests.support.rule_cases import case, stack

CASES = {
    # 2026-11-20: PyPI's torch 2.13.0 is the CUDA 13.0 build; PyTorch's CPU index serves 2.13.0+cpu
    "torch-cpu-build": case(
        stack("cpu", torch="2.13.0"),
        stack("cpu", torch="2.13.0+cpu"),
        stack("13.0", torch="2.13.0"),
    ),
    # 2026-11-24: of PyPI's torch for aarch64, 2.10.0 requires none of NVIDIA's packages and 2.11.0 requires them
    "torch-cpu-build-arm64": case(
        stack("cpu", platform="linux/arm64", torch="2.11.0"),
        stack("cpu", platform="linux/arm64", torch="2.11.0+cpu"),
        stack("cpu", platform="linux/arm64", torch="2.10.0"),
        stack("13.0", platform="linux/arm64", torch="2.11.0"),
    ),
    # pytorch#123649: "ImportError: /lib64/libc.so.6: version `GLIBC_2.28' not found"; torch 2.6.0 needs 2.17 at most
    "torch-glibc": case(
        stack("12.6", glibc="2.26", torch="2.7.0+cu126"),
        stack("12.6", glibc="2.28", torch="2.7.0+cu126"),
        stack("12.4", glibc="2.26", torch="2.6.0+cu124"),
    ),
    # pytorch#120233: "still getting the error RuntimeError: Dynamo is not supported on Python 3.12+ with 2.2.2";
    # moshi#156: torch 2.3.1 on cp312 fails so too; it came with 2.4
    "torch-python312": case(
        stack("12.1", python="3.12", torch="2.3.1+cu121"),
        stack("12.1", python="3.12", torch="2.4.0+cu121"),
        stack("12.1", python="3.11", torch="2.3.1+cu121"),
    ),
    # pytorch#144048: on Python 3.13 torch.compile "will be available in the upcoming 2.6 release"
    "torch-python313": case(
        stack("12.4", python="3.13", torch="2.5.1+cu124"),
        stack("12.4", python="3.13", torch="2.6.0+cu124"),
        stack("12.4", python="3.12", torch="2.5.1+cu124"),
    ),
    # torch 2.8.0 and 2.9.0 raise in torch.compile from 3.14 on, 2.10.0 from 3.15 on
    "torch-python314": case(
        stack("12.8", python="3.14", torch="2.9.1+cu128"),
        stack("12.8", python="3.14", torch="2.10.0+cu128"),
        stack("12.8", python="3.13", torch="2.9.1+cu128"),
    ),
    # names that each torchao imports at `import torchao`, read from its wheels and torch's
    "torchao-018-torch": case(
        stack("12.8", torch="2.9.1+cu128", torchao="0.18.0"),
        stack("12.8", torch="2.10.0+cu128", torchao="0.18.0"),
        stack("12.8", torch="2.9.1+cu128", torchao="0.17.0"),
    ),
    "torchao-016-torch": case(
        stack("12.4", torch="2.4.1+cu124", torchao="0.16.0"),
        stack("12.4", torch="2.5.1+cu124", torchao="0.17.0"),
        stack("12.4", torch="2.4.1+cu124", torchao="0.15.0"),
    ),
    "torchao-014-torch": case(
        stack("12.4", torch="2.5.1+cu124", torchao="0.14.1"),
        stack("12.4", torch="2.6.0+cu124", torchao="0.14.1"),
        stack("12.4", torch="2.5.1+cu124", torchao="0.13.0"),
    ),
    "torchao-012-torch": case(
        stack("12.8", torch="2.9.1+cu128", torchao="0.12.0"),
        stack("12.8", torch="2.8.0+cu128", torchao="0.12.0"),
        stack("12.8", torch="2.9.1+cu128", torchao="0.13.0"),
    ),
    # pytorch#172352: CUDA 12.8 and 13.0 of 2.11 begin at 7.5, cu126 has 5.0 to 9.0; 2.10 for cu128 still has sm_70
    "torch-without-volta": case(
        stack("12.8", gpu="7.0", torch="2.11.0+cu128"),
        stack("12.6", gpu="7.0", torch="2.11.0+cu126"),
        stack("12.8", gpu="7.0", torch="2.10.0+cu128"),
        stack("12.8", gpu="7.5", torch="2.11.0+cu128"),
    ),
    # vs-playground#59: "torch 2.7.1+cu128 not support sm_70, so bump version to 2.8.0+cu128"
    "torch-2.7-without-volta": case(
        stack("12.8", gpu="7.0", torch="2.7.1+cu128"),
        stack("12.8", gpu="7.0", torch="2.8.0+cu128"),
        stack("12.6", gpu="7.0", torch="2.7.1+cu126"),
        stack("12.8", gpu="7.5", torch="2.7.1+cu128"),
    ),
    # fatbins of torch 2.8.0; pytorch#182250: get_arch_list() of 2.10.0+cu128 begins at sm_70, of 2.11.0+cu126 at sm_50
    "torch-without-pascal": case(
        stack("12.8", gpu="6.1", torch="2.8.0+cu128"),
        stack("12.6", gpu="6.1", torch="2.8.0+cu126"),
        stack("12.8", gpu="7.0", torch="2.8.0+cu128"),
        stack("12.8", gpu="6.1", torch="2.7.0+another"),
    ),
    # fatbins of torch 2.8 to 2.15, x86_64: none has sm_110; sm_100 is there
    "torch-without-thor": case(
        stack("13.0", gpu="11.0", torch="2.13.0"),
        stack("13.0", gpu="10.0", torch="2.13.0"),
        stack("13.0", gpu="11.0", torch="2.13.0", platform="linux/arm64"),
        stack("13.0", gpu="11.0", torch="2.16.0"),
    ),
    # pytorch#168167, dynamo#5461: 2.9.1 with cuDNN 9.13 (cu130) and 9.10 (cu128) is slow, "CuDNN 9.16+ required";
    # gpustack#4407: sglang 0.5.8 with qwen3-vl refuses it
    "torch-291-cudnn": case(
        (
            stack("12.8", torch="2.9.1", nvidia_cudnn_cu12="9.10.2.21"),
            stack("13.0", torch="2.9.1+cu130", nvidia_cudnn_cu13="9.13.0.50"),
        ),
        stack("12.8", torch="2.9.1", nvidia_cudnn_cu12="9.16.0.29"),
        stack("12.8", torch="2.10.0", nvidia_cudnn_cu12="9.10.2.21"),
    ),
    # cosmos-transfer2.5#227: torch 2.9.0 turns cuDNN's conv3d off whatever the cuDNN
    "torch-290-conv3d": case(
        stack("12.8", torch="2.9.0", nvidia_cudnn_cu12="9.16.0.29"),
        stack("12.8", torch="2.9.1", nvidia_cudnn_cu12="9.16.0.29"),
        stack("12.8", torch="2.9.0"),
    ),
    # torch_compatibility.json: 2.7 has cu118, 126, 128; 2.8 has cu126, 128, 129
    "torch-index-cu118": case(stack("11.8", torch="2.8.0"), stack("11.8", torch="2.7.1"), stack("12.6", torch="2.8.0")),
    # the same: 2.5 has cu118, 121, 124; 2.6 has cu118, 124, 126
    "torch-index-cu121": case(stack("12.1", torch="2.6.0"), stack("12.1", torch="2.5.1"), stack("12.4", torch="2.6.0")),
    # the same: cu124 came with 2.4, and 2.7 does not have it
    "torch-index-cu124": case(
        (stack("12.4", torch="2.7.0"), stack("12.4", torch="2.3.1")),
        stack("12.4", torch="2.4.1"),
        stack("12.6", torch="2.7.0"),
    ),
    # the same: 2.5 has no cu126, 2.6 has
    "torch-index-cu126": case(stack("12.6", torch="2.5.1"), stack("12.6", torch="2.6.0"), stack("12.4", torch="2.5.1")),
    # the same: 2.6 has no cu128; flash-attention-prebuild-wheels#95: "PyTorch 2.12 removes CUDA 12.8"
    "torch-index-cu128": case(
        (stack("12.8", torch="2.6.0"), stack("12.8", torch="2.12.0")),
        stack("12.8", torch="2.11.0"),
        stack("12.4", torch="2.6.0"),
        stack("13.0", torch="2.12.0"),
    ),
    # the same: 2.7 has no cu129; pytorch#187834: "check cu129 binaries aren't released with pytorch 2.14"
    "torch-index-cu129": case(
        (stack("12.9", torch="2.7.1"), stack("12.9", torch="2.14.0")),
        stack("12.9", torch="2.8.0"),
        stack("12.6", torch="2.7.1"),
        stack("13.0", torch="2.14.0"),
    ),
    # the same: 2.8 has cu126, 128, 129; 2.9 has cu126, 128, 130
    "torch-index-cu130": case(stack("13.0", torch="2.8.0"), stack("13.0", torch="2.9.0"), stack("12.8", torch="2.8.0")),
    # pytorch#178665: 2.12 "introduces CUDA 13.2 as experimental"
    "torch-index-cu132": case(
        stack("13.2", torch="2.11.0"), stack("13.2", torch="2.12.0"), stack("13.0", torch="2.11.0")
    ),
    # pytorch.org/get-started/previous-versions: each label is the CUDA of the index that serves it
    "torch-label-cu118": case(
        stack("11.2", gpu="8.0", torch="2.7.1+cu118"),
        stack("11.8", gpu="8.0", torch="2.7.1+cu118"),
        stack("11.2", gpu="8.0", torch="2.7.1"),
    ),
    "torch-label-cu121": case(
        stack("12.2", torch="2.5.1+cu121"), stack("12.1", torch="2.5.1+cu121"), stack("12.2", torch="2.5.1")
    ),
    "torch-label-cu124": case(
        stack("12.5", torch="2.6.0+cu124"), stack("12.4", torch="2.6.0+cu124"), stack("12.5", torch="2.6.0")
    ),
    "torch-label-cu126": case(
        stack("12.8", torch="2.9.1+cu126"), stack("12.6", torch="2.9.1+cu126"), stack("12.8", torch="2.9.1")
    ),
    "torch-label-cu128": case(
        stack("13.0", torch="2.9.1+cu128"), stack("12.8", torch="2.9.1+cu128"), stack("13.0", torch="2.9.1")
    ),
    "torch-label-cu129": case(
        stack("13.0", torch="2.11.0+cu129"), stack("12.9", torch="2.11.0+cu129"), stack("13.0", torch="2.11.0")
    ),
    "torch-label-cu130": case(
        stack("12.8", torch="2.9.1+cu130"), stack("13.0", torch="2.9.1+cu130"), stack("12.8", torch="2.9.1")
    ),
    "torch-label-cu132": case(
        stack("13.0", torch="2.12.1+cu132"), stack("13.2", torch="2.12.1+cu132"), stack("13.0", torch="2.12.1")
    ),
    # pytorch.org/get-started/locally: the CPU index's builds are those labelled +cpu
    "torch-label-cpu": case(
        stack("13.0", torch="2.13.0+cpu"), stack("cpu", torch="2.13.0+cpu"), stack("13.0", torch="2.13.0")
    ),
    # pytorch#107302: 2.3.0 validated with numpy 2.0.0rc1 and 1.26.4; TorchIO-project/torchio#1183: 2.2 fails with 2.0.0
    # measured: pyarrow 26.0.1 with numpy 1.26.4: "pyarrow requires NumPy 2.0 or newer"; 25.0.1 has no such check
    "pyarrow-numpy1": case(
        stack("12.8", pyarrow="26.0.1", numpy="1.26.4"),
        stack("12.8", pyarrow="25.0.1", numpy="1.26.4"),
        stack("12.8", pyarrow="26.0.1", numpy="2.3.5"),
    ),
    "torch-numpy2": case(
        stack("12.1", torch="2.2.2", numpy="2.0.0"),
        stack("12.1", torch="2.3.0", numpy="2.0.0"),
        stack("12.1", torch="2.2.2", numpy="1.26.4"),
    ),
    # opencv#25772: OpenCV 4.10.0.82 with numpy 2.0: "AttributeError: _ARRAY_API not found"; 4.10.0.84 is for both
    "opencv-headless-numpy2": case(
        stack(opencv_python_headless="4.10.0.82", numpy="2.0.0"),
        stack(opencv_python_headless="4.11.0.86", numpy="2.0.0"),
        stack(opencv_python_headless="4.10.0.82", numpy="1.26.4"),
    ),
    "opencv-numpy2": case(
        stack(opencv_python="4.10.0.82", numpy="2.0.0"),
        stack(opencv_python="4.11.0.86", numpy="2.0.0"),
        stack(opencv_python="4.10.0.82", numpy="1.26.4"),
    ),
    # opencv-python's README: "Do not install multiple different packages in the same environment"
    "opencv-two-names": case(
        stack(opencv_python="4.11.0.86", opencv_python_headless="4.11.0.86"),
        stack(opencv_python_headless="4.11.0.86"),
        stack(opencv_python="4.11.0.86"),
    ),
    # megatron-core 0.12.2's dist_checkpointing calls np.product; 0.16.1's does not; verl 0.4 ships 0.12.2 with numpy 1
    "megatron-core-numpy2": case(
        stack(megatron_core="0.12.2", numpy="2.0.0"),
        stack(megatron_core="0.12.2", numpy="1.26.4"),
        stack(megatron_core="0.16.1", numpy="2.3.5"),
    ),
    # pypa/pip#12205: hydra-core 1.2.0 does not import on Python 3.11; 1.3.0 does
    "hydra-core-python311": case(
        stack(python="3.11", hydra_core="1.2.0"),
        stack(python="3.11", hydra_core="1.3.0"),
        stack(python="3.10", hydra_core="1.2.0"),
    ),
    # measured: 0.5 ends with std::bad_alloc beside torch 2.9.1, and decodes beside 2.7.1
    "torchcodec-torch2.7": case(
        stack("12.8", torch="2.9.1", torchcodec="0.5"),
        stack("12.8", torch="2.7.1+cu128", torchcodec="0.5"),
        stack("12.8", torch="2.8.0", torchcodec="0.7.0"),
    ),
    # measured: 0.7.0 ends with std::length_error beside torch 2.9.1, and decodes beside 2.8.0
    "torchcodec-torch2.8": case(
        stack("12.8", torch="2.9.1", torchcodec="0.7.0"),
        stack("12.8", torch="2.8.0", torchcodec="0.7.0"),
        stack("12.8", torch="2.9.1", torchcodec="0.8.1"),
    ),
    # measured: 0.9.1 ends with std::bad_alloc beside torch 2.8.0, and decodes beside 2.9.1
    "torchcodec-torch2.9": case(
        stack("12.8", torch="2.8.0", torchcodec="0.9.1"),
        stack("12.8", torch="2.9.1", torchcodec="0.9.1"),
        stack("12.8", torch="2.10.0", torchcodec="0.10.0"),
    ),
    # measured: prime_rl.trainer.rl.train with both: "No module named 'cutlass.base_dsl._mlir_helpers'"
    "torchao-cutlass-dsl": case(
        stack("13.0", torchao="0.17.0", nvidia_cutlass_dsl="4.6.0"),
        stack("13.0", torchao="0.17.0", nvidia_cutlass_dsl="4.5.2"),
        stack("13.0", torchao="0.18.0", nvidia_cutlass_dsl="4.6.0"),
    ),
}
