"""TransformerEngine's modules: right on this GPU, forward and backward, in bfloat16 and in FP8."""

from __future__ import annotations

import math

import torch
from smoke.checks import attention
from smoke.measure import Kernel, compare
from smoke.program import Details, Findings, Spec
from torch import Tensor
from torch.nn.functional import rms_norm, silu

ROWS, WIDTH, OUTPUT = 64, 128, 96  # multiples of 16, as FP8 wants them
EPSILON = 1e-5
LIMIT = attention.TOLERANCE[torch.bfloat16]
FP8_CAPABILITY = (8, 9)
# Values have 3 bits of fraction (E4M3), gradients 2 (E5M2): each is off by 2**-3 of itself at most, and a sum of many
# products by less, relative to its largest value.
FP8_LIMIT = 2**-3


def check(spec: Spec) -> Details:  # noqa: ARG001 - every check is given one
    from transformer_engine import pytorch as te

    findings = Findings()
    options = {"params_dtype": torch.bfloat16, "device": "cuda"}
    torch.manual_seed(0)
    norm_linear = te.LayerNormLinear(WIDTH, OUTPUT, eps=EPSILON, normalization="RMSNorm", bias=False, **options)
    mlp = te.LayerNormMLP(
        WIDTH, OUTPUT, eps=EPSILON, normalization="RMSNorm", activation="swiglu", bias=False, **options
    )
    core = te.DotProductAttention(
        attention.HEADS, attention.WIDTH, attention_dropout=0.0, attn_mask_type="causal", qkv_format="bshd"
    )
    linear = te.Linear(WIDTH, OUTPUT, bias=False, **options)
    rows = ((ROWS, WIDTH),)
    heads = (attention.BATCH, attention.LENGTH, attention.HEADS, attention.WIDTH)
    kernels = [
        Kernel("RMSNorm, linear", norm_linear, lambda x: product(normed(x, norm_linear), norm_linear), rows, LIMIT),
        Kernel("RMSNorm, SwiGLU", mlp, lambda x: exact_mlp(normed(x, mlp), mlp), rows, LIMIT),
        Kernel("causal attention", core, exact_attention, (heads,) * 3, LIMIT),
        Kernel("linear", linear, lambda x: product(x, linear), rows, LIMIT),
    ]
    if torch.cuda.get_device_capability() >= FP8_CAPABILITY:
        kernels.append(
            Kernel("linear in FP8", lambda x: in_fp8(linear, x), lambda x: product(x, linear), rows, FP8_LIMIT)
        )
    return findings.done({**compare(kernels, findings)})


def exact(parameter: Tensor) -> Tensor:
    return parameter.detach().double()


def product(rows: Tensor, module: torch.nn.Module) -> Tensor:
    return rows @ exact(module.weight).T


def normed(rows: Tensor, module: torch.nn.Module) -> Tensor:
    return rms_norm(rows, (WIDTH,), exact(module.layer_norm_weight), EPSILON)


def exact_mlp(rows: Tensor, module: torch.nn.Module) -> Tensor:
    gate, value = (rows @ exact(module.fc1_weight).T).chunk(2, -1)
    return (silu(gate) * value) @ exact(module.fc2_weight).T


def exact_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(batch, length, heads, width) each -> (batch, length, heads * width)"""
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def in_fp8(module: torch.nn.Module, rows: Tensor) -> Tensor:
    """Call a module with weights and inputs quantised by their own largest values, not by those of earlier calls."""
    from transformer_engine import pytorch as te
    from transformer_engine.common.recipe import Float8CurrentScaling

    with te.fp8_autocast(enabled=True, fp8_recipe=Float8CurrentScaling()):
        return module(rows)
