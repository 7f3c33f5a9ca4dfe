"""Largest differences that numerical operations may have, by device, operation and dtype: measurements, as data.

`python -m smoke.numerics_bounds` measures, and prints rows of BOUNDS. A device is "cpu" for every CPU, else a GPU's
name as torch has it. An operation without a row is reported and not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

FACTOR = 4  # a bound over what was measured: other kernels and other CPUs add up in another order


@dataclass(frozen=True)
class Bound:
    """`measured` is the largest relative difference (smoke.measure.difference) over all seeds and implementations.

    `operation` is one of smoke.operations, "all_reduce", "decoder", or "decoder pair": trainer against engine, or two
    ways of the trainer.
    """

    device: str
    operation: str
    dtype: str
    measured: float
    source: str
    date: str

    @property
    def limit(self) -> float:
        return FACTOR * self.measured


_EPYC = "24 seeds, AMD EPYC, torch 2.13.0+cpu with AVX512, AVX2 and neither"
_H100 = "12 seeds, one GPU, driver 580.159.04, torch 2.11.0, vllm 0.24.0"
_H100_PAIR = "3 seeds, two GPUs, driver 580.159.04, torch 2.11.0, NCCL 2.28.9"
_H200 = "12 seeds, one GPU, driver 580.159.04, torch 2.11.0, vllm 0.24.0; the same numbers with sglang 0.5.14"

BOUNDS = (
    Bound("cpu", "all_reduce", "bfloat16", 0.0026, _EPYC, "2026-11-23"),
    Bound("cpu", "all_reduce", "float16", 0.00032, _EPYC, "2026-11-23"),
    Bound("cpu", "all_reduce", "float32", 0.0, _EPYC, "2026-11-23"),
    Bound("cpu", "attention", "bfloat16", 0.0026, _EPYC, "2026-11-23"),
    Bound("cpu", "attention", "float16", 0.00038, _EPYC, "2026-11-23"),
    Bound("cpu", "attention", "float32", 6.5e-07, _EPYC, "2026-11-23"),
    Bound("cpu", "decoder", "bfloat16", 0.0093, _EPYC, "2026-11-23"),
    Bound("cpu", "decoder", "float16", 0.00076, _EPYC, "2026-11-23"),
    Bound("cpu", "decoder", "float32", 4.4e-07, _EPYC, "2026-11-23"),
    Bound("cpu", "decoder pair", "bfloat16", 0.01, _EPYC, "2026-11-23"),
    Bound("cpu", "log_softmax", "bfloat16", 0.0024, _EPYC, "2026-11-23"),
    Bound("cpu", "log_softmax", "float16", 0.0003, _EPYC, "2026-11-23"),
    Bound("cpu", "log_softmax", "float32", 6.5e-08, _EPYC, "2026-11-23"),
    Bound("cpu", "matmul", "bfloat16", 0.0029, _EPYC, "2026-11-23"),
    Bound("cpu", "matmul", "float16", 0.00036, _EPYC, "2026-11-23"),
    Bound("cpu", "matmul", "float32", 5e-07, _EPYC, "2026-11-23"),
    Bound("cpu", "rms_norm", "bfloat16", 0.0057, _EPYC, "2026-11-23"),
    Bound("cpu", "rms_norm", "float16", 0.0006, _EPYC, "2026-11-23"),
    Bound("cpu", "rms_norm", "float32", 1.8e-07, _EPYC, "2026-11-23"),
    Bound("cpu", "softmax", "bfloat16", 0.0033, _EPYC, "2026-11-23"),
    Bound("cpu", "softmax", "float16", 0.00046, _EPYC, "2026-11-23"),
    Bound("cpu", "softmax", "float32", 1e-06, _EPYC, "2026-11-23"),
    Bound("NVIDIA H100 80GB HBM3", "all_reduce", "bfloat16", 0.0026, _H100_PAIR, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "all_reduce", "float16", 0.00032, _H100_PAIR, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "all_reduce", "float32", 0, _H100_PAIR, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "attention", "bfloat16", 0.0026, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "attention", "float16", 0.00037, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "attention", "float32", 6.8e-07, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "decoder", "bfloat16", 0.0071, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "decoder", "float16", 0.00075, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "decoder", "float32", 4.7e-07, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "decoder pair", "bfloat16", 0.012, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "log_softmax", "bfloat16", 0.002, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "log_softmax", "float16", 0.00025, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "log_softmax", "float32", 3.5e-08, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "matmul", "bfloat16", 0.0029, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "matmul", "float16", 0.00036, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "matmul", "float32", 2.9e-07, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "rms_norm", "bfloat16", 0.0057, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "rms_norm", "float16", 0.00058, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "rms_norm", "float32", 1.3e-07, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "softmax", "bfloat16", 0.0033, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "softmax", "float16", 0.0004, _H100, "2026-11-24"),
    Bound("NVIDIA H100 80GB HBM3", "softmax", "float32", 1e-07, _H100, "2026-11-24"),
    Bound("NVIDIA H200", "attention", "bfloat16", 0.0026, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "attention", "float16", 0.00037, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "attention", "float32", 6.8e-07, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "decoder", "bfloat16", 0.0071, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "decoder", "float16", 0.00075, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "decoder", "float32", 4.7e-07, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "decoder pair", "bfloat16", 0.012, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "log_softmax", "bfloat16", 0.002, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "log_softmax", "float16", 0.00025, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "log_softmax", "float32", 3.5e-08, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "matmul", "bfloat16", 0.0029, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "matmul", "float16", 0.00036, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "matmul", "float32", 2.9e-07, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "rms_norm", "bfloat16", 0.0057, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "rms_norm", "float16", 0.00058, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "rms_norm", "float32", 1.3e-07, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "softmax", "bfloat16", 0.0033, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "softmax", "float16", 0.0004, _H200, "2026-11-23"),
    Bound("NVIDIA H200", "softmax", "float32", 1e-07, _H200, "2026-11-23"),
)


def find(device: str, operation: str, dtype: str) -> Bound | None:
    """Return the bound for an operation, None where nothing was measured."""
    key = (device, operation, dtype)
    return next((bound for bound in BOUNDS if (bound.device, bound.operation, bound.dtype) == key), None)
