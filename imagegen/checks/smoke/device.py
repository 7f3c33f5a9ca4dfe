"""The device that operations run on, and the versions of the libraries that compute there."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from pathlib import Path
from typing import Any

import torch
from smoke.checks.versions import canonical_name

# Distributions whose code computes the measured operations -> the name of the library.
_LIBRARIES = {
    **{name: name for name in ("flash-attn", "sglang", "torch", "transformers", "triton", "vllm", "xformers")},
    "flashinfer-python": "flashinfer",
    "nvidia-cublas": "cuBLAS",
    "nvidia-cublas-cu12": "cuBLAS",
    "sgl-kernel": "sglang-kernel",
    "sglang-kernel": "sglang-kernel",
}
_DRIVER = Path("/proc/driver/nvidia/version")


def describe(device: str) -> dict[str, Any]:
    """Return {"type", "name", "driver"}: of a CPU, the model with the vector extension that torch uses, and None."""
    if device == "cuda":
        return {"type": "cuda", "name": torch.cuda.get_device_name(0), "driver": _driver()}
    return {"type": "cpu", "name": f"{_cpu_model()} ({torch.backends.cpu.get_cpu_capability()})", "driver": None}


def versions(device: str) -> dict[str, str]:
    """Return the version of each library that computes: what torch runs with, else what is installed."""
    found = {}
    for distribution in importlib.metadata.distributions():
        library = _LIBRARIES.get(canonical_name(distribution.metadata["Name"] or ""))
        if library:
            found[library] = distribution.version
    if onednn := re.search(r"MKL-DNN v([\d.]+)", torch.__config__.show()):
        found["oneDNN"] = onednn[1]
    if device == "cuda":
        found["CUDA"] = str(torch.version.cuda)
        found["cuDNN"] = _dotted(torch.backends.cudnn.version())
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return dict(sorted(found.items()))


def _dotted(version: int | None) -> str:
    """Return 9.19.0 for cuDNN's 91900 (major * 10000 + minor * 100 + patch, since cuDNN 9; before: * 1000)."""
    if version is None:
        return "none"
    major = 10000 if version >= 90000 else 1000
    return f"{version // major}.{version % major // 100}.{version % 100}"


def _driver() -> str | None:
    """Return the version of the kernel module of NVIDIA's driver, which every container sees in /proc."""
    if not _DRIVER.exists():
        return None
    found = re.search(r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)", _DRIVER.read_text(encoding="utf-8"))
    return found[1] if found else None


def _cpu_model() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
