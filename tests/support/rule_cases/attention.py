"""flash-attn, TransformerEngine, FlashInfer, xformers, torchao."""

from __future__ import annotations

from tests.support.rule_cases import case, stack

OFFICIAL = "2.8.3+cu12torch{}cxx11abiTRUE"

CASES = {
    # flash-attention#1708: 2.8.0.post2's release wheel on Ubuntu 20.04: "GLIBC_2.32 not found"; the answer there and in
    # cosmos-transfer2.5#42 is 2.7.4.post1
    "flash-attn-glibc": case(
        stack("12.1", glibc="2.31", torch="2.5.1", flash_attn="2.8.0.post2+cu12torch2.5cxx11abiFALSE"),
        stack("12.1", glibc="2.31", torch="2.5.1", flash_attn="2.7.4.post1+cu12torch2.5cxx11abiFALSE"),
        stack("12.1", glibc="2.35", torch="2.5.1", flash_attn="2.8.0.post2+cu12torch2.5cxx11abiFALSE"),
        stack("12.1", glibc="2.31", torch="2.5.1", flash_attn="2.8.0.post2"),
    ),
    # not read: wheels of 2.8.0 for torch 2.7 need GLIBC_2.32, those of 2.7.4.post1 for torch 2.6 do not
    "flash-attn-2.7-glibc-torch2.7": case(
        stack("12.6", glibc="2.31", torch="2.7.1", flash_attn="2.7.4.post1+cu12torch2.7cxx11abiTRUE"),
        stack("12.6", glibc="2.35", torch="2.7.1", flash_attn="2.7.4.post1+cu12torch2.7cxx11abiTRUE"),
        stack("12.6", glibc="2.31", torch="2.7.1", flash_attn="2.7.4.post1"),
        stack("12.6", glibc="2.31", torch="2.7.1", flash_attn="2.8.0+cu12torch2.7cxx11abiTRUE"),
    ),
    "flash-attn-2.7-glibc-torch2.8": case(
        stack("12.8", glibc="2.31", torch="2.8.0", flash_attn="2.7.3+cu12torch2.8cxx11abiTRUE"),
        stack("12.8", glibc="2.35", torch="2.8.0", flash_attn="2.7.3+cu12torch2.8cxx11abiTRUE"),
        stack("12.8", glibc="2.31", torch="2.8.0", flash_attn="2.7.3"),
        stack("12.8", glibc="2.31", torch="2.8.0", flash_attn="2.8.3+cu12torch2.8cxx11abiTRUE"),
    ),
    # flash-attention#2225: the wheel 2.8.2+cu128torch2.8 on Ubuntu 20.04; from sources, it has the system's glibc
    # lerobot#2219: pip's flash-attn on Ubuntu 20.04; its setup.py takes the release's wheel
    "flash-attn-pip-glibc": case(
        stack("12.6", glibc="2.31", torch="2.7.1", flash_attn="2.8.3"),
        stack("12.6", glibc="2.35", torch="2.7.1", flash_attn="2.8.3"),
        stack("12.6", glibc="2.31", torch="2.7.1", flash_attn="2.7.4.post1"),
    ),
    # mamba#765 and #949: "GLIBC_2.32 not found (required by selective_scan_cuda)" with 2.2.5 on Ubuntu 20.04
    "mamba-glibc": case(
        stack("12.8", glibc="2.31", mamba_ssm="2.2.5+cu12torch2.7cxx11abitrue"),
        stack("12.8", glibc="2.35", mamba_ssm="2.2.5+cu12torch2.7cxx11abitrue"),
        stack("12.8", glibc="2.31", mamba_ssm="2.2.4+cu12torch2.5cxx11abifalse"),
        stack("12.8", glibc="2.31", mamba_ssm="2.2.5+local"),
    ),
    "mamba-pip-glibc": case(
        stack("12.8", glibc="2.31", mamba_ssm="2.2.5"),
        stack("12.8", glibc="2.35", mamba_ssm="2.2.5"),
        stack("12.8", glibc="2.31", mamba_ssm="2.2.4"),
        stack("12.8", glibc="2.31", mamba_ssm="2.2.5+local"),
    ),
    # cosmos-transfer2.5#42: GLIBC_2.32 on Ubuntu 20.04
    "flash-attn-cosmos-glibc": case(
        stack("12.8", glibc="2.31", torch="2.7.1+cu128", flash_attn="2.7.3+cu128.torch27"),
        stack("12.8", glibc="2.35", torch="2.7.1+cu128", flash_attn="2.7.3+cu128.torch27"),
        stack("12.8", glibc="2.31", torch="2.7.1+cu128", flash_attn="2.7.3+local"),
    ),
    "flash-attn-prebuilt-glibc": case(
        stack("12.8", glibc="2.31", torch="2.8.0", flash_attn="2.8.2+cu128torch2.8"),
        stack("12.8", glibc="2.35", torch="2.8.0", flash_attn="2.8.2+cu128torch2.8"),
        stack("12.8", glibc="2.31", torch="2.8.0", flash_attn="2.8.2"),
        stack("12.8", glibc="2.31", torch="2.8.0", flash_attn="2.8.3+cu128torch2.8"),
    ),
    # no manylinux wheel is listed of 2.8.1; the project's own has a label without a minor version of CUDA
    "flash-attn-prebuilt-glibc-before-2.8.2": case(
        stack("12.8", glibc="2.31", torch="2.7.1+cu128", flash_attn="2.8.1+cu128torch2.7"),
        stack("12.8", glibc="2.35", torch="2.7.1+cu128", flash_attn="2.8.1+cu128torch2.7"),
        stack("12.8", glibc="2.31", torch="2.7.1+cu128", flash_attn="2.8.1"),
        stack("12.8", glibc="2.31", torch="2.7.1+cu128", flash_attn="2.6.3+cu128torch2.7"),
    ),
    # libc10.so of torch 2.7.1: new ABI; of 2.6.0: old
    "flash-attn-abi-old": case(
        stack("12.6", torch="2.7.1", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiFALSE"),
        stack("12.6", torch="2.7.1", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiTRUE"),
        stack("12.4", torch="2.6.0", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiFALSE"),
        # added to the release later, and compiled beside torch 2.7: its label is not its ABI
        stack("12.6", torch="2.7.1", flash_attn="2.7.4.post1+cu12torch2.7cxx11abiFALSE"),
        # both labels of 2.8 have torch's own ABI: SkyRL 0.2.0 locks this one, trl's image has 2.8.3 of torch 2.8
        stack("12.8", torch="2.7.1+cu128", flash_attn="2.8.0.post2+cu12torch2.7cxx11abiFALSE"),
    ),
    # flash-attention#1717, open-r1#686: from 2.7.4.post1 to 2.8.0.post2, beside torch 2.6.0 of PyPI
    "flash-attn-2.8-torch26": case(
        stack("12.4", torch="2.6.0", flash_attn="2.8.0.post2+cu12torch2.6cxx11abiFALSE"),
        stack("12.4", torch="2.6.0", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiFALSE"),
        stack("12.6", torch="2.6.0+cu126", flash_attn="2.8.0.post2+cu12torch2.6cxx11abiFALSE"),
        stack("12.4", torch="2.5.1", flash_attn="2.8.0.post2+cu12torch2.5cxx11abiFALSE"),
        stack("12.4", torch="2.5.1", flash_attn="2.8.0.post2+cu12torch2.6cxx11abiFALSE"),
    ),
    # libc10.so of torch 2.5.1: old ABI
    "flash-attn-abi-new": case(
        stack("12.4", torch="2.5.1", flash_attn="2.7.4.post1+cu12torch2.5cxx11abiTRUE"),
        stack("12.4", torch="2.5.1", flash_attn="2.7.4.post1+cu12torch2.5cxx11abiFALSE"),
        stack("12.6", torch="2.7.1", flash_attn="2.8.1+cu12torch2.7cxx11abiTRUE"),
    ),
    # pytorch#142064: of 2.6.0, cu118 and cu124 have the old ABI and cu126 the new one
    "flash-attn-abi-new-torch26-cu124": case(
        stack("12.4", torch="2.6.0", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiTRUE"),
        stack("12.4", torch="2.6.0", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiFALSE"),
        stack("12.6", torch="2.6.0+cu126", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiTRUE"),
        stack("12.4", torch="2.7.0", flash_attn="2.8.1+cu12torch2.7cxx11abiTRUE"),
    ),
    "flash-attn-abi-old-torch26-cu126": case(
        stack("12.6", torch="2.6.0+cu126", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiFALSE"),
        stack("12.6", torch="2.6.0+cu126", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiTRUE"),
        stack("12.4", torch="2.6.0", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiFALSE"),
        stack("12.6", torch="2.5.0", flash_attn="2.7.4.post1+cu12torch2.5cxx11abiFALSE"),
    ),
    # get_torch_cuda_version.py: of torch 2.6, the nearest of cu118, cu124 and cu126; pytorch#142064: the last is new
    "flash-attn-prebuilt-abi-old": case(
        (
            stack("12.6", torch="2.6.0+cu126", flash_attn="2.8.3+cu124torch2.6"),
            stack("12.6", torch="2.7.1+cu126", flash_attn="2.8.3+cu124torch2.6"),
            stack("11.8", torch="2.7.1+cu118", flash_attn="2.8.3+cu124torch2.6"),
        ),
        stack("12.4", torch="2.6.0", flash_attn="2.8.3+cu124torch2.6"),
        stack("12.6", torch="2.6.0+cu126", flash_attn="2.8.3+cu126torch2.6"),
    ),
    # verl 0.9.1 pins flash-attn 2.8.3 for torch 2.11 cu130: release wheels are cu12, its image compiles it
    # flash-attention-prebuild-wheels has cu118 and cu126 for torch 2.6
    "flash-attn-cu11": case(
        stack("12.6", torch="2.6.0+cu126", flash_attn="2.7.4.post1+cu118torch2.6"),
        stack("12.6", torch="2.6.0+cu126", flash_attn="2.7.4.post1+cu126torch2.6"),
        stack("11.8", torch="2.6.0+cu118", flash_attn="2.7.4.post1+cu118torch2.6"),
    ),
    "flash-attn-cu12": case(
        stack("13.0", torch="2.11.0", flash_attn="2.8.3+cu128torch2.11"),
        stack("13.0", torch="2.11.0", flash_attn="2.8.3"),
        stack("12.8", torch="2.11.0+cu128", flash_attn="2.8.3+cu128torch2.11"),
    ),
    # flash-attention-prebuild-wheels has cu128 and cu130 for torch 2.11
    "flash-attn-cu13": case(
        stack("12.8", torch="2.11.0+cu128", flash_attn="2.8.3+cu130torch2.11"),
        stack("12.8", torch="2.11.0+cu128", flash_attn="2.8.3+cu128torch2.11"),
        stack("13.0", torch="2.11.0", flash_attn="2.8.3+cu130torch2.11"),
    ),
    # TransformerEngine wants 2.7.3 or newer on 10.0 and above
    "flash-attn-blackwell-none": case(
        stack("12.8", gpu="12.0", torch="2.8.0", flash_attn="2.6.3"),
        stack("12.8", gpu="12.0", torch="2.8.0", flash_attn="2.7.4.post1"),
        stack("12.8", gpu="9.0", torch="2.8.0", flash_attn="2.6.3"),
    ),
    # publish.yml of v2.7.4.post1: toolkit 12.4; verl 0.6 compiles that release with CUDA 12.8
    "flash-attn-blackwell-wheel": case(
        stack("12.8", gpu="10.0", torch="2.8.0", flash_attn="2.7.4.post1+cu12cxx11abiTRUE"),
        stack("12.8", gpu="10.0", torch="2.8.0", flash_attn="2.7.4.post1"),
        stack("12.8", gpu="10.0", torch="2.8.0", flash_attn="2.8.3+cu12torch2.8cxx11abiTRUE"),
        stack("12.8", gpu="9.0", torch="2.8.0", flash_attn="2.7.4.post1+cu12torch2.6cxx11abiTRUE"),
    ),
    # flash_attn_3-0.0.0-py3-none-any.whl on PyPI: two empty modules
    "flash-attn-3-placeholder": case(
        stack("13.0", torch="2.11.0", flash_attn_3="0.0.0"),
        stack("13.0", torch="2.11.0", flash_attn_3="3.0.0+cu130torch2.11gite2743ab"),
        stack("13.0", flash_attn_3="0.0.0"),
    ),
    # vllm's _vllm_fa3_C holds sm_90a alone: nothing for sm_100 and sm_120, and `a` code runs on that capability only
    "flash-attn-3-hopper": case(
        stack("13.0", gpu="12.0", torch="2.11.0", flash_attn_3="3.0.0"),
        stack("13.0", gpu="9.0", torch="2.11.0", flash_attn_3="3.0.0"),
        stack("13.0", gpu="12.0", flash_attn_3="0.0.0"),
    ),
    # FlashAttention's README: FlashAttention-3 requires CUDA >= 12.3
    "flash-attn-3-cuda": case(
        stack("12.1", torch="2.5.1", flash_attn_3="3.0.0"),
        stack("12.4", torch="2.5.1", flash_attn_3="3.0.0"),
        stack("12.1", flash_attn_3="0.0.0"),
    ),
    # listed: flash_attn-2.8.3.tar.gz has 22 files under flash_attn/cute, 2.8.1 none; flash_attn_4 4.0.0b15 has them too
    "flash-attn-2-or-4": case(
        stack("13.0", flash_attn="2.8.3", flash_attn_4="4.0.0b15"),
        stack("13.0", flash_attn="2.8.1", flash_attn_4="4.0.0b15"),
        stack("13.0", flash_attn="2.8.3"),
    ),
    # vllm 0.11 (torch 2.8) on torch 2.9.0: undefined SymInt::sym_ne; so do flash-attn wheels for 2.8
    "flash-attn-torch2.8": case(
        stack("12.8", torch="2.9.0", flash_attn=OFFICIAL.format("2.8")),
        stack("12.8", torch="2.8.0", flash_attn=OFFICIAL.format("2.8")),
        stack("12.8", torch="2.9.0", flash_attn="2.8.3+cu128torch2.9"),
    ),
    # flash-attention#1581: torch 2.5 with a newer wheel: undefined symbol _ZN3c104cuda9SetDeviceEab, new in 2.8
    "flash-attn-torch2.6": case(
        stack("12.8", torch="2.8.0", flash_attn=OFFICIAL.format("2.6")),
        stack("12.6", torch="2.7.1", flash_attn=OFFICIAL.format("2.6")),  # flash-attention#1644, verl 0.5's image
        stack("12.6", torch="2.6.0+cu126", flash_attn=OFFICIAL.format("2.6")),
        stack("12.8", torch="2.8.0", flash_attn=OFFICIAL.format("2.8")),
    ),
    # 2.7 -> 2.8: c10::cuda::SetDevice(signed char) becomes (signed char, bool)
    "flash-attn-torch2.7": case(
        stack("12.8", torch="2.8.0", flash_attn=OFFICIAL.format("2.7")),
        stack("12.8", torch="2.7.1+cu128", flash_attn=OFFICIAL.format("2.7")),
        stack("12.8", torch="2.8.0", flash_attn=OFFICIAL.format("2.8")),
    ),
    # 2.9 -> 2.10: c10_cuda_check_implementation(..., int, bool) becomes (..., unsigned, bool)
    "flash-attn-torch2.9": case(
        stack("13.0", torch="2.10.0+cu130", flash_attn="2.8.3+cu130torch2.9"),
        stack("13.0", torch="2.9.1+cu130", flash_attn="2.8.3+cu130torch2.9"),
        stack("13.0", torch="2.10.0+cu130", flash_attn="2.8.3+cu130torch2.10"),
    ),
    # 2.10 -> 2.11: MessageLogger's constructor; one symbol is missing of what vllm 0.19 uses
    # NeMo RL 0.7.0's uv.lock: 2.8.1+cu13torch2.10cxx11abitrue with torch 2.11.0+cu130
    "flash-attn-torch2.10": case(
        stack("13.0", torch="2.12.0", flash_attn="2.8.3+cu130torch2.10"),
        stack("13.0", torch="2.11.0", flash_attn="2.8.1+cu13torch2.10cxx11abitrue"),
        stack("13.0", torch="2.10.0+cu130", flash_attn="2.8.3+cu130torch2.10"),
        stack("13.0", torch="2.12.0", flash_attn="2.8.3+cu130torch2.12"),
    ),
    # 2.11 -> 2.12: torch::Library::_def and const_data_ptr<int, 0>
    "flash-attn-torch2.11": case(
        stack("13.0", torch="2.12.1+cu130", flash_attn="2.8.3+cu130torch2.11"),
        stack("13.0", torch="2.11.0", flash_attn="2.8.3+cu130torch2.11"),
        stack("13.0", torch="2.12.1+cu130", flash_attn="2.8.3+cu130torch2.12"),
    ),
    # 2.12 -> 2.13: cow::materialize_cow_storage
    "flash-attn-torch2.12": case(
        stack("13.0", torch="2.13.0", flash_attn="2.8.3+cu130torch2.12"),
        stack("13.0", torch="2.12.1+cu130", flash_attn="2.8.3+cu130torch2.12"),
        stack("13.0", torch="2.13.0", flash_attn="2.8.3+cu130torch2.13"),
    ),
    # 2.13 -> 2.14: c10_cuda_check_implementation again
    "flash-attn-torch2.13": case(
        stack("13.0", torch="2.14.0", flash_attn="2.8.3+cu130torch2.13"),
        stack("13.0", torch="2.13.0", flash_attn="2.8.3+cu130torch2.13"),
        stack("13.0", torch="2.14.0", flash_attn="2.8.3"),
    ),
    # TransformerEngine v2.16.1 compares core's, meta's and torch's version strings on import; 2.18 does not any more
    "te-one-version": case(
        (
            stack(transformer_engine="2.16.1", transformer_engine_cu13="2.15.0"),
            stack(transformer_engine="2.16.1", transformer_engine_torch="2.16.0"),
            stack("12.8", transformer_engine="2.16.1", transformer_engine_cu12="2.16.0"),
        ),
        stack(transformer_engine="2.16.1", transformer_engine_cu13="2.16.1", transformer_engine_torch="2.16.1"),
        stack(transformer_engine="2.18.0", transformer_engine_torch="2.16.0"),
    ),
    # its installation guide: CUDA 12.1+, cuDNN 9.3+; torch 2.6 for CUDA 12.4 pins cuDNN 9.1.0.70
    "te-cuda": case(
        stack("11.8", transformer_engine="2.2.0"),
        stack("12.4", transformer_engine="2.2.0"),
        stack("11.8", transformer_engine="1.13.0"),
    ),
    "te-cudnn": case(
        (
            stack("12.4", torch="2.6.0", transformer_engine="2.2.1", nvidia_cudnn_cu12="9.1.0.70"),
            stack("13.0", torch="2.11.0", transformer_engine="2.16.1", nvidia_cudnn_cu13="9.2.0.1"),
        ),
        stack("12.4", torch="2.6.0", transformer_engine="2.2.1", nvidia_cudnn_cu12="9.8.0.87"),
        stack("12.4", torch="2.6.0", transformer_engine="1.13.0", nvidia_cudnn_cu12="9.1.0.70"),
    ),
    # Megatron-LM#3984: "Supported flash-attn versions are >= 2.1.1, <= 2.7.4.post1. Found flash-attn 2.8.3"; verl's
    # preview of 0.5 had TransformerEngine 2.5 with 2.8.0.post2; verl 0.6 ships 2.2.1 with 2.7.4.post1
    "te-2.2-flash-attn": case(
        (stack("12.8", transformer_engine="2.5.0", flash_attn="2.8.0.post2"),),
        stack("12.8", transformer_engine="2.2.1", flash_attn="2.7.4.post1"),
        stack("12.8", transformer_engine="2.6.0", flash_attn="2.8.1"),
    ),
    # the caps in the tags: 2.6 to 2.9 take 2.8.1 at most
    "te-2.6-flash-attn": case(
        stack("12.8", transformer_engine="2.9.0", flash_attn="2.8.3"),
        stack("12.8", transformer_engine="2.9.0", flash_attn="2.8.1"),
        stack("12.8", transformer_engine="2.10.0", flash_attn="2.8.3"),
    ),
    # the caps in the tags; laifs-container-recipes#33: flash-attn 2.8.4 is above the cap, and the run is out of memory
    "te-2.10-flash-attn": case(
        stack("13.0", transformer_engine="2.16.1", flash_attn="2.8.4"),
        stack("13.0", transformer_engine="2.16.1", flash_attn="2.8.3"),
        stack("13.0", transformer_engine="2.19.0", flash_attn="2.8.4"),
    ),
    # through 2.14 the raw version is compared, and 2.8.3+cu... is above 2.8.3; 2.15 strips the label
    "te-2.2-flash-attn-label": case(
        stack("12.8", transformer_engine="2.5.0", flash_attn="2.7.4.post1+cu128"),
        stack("12.8", transformer_engine="2.5.0", flash_attn="2.7.4.post1"),
        stack("12.8", transformer_engine="2.6.0", flash_attn="2.7.4.post1+cu128"),
        stack("12.8", transformer_engine="2.5.0", flash_attn="2.7.3+cu128"),
    ),
    "te-2.6-flash-attn-label": case(
        stack("12.8", transformer_engine="2.9.0", flash_attn="2.8.1+cu128"),
        stack("12.8", transformer_engine="2.9.0", flash_attn="2.8.1"),
        stack("12.8", transformer_engine="2.10.0", flash_attn="2.8.1+cu128"),
        stack("12.8", transformer_engine="2.9.0", flash_attn="2.8.0.post2+cu128"),
    ),
    "te-2.10-flash-attn-label": case(
        stack("13.0", torch="2.11.0", transformer_engine="2.14.0", flash_attn="2.8.3+cu130torch2.11"),
        stack("13.0", torch="2.11.0", transformer_engine="2.15.0", flash_attn="2.8.3+cu130torch2.11"),
        stack("13.0", torch="2.11.0", transformer_engine="2.14.0", flash_attn="2.8.3"),
        stack("13.0", torch="2.11.0", transformer_engine="2.14.0", flash_attn="2.8.1+cu130torch2.11"),
    ),
    # vllm#49804: "flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14)"; the jit-cache's label
    # does not count, flashinfer#4337 notwithstanding: jit/env.py asks whether its version starts with flashinfer's
    "flashinfer-one-version": case(
        (
            stack(flashinfer_python="0.6.14", flashinfer_cubin="0.6.13"),
            stack(flashinfer_python="0.6.11", flashinfer_jit_cache="0.6.9+cu130"),
        ),
        stack(flashinfer_python="0.6.14", flashinfer_cubin="0.6.14", flashinfer_jit_cache="0.6.14+cu130"),
        stack(flashinfer_python="0.4.0", flashinfer_cubin="0.6.13"),
        stack(flashinfer_cubin="0.6.13", flashinfer_jit_cache="0.6.14+cu130"),
    ),
    # flashinfer#5145: what is built with CUDA 13 links libcudart.so.13 and fails in an environment of 12.9
    "flashinfer-jit-cache-cu13": case(
        stack("12.9", flashinfer_python="0.6.14", flashinfer_jit_cache="0.6.14+cu130"),
        stack("12.9", flashinfer_python="0.6.14", flashinfer_jit_cache="0.6.14+cu129"),
        stack("13.0", flashinfer_python="0.6.14", flashinfer_jit_cache="0.6.14+cu130"),
    ),
    # measured: jit/cpp_ext.py raises RuntimeError where neither nvcc nor CUDA_HOME is there
    "flashinfer-toolkit": case(
        stack("12.8", flashinfer_python="0.6.6", env={"CUDA_HOME": ""}),
        stack("12.8", flashinfer_python="0.6.6", env={"CUDA_HOME": "/usr/local/cuda"}),
        stack("12.8", env={"CUDA_HOME": ""}),
    ),
    "flashinfer-jit-cache-cu12": case(
        stack("13.0", flashinfer_python="0.6.14", flashinfer_jit_cache="0.6.14+cu129"),
        stack("13.0", flashinfer_python="0.6.14", flashinfer_jit_cache="0.6.14+cu130"),
        stack("12.9", flashinfer_python="0.6.14", flashinfer_jit_cache="0.6.14+cu129"),
    ),
    # counted: of 15,558 cubins in 0.6.12 all are for 10.0 and 10.3
    "flashinfer-cubin-datacenter": case(
        stack(gpu="9.0", flashinfer_cubin="0.6.12"),
        stack(gpu="10.0", flashinfer_cubin="0.6.12"),
        stack(gpu="9.0", flashinfer_cubin="0.6.6"),
    ),
    # xformers#1267: "Requires Flash-Attention version >=2.7.1,<=2.7.4 but got 2.8.0.post2"; 0.0.31.post1 takes 2.8.0
    "xformers-flash-attn": case(
        stack("12.6", torch="2.7.0", xformers="0.0.30", flash_attn="2.8.0.post2"),
        stack("12.6", torch="2.7.0", xformers="0.0.30", flash_attn="2.7.4.post1"),
        stack("12.6", torch="2.7.1", xformers="0.0.31.post1", flash_attn="2.8.0.post2"),
    ),
    # read: FLASH_VER_LAST of 0.0.31 is (2, 8, 0), that of 0.0.32.post2 is 2.8.2
    "xformers-0.0.31-flash-attn": case(
        stack("12.6", torch="2.7.1", xformers="0.0.31", flash_attn="2.8.1"),
        stack("12.6", torch="2.7.1", xformers="0.0.31", flash_attn="2.8.0.post2"),
        stack("12.8", torch="2.8.0", xformers="0.0.32.post2", flash_attn="2.8.1"),
    ),
    "xformers-0.0.32-flash-attn": case(
        stack("12.8", torch="2.8.0", xformers="0.0.32.post2", flash_attn="2.8.3"),
        stack("12.8", torch="2.8.0", xformers="0.0.32.post2", flash_attn="2.8.2"),
        stack("12.8", torch="2.9.1", xformers="0.0.33.post2", flash_attn="2.8.3"),
    ),
    # xformers#1356: a 5070 with "No operator found for `memory_efficient_attention_forward`"
    "xformers-rtx-blackwell": case(
        stack("12.8", gpu="12.0", torch="2.9.0", xformers="0.0.33.post1"),
        stack("12.8", gpu="9.0", torch="2.9.0", xformers="0.0.33.post1"),
        stack("12.8", gpu="12.0", torch="2.9.0", xformers="0.0.36"),
    ),
    # fatbin of xformers' _C: sm_75, 80, 90a and PTX of 80
    "xformers-blackwell": case(
        stack("12.8", gpu="10.0", torch="2.9.0", xformers="0.0.33.post1"),
        stack("12.8", gpu="9.0", torch="2.9.0", xformers="0.0.33.post1"),
        stack("12.8", gpu="10.0", torch="2.9.0", xformers="0.0.36"),
    ),
    # fatbin of torchao 0.13's _C: sm_80 and sm_86, no PTX
    "torchao-013-kernels": case(
        stack("12.8", gpu="9.0", torch="2.8.0", torchao="0.13.0"),
        stack("12.8", gpu="8.6", torch="2.8.0", torchao="0.13.0"),
        stack("12.8", gpu="9.0", torch="2.8.0", torchao="0.17.0"),
    ),
}
# publish.yml of 2.7.3 compiles a wheel for each of these torches; whether another minor has its symbols is not known
CASES |= {
    f"flash-attn-torch{minor}": case(
        stack("12.1", torch=f"{other}.0", flash_attn=f"2.7.3+cu12torch{minor}cxx11abiFALSE"),
        stack("12.1", torch=f"{minor}.0", flash_attn=f"2.7.3+cu12torch{minor}cxx11abiFALSE"),
        stack("12.1", torch=f"{other}.0", flash_attn="2.7.3"),
    )
    for minor, other in (("2.1", "2.2"), ("2.2", "2.1"), ("2.3", "2.4"), ("2.4", "2.5"), ("2.5", "2.4"))
}
# likewise: the nearest to all of these is cu126
CASES |= {
    f"flash-attn-prebuilt-abi-new-{label}": case(
        stack("12.4", torch="2.6.0", flash_attn=f"2.8.3+{label}torch2.6"),
        stack("12.6", torch="2.6.0+cu126", flash_attn=f"2.8.3+{label}torch2.6"),
        stack("12.4", torch="2.6.0", flash_attn="2.8.3+cu124torch2.6"),
    )
    for label in ("cu126", "cu128", "cu129")
}
# setup.py of 2.8.3: compute_100 and compute_120 where nvcc is 12.8 or newer; a wheel for an older CUDA has neither
CASES |= {
    f"flash-attn-prebuilt-{label}-blackwell": case(
        stack("12.8", gpu="10.0", torch="2.8.0", flash_attn=f"2.8.3+{label}torch2.8"),
        stack("12.8", gpu="10.0", torch="2.8.0", flash_attn="2.8.3+cu128torch2.8"),
        stack("12.8", gpu="9.0", torch="2.8.0", flash_attn=f"2.8.3+{label}torch2.8"),
    )
    for label in ("cu124", "cu126")
}
