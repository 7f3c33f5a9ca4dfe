"""GPU architectures by name: which code runs on which device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence


def arch_names(arch_list: str) -> list[str]:
    """TORCH_CUDA_ARCH_LIST as torch.cuda.get_arch_list() writes it: "9.0;12.0+PTX" -> sm_90, sm_120, compute_120."""
    names = []
    for word in filter(None, re.split(r"[ ;]+", arch_list)):
        number, _, ptx = word.partition("+")
        code = number.replace(".", "")
        names += [f"sm_{code}", *([f"compute_{code}"] if ptx else [])]
    return names


def targets(gpus: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The architectures to compile for: what the lock names, else the image's TORCH_CUDA_ARCH_LIST without its PTX."""
    listed = arch_names(env.get("TORCH_CUDA_ARCH_LIST", ""))
    return list(gpus) or [name for name in listed if name.startswith("sm_")]


def runs_on(capability: tuple[int, int], built: Iterable[str]) -> bool:
    """Return whether code for these architectures runs on a device.

    A cubin runs on its own major version and an equal or later minor one, and PTX on everything later; the suffix a
    binds to exactly one device, f to its family (CUDA C++ Programming Guide, "Application Compatibility").
    """
    for name in built:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if not match:
            continue
        kind, suffix, target = match[1], match[4], (int(match[2]), int(match[3]))
        if suffix == "a":
            fits = target == capability
        elif kind == "compute" and not suffix:
            fits = target <= capability
        else:
            fits = target[0] == capability[0] and target <= capability
        if fits:
            return True
    return False


def dotted(name: str) -> str:
    """Return the form of TORCH_CUDA_ARCH_LIST and FLASHINFER_CUDA_ARCH_LIST: "sm_100" -> "10.0", "sm_90a" -> "9.0a"."""
    match = re.fullmatch(r"sm_(\d+)(\d[af]?)", name)
    if not match:
        raise ValueError(f"no GPU architecture: {name}")
    return f"{match[1]}.{match[2]}"
