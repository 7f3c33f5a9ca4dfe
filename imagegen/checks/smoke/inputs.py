"""Inputs of numerical checks that are equal bit for bit on every machine and with every version of torch.

torch.randn is not: PyTorch's notes on randomness promise equal numbers neither across releases nor across platforms,
so two images would be compared on different inputs. SHAKE-128 (FIPS 202) gives the bytes here, integer sums make
them bell-shaped, and every value is a multiple of 2**-15 that float32 holds exactly.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

DEVIATION = 2 / math.sqrt(3)  # standard deviation of `values`: the sum of four uniform numbers in [-1, 1)


def values(name: str, *shape: int, seed: int = 0) -> Tensor:
    """Return float32 numbers in [-4, 4) with mean 0 and standard deviation DEVIATION, on the CPU.

    `name` and `seed` select the numbers: tensors of different names are independent.
    """
    return _words(name, seed, math.prod(shape) * 4).view(*shape, 4).sum(-1, dtype=torch.int32).float() / 2**15


def integers(name: str, limit: int, *shape: int, seed: int = 0) -> Tensor:
    """Return int64 numbers in [0, limit), on the CPU; `limit` is a power of two of at most 2**15."""
    return (_words(name, seed, math.prod(shape)).long() & (limit - 1)).view(*shape)


def _words(name: str, seed: int, count: int) -> Tensor:
    """Return `count` uniform 16-bit integers with a sign (little-endian, as all supported machines are)."""
    data = hashlib.shake_128(f"{name} {seed}".encode()).digest(2 * count)
    return torch.frombuffer(bytearray(data), dtype=torch.int16)
