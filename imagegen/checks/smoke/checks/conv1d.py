"""causal-conv1d's kernels: right on this GPU, forward and backward, with and without the activation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from smoke.checks.attention import TOLERANCE
from smoke.program import Details, Findings, Spec, step
from torch import Tensor
from torch.nn.functional import conv1d, silu

BATCH, CHANNELS, LENGTH, TAPS = 2, 64, 77, 4
SHAPES = ((BATCH, CHANNELS, LENGTH), (CHANNELS, TAPS), (CHANNELS,), (BATCH, CHANNELS, LENGTH))
DTYPE = torch.bfloat16


def check(spec: Spec) -> Details:  # noqa: ARG001 - every check is given one
    from causal_conv1d import causal_conv1d_fn

    findings = Findings()
    errors: Details = {}
    for activation in (None, "silu"):
        name = activation or "plain"
        step(name)
        generator = torch.Generator().manual_seed(0)
        inputs = [torch.randn(shape, generator=generator).to(DTYPE) for shape in SHAPES]
        expected = run(exact, [tensor.double() for tensor in inputs], activation)
        actual = run(causal_conv1d_fn, [tensor.cuda() for tensor in inputs], activation)
        pairs = zip(actual, expected)  # noqa: B905  # Python 3.9
        errors[name] = max(float((a - e).abs().max() / e.abs().max()) for a, e in pairs)
        holds = errors[name] <= TOLERANCE[DTYPE]  # of not-a-number too, it does not
        findings.expect(name, holds, f"causal-conv1d ({name}) misses torch's convolution by {errors[name]:.2e}")
    return findings.done(errors)


def exact(rows: Tensor, taps: Tensor, bias: Tensor, *, activation: str | None) -> Tensor:
    """Each channel's own convolution over what came before, by torch."""
    output = conv1d(rows, taps.unsqueeze(1), bias, padding=TAPS - 1, groups=CHANNELS)[..., :LENGTH]
    return silu(output) if activation else output


def run(function: Callable[..., Tensor], inputs: list[Tensor], activation: str | None) -> list[Tensor]:
    """Output and the gradients of rows, taps and bias, in float64 on the CPU."""
    *leaves, gradient = (tensor.requires_grad_() for tensor in inputs)
    output = function(*leaves, activation=activation)
    output.backward(gradient.detach())
    return [tensor.detach().double().cpu() for tensor in (output, *(leaf.grad for leaf in leaves))]
