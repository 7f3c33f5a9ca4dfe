"""Tensors compared: their differences as numbers, fused kernels with references in float64, and fingerprints.

A fingerprint tells how far the results of two images are apart.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from smoke.inputs import integers
from smoke.program import Findings, step
from torch import Tensor

SAMPLES = 256  # values of each result that a fingerprint keeps


def dtype_name(dtype: torch.dtype) -> str:
    """Return "bfloat16" for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def difference(actual: Tensor, expected: Tensor) -> dict[str, float | None]:
    """Compare two tensors of one shape in float64. None stands for a difference that is not finite.

    The largest relative difference is the largest absolute one over the largest absolute value expected; the mean
    relative one is the mean absolute one over the mean absolute value expected. (Quotients of single values have no
    bound where a value is near zero.)
    """
    scale = expected.double().cpu().abs()
    error = (actual.double().cpu() - expected.double().cpu()).abs()
    numbers = {
        "largest_absolute": float(error.max()),
        "mean_absolute": float(error.mean()),
        "largest_relative": float(error.max() / scale.max()),
        "mean_relative": float(error.mean() / scale.mean()),
    }
    # JSON has no NaN and no infinity.
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def fingerprint(name: str, result: Tensor) -> dict[str, Any]:
    """Return the sha256 of the result's bytes in C order, and SAMPLES of its values.

    The positions depend on `name` and the number of values alone. The values are those of the result's dtype, as
    numbers that JSON keeps exactly; None stands for one that is not finite.
    """
    flat = result.detach().cpu().contiguous().flatten()
    digest = hashlib.sha256(bytes(flat.view(torch.uint8).tolist())).hexdigest()
    chosen = flat[integers(f"positions {name}", 1 << 15, SAMPLES) * len(flat) >> 15].tolist()
    return {"sha256": digest, "samples": [value if math.isfinite(value) else None for value in chosen]}


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal bit for bit; NaN equals NaN."""
    return fingerprint("", one)["sha256"] == fingerprint("", other)["sha256"]


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
