"""FlashAttention 2's own functions: right on this GPU, forward and backward, for whole batches and packed sequences."""

from __future__ import annotations

import torch
from smoke.checks.attention import LENGTH, TOLERANCE, reference
from smoke.program import Details, Findings, Spec, step
from torch import Tensor

BATCH, HEADS, SHARED = 2, 4, 2  # SHARED: heads of key and value, each for two of the query's
WIDTHS = (64, 128)  # of a head, as Qwen and Llama have them
DTYPE = torch.bfloat16


def check(spec: Spec) -> Details:  # noqa: ARG001 - every check is given one
    findings = Findings()
    errors: Details = {}
    for width in WIDTHS:
        for causal in (True, False):
            for packed in (False, True):
                name = f"{'causal' if causal else 'full'}, width {width}{', packed' if packed else ''}"
                step(name)
                errors[name] = worst(width, causal=causal, packed=packed)
                holds = errors[name] <= TOLERANCE[DTYPE]  # of not-a-number too, it does not
                findings.expect(name, holds, f"flash-attn ({name}) misses the reference by {errors[name]:.2e}")
    return findings.done(errors)


def worst(width: int, *, causal: bool, packed: bool) -> float:
    """The largest error of output and gradients, over the largest value of each in float64 on the same inputs."""
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(BATCH, LENGTH, heads, width, generator=generator).to(DTYPE)
        for heads in (HEADS, SHARED, SHARED, HEADS)
    ]
    expected, actual = exact(inputs, causal=causal), fused(inputs, causal=causal, packed=packed)
    return max(float((a - e).abs().max() / e.abs().max()) for a, e in zip(actual, expected))  # noqa: B905  # Python 3.9


def exact(inputs: list[Tensor], *, causal: bool) -> list[Tensor]:
    """Output and gradients of query, key and value, as attention is written, in float64."""
    *leaves, gradient = (tensor.double().requires_grad_() for tensor in inputs)
    query, key, value = leaves
    groups = HEADS // SHARED
    heads_first = (query, key.repeat_interleave(groups, 2), value.repeat_interleave(groups, 2))
    output = reference(*(each.transpose(1, 2) for each in heads_first), None, is_causal=causal).transpose(1, 2)
    output.backward(gradient.detach())
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def fused(inputs: list[Tensor], *, causal: bool, packed: bool) -> list[Tensor]:
    """The same by flash-attn; packed: one sequence after the other with their bounds, as trainers do it."""
    from flash_attn import flash_attn_func, flash_attn_varlen_func

    *leaves, gradient = (tensor.cuda().requires_grad_() for tensor in inputs)
    if packed:
        bounds = torch.arange(BATCH + 1, dtype=torch.int32, device="cuda") * LENGTH
        rows = (leaf.flatten(0, 1) for leaf in leaves)
        output = flash_attn_varlen_func(*rows, bounds, bounds, LENGTH, LENGTH, causal=causal)
        output = output.unflatten(0, (BATCH, LENGTH))
    else:
        output = flash_attn_func(*leaves, causal=causal)
    output.backward(gradient.detach())
    return [tensor.detach().double().cpu() for tensor in (output, *(leaf.grad for leaf in leaves))]
