"""Operations that trainer and rollout engine both compute, on fixed inputs: each implementation and its reference.

Every function takes inputs of one dtype on one device and returns a tensor of a reference's shape. References take the
same rounded inputs in float64 on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from smoke.inputs import values
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALF = (torch.bfloat16, torch.float16)
EPSILON = 1e-6  # of RMSNorm
BACKENDS = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation.

    A `selective` implementation may raise an error for inputs or GPUs that it does not take; of any other that is a
    failure. ModuleNotFoundError always means that the image lacks it.
    """

    name: str
    run: Callable[..., Tensor]
    dtypes: tuple[torch.dtype, ...] = DTYPES
    selective: bool = False


@dataclass(frozen=True)
class Operation:
    """`inputs` makes float32 tensors on the CPU from a seed; `piece` selects the first row of the inputs.

    `piece` is given where the result of a row should not depend on the other rows of its batch.
    """

    name: str
    inputs: Callable[[int], tuple[Tensor, ...]]
    reference: Callable[..., Tensor]
    implementations: Callable[[str], Iterator[Implementation]]
    piece: Callable[..., tuple[Tensor, ...]] | None = None


def _matmul_inputs(seed: int) -> tuple[Tensor, ...]:
    return values("matmul a", 128, 1024, seed=seed), values("matmul b", 1024, 512, seed=seed) / 32


def _matmuls(_: str) -> Iterator[Implementation]:
    yield Implementation("torch", torch.matmul)


# ---- attention: causal, (batch, heads, length, width)

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 77, 64  # 77: no multiple of any kernel's tile


def _attention_inputs(seed: int) -> tuple[Tensor, ...]:
    return tuple(values(f"attention {name}", BATCH, HEADS, LENGTH, WIDTH, seed=seed) for name in "qkv")


def attention_reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return softmax(Q K' / sqrt(d)) V under a causal mask."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return scores.masked_fill(~visible, -math.inf).softmax(-1) @ value


def _attentions(device: str) -> Iterator[Implementation]:
    yield Implementation("torch", _sdpa(None))
    for backend in BACKENDS if device == "cuda" else (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        yield Implementation(f"sdpa {backend.name.lower()}", _sdpa(backend), selective=True)
    if device == "cuda":
        yield Implementation("flash-attn", _flash_attn, HALF)
        yield Implementation("vllm", _vllm_attention, HALF)
        yield Implementation("sglang", _sglang_attention, HALF, selective=True)  # its kernels are for Hopper


def _sdpa(backend: SDPBackend | None) -> Callable[..., Tensor]:
    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if backend is None:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    return run


def _flash_attn(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    import flash_attn

    if flash_attn.__file__ is None:  # flash-attn-4 has the directory without flash-attn's own modules
        raise ModuleNotFoundError("flash_attn is flash-attn 4's alone")
    from flash_attn import flash_attn_func

    return flash_attn_func(*(each.transpose(1, 2) for each in (query, key, value)), causal=True).transpose(1, 2)


def _packed(function: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, **options: int) -> Tensor:
    """Call FlashAttention's interface for sequences of any length: (batch * length, heads, width) with their starts."""
    starts = torch.arange(BATCH + 1, dtype=torch.int32, device=query.device) * LENGTH
    packed = [each.transpose(1, 2).reshape(-1, HEADS, WIDTH) for each in (query, key, value)]
    result = function(
        *packed, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=LENGTH, max_seqlen_k=LENGTH, causal=True,
        **options,
    )  # fmt: skip
    return result.view(BATCH, LENGTH, HEADS, WIDTH).transpose(1, 2)


def _vllm_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Call vLLM's own FlashAttention, in the generation that it takes here: 3 on Hopper, 4 on sm_100, else 2."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func, is_fa_version_supported

    best = {9: 3, 10: 4}.get(torch.cuda.get_device_capability()[0], 2)
    version = best if is_fa_version_supported(best) else 2
    return _packed(flash_attn_varlen_func, query, key, value, fa_version=version)


def _sglang_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    from sgl_kernel.flash_attn import flash_attn_varlen_func

    return _packed(flash_attn_varlen_func, query, key, value)


# ---- RMSNorm: (rows, width), weight (width)


def _norm_inputs(seed: int) -> tuple[Tensor, ...]:
    """Rows of four magnitudes; the squares of the smallest are near epsilon, and the last row is zero."""
    rows = values("norm rows", 64, 1024, seed=seed)
    scale = torch.tensor([1.0, 2.0**4, 2.0**-6, 2.0**-10]).repeat(16)[:, None]
    rows = rows * scale
    rows[-1] = 0
    return rows, 1 + values("norm weight", 1024, seed=seed) / 8


def norm_reference(rows: Tensor, weight: Tensor) -> Tensor:
    """Return x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019, arXiv 1910.07467, equation 4)."""
    return rows * (rows.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight


def _norms(device: str) -> Iterator[Implementation]:
    yield Implementation("torch", _torch_norm)
    yield Implementation("transformers", _transformers_norm)
    if device == "cuda":
        yield Implementation("vllm", _vllm_norm)
        yield Implementation("sglang", _sglang_norm, HALF)


def _torch_norm(rows: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(rows, weight.shape, weight, EPSILON)


def _transformers_norm(rows: Tensor, weight: Tensor) -> Tensor:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(len(weight), EPSILON).to(rows.device, rows.dtype)
    with torch.no_grad():
        norm.weight.copy_(weight)
        return norm(rows)


def _vllm_norm(rows: Tensor, weight: Tensor) -> Tensor:
    from vllm import _custom_ops

    output = torch.empty_like(rows)
    _custom_ops.rms_norm(output, rows, weight, EPSILON)
    return output


def _sglang_norm(rows: Tensor, weight: Tensor) -> Tensor:
    import sgl_kernel

    return sgl_kernel.rmsnorm(rows, weight, EPSILON)


# ---- softmax: (rows, vocabulary)


def _logits(seed: int) -> tuple[Tensor, ...]:
    """Logits as a trained model has them, every other row shifted by 96: exp of it overflows float32."""
    rows = values("logits", 32, 4096, seed=seed) * 4
    rows[::2] += 96
    return (rows,)


def _softmaxes(_: str) -> Iterator[Implementation]:
    yield Implementation("torch", lambda rows: torch.softmax(rows, -1))


def _log_softmaxes(_: str) -> Iterator[Implementation]:
    yield Implementation("torch", lambda rows: torch.log_softmax(rows, -1))


def _row(rows: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    return rows[:1], *rest


OPERATIONS = (
    Operation("matmul", _matmul_inputs, torch.matmul, _matmuls, _row),
    Operation("attention", _attention_inputs, attention_reference, _attentions),
    Operation("rms_norm", _norm_inputs, norm_reference, _norms, _row),
    Operation("softmax", _logits, lambda rows: rows.softmax(-1), _softmaxes, _row),
    Operation("log_softmax", _logits, lambda rows: rows.log_softmax(-1), _log_softmaxes, _row),
)
