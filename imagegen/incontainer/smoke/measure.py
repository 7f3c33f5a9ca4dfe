"""Differences between tensors as numbers, and fingerprints that tell how far two images' results are apart."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from smoke.inputs import integers
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
