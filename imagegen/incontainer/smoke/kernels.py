"""Compare fused kernels with plain references in float64: outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from smoke.program import Findings, step
from torch import Tensor


@dataclass(frozen=True)
class Kernel:
    """A function of tensors on the GPU, its reference, the shapes of both's inputs, and the largest relative error.

    The reference computes in float64 on the same inputs, rounded to bfloat16.
    """

    name: str
    fused: Callable[..., Tensor]
    exact: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    limit: float


def compare(kernels: Sequence[Kernel], findings: Findings) -> dict[str, float]:
    """Run each kernel forward and backward; return its name -> largest error over the largest reference value."""
    errors = {}
    for kernel in kernels:
        step(kernel.name)
        generator = torch.Generator().manual_seed(0)
        inputs = [torch.randn(shape, generator=generator).to(torch.bfloat16).cuda() for shape in kernel.shapes]
        expected = _results(kernel.exact, [tensor.double() for tensor in inputs])
        actual = _results(kernel.fused, inputs)
        errors[kernel.name] = judge(kernel.name, actual, expected, kernel.limit, findings)
    return errors


def judge(name: str, actual: Sequence[Tensor], expected: Sequence[Tensor], limit: float, findings: Findings) -> float:
    """Return the largest relative error of all tensors; above the limit, or not finite, it is a finding."""
    pairs = zip(actual, expected)  # noqa: B905  # Python 3.9
    error = max(float((a.double() - e).abs().max() / e.abs().max()) for a, e in pairs)
    findings.expect(name, error <= limit, f"{name} misses the reference by {error:.2e}, more than {limit:.2e}")
    return error


def _results(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the output and the gradient of each input, for one fixed gradient of the output."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    output = function(*leaves)
    gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    output.backward(gradient.to(output.device, output.dtype))
    return [output.detach(), *(leaf.grad for leaf in leaves)]
