"""The GPU answers, is one that torch and the lock have code for, and multiplies bfloat16 matrices right."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from smoke.arch import arch_names, runs_on
from smoke.program import Details, Failed, Findings, Spec, step
from torch import Tensor

SIZE = 1024


def check(spec: Spec) -> Details:
    step("torch.cuda.is_available()")  # dies in some set-ups, from inside the driver
    if not torch.cuda.is_available():
        raise Failed(f"there is a GPU, and torch cannot use it: {_why_not()}", {"torch": torch.__version__})
    findings = Findings()
    devices = [_device(index, spec, findings) for index in range(torch.cuda.device_count())]
    step("bfloat16 matmul")
    error = matmul_error(torch.device("cuda"))
    findings.expect("matmul", error <= 1, f"a bfloat16 product is off by {error:.2f} times what rounding may do")
    return findings.done(
        {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "devices": devices,
            "driver": _driver(),
            "matmul_error": round(error, 3),
        }
    )


def _driver() -> str:
    """Return the version of NVIDIA's kernel module; "" where /proc does not have it (WSL 2)."""
    try:
        found = re.search(r"\s(\d+(?:\.\d+)+)\s", Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"))
    except OSError:
        return ""
    return found[1] if found else ""


def _why_not() -> str:
    try:
        torch.zeros(1, device="cuda")
    except Exception as error:  # noqa: BLE001  # torch raises several classes here; the text is what counts
        return str(error).splitlines()[0]
    return "it does not say why"


def _device(index: int, spec: Spec, findings: Findings) -> Details:
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    built = torch.cuda.get_arch_list()
    name = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
    findings.expect("torch-arch", runs_on(capability, built), f"torch has no code for {name}: it has {built}")
    locked = spec.env.get("TORCH_CUDA_ARCH_LIST")
    if locked:
        findings.expect("lock-arch", runs_on(capability, arch_names(locked)), f"the image is for {locked}, not {name}")
    return {"name": properties.name, "capability": list(capability), "memory_bytes": properties.total_memory}


def matmul_error(device: torch.device) -> float:
    """Largest error of a bfloat16 product, in units of what rounding may do to that element: 1 is the limit.

    The product is summed in float32 (u = 2**-24, each of the n terms may lose that much of the sum of magnitudes) and
    then rounded once to bfloat16 (u = 2**-8 of the result).
    """
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, SIZE, SIZE, generator=generator).bfloat16()
    # Off, or split sums may be added in bfloat16, which the bound does not cover.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    product = (left.to(device) @ right.to(device)).cpu().double()
    exact, magnitude = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    return _worst(product - exact, 2**-8 * exact.abs() + SIZE * 2**-24 * magnitude)


def _worst(error: Tensor, allowed: Tensor) -> float:
    return float((error.abs() / allowed).max())
