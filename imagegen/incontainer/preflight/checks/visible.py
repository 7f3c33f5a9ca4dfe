"""Whether a GPU is there at all, and whether the container got what programs need of its driver.

Sources: NVIDIA Container Toolkit, "Specialized configurations with Docker" (NVIDIA_VISIBLE_DEVICES,
NVIDIA_DRIVER_CAPABILITIES).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Image, Machine

_NEEDED = {"compute": "libcuda", "utility": "nvidia-smi and NVML"}


def applies(image: Image, machine: Machine) -> bool:
    return image.cuda is not None or not image.cell


def check(image: Image, machine: Machine) -> Iterator[Finding]:
    if not machine.gpus:
        yield _none(machine)
    chosen = machine.environ.get("NVIDIA_DRIVER_CAPABILITIES")
    if machine.place == "container" and chosen:
        given = {word.strip() for word in chosen.split(",")}
        missing = [name for name in sorted(_NEEDED) if name not in given and "all" not in given]
        if missing:
            lost = " and ".join(_NEEDED[name] for name in missing)
            yield Finding(
                "gpu",
                "warning",
                f"NVIDIA_DRIVER_CAPABILITIES={chosen} leaves {', '.join(missing)} out, and with it {lost}",
                "leave the variable as the image has it, or set it to compute,utility",
            )


def _none(machine: Machine) -> Finding:
    seen = any(name.startswith("nvidia") and name[6:].isdecimal() for name in machine.devices) or machine.wsl
    if machine.place == "host":
        said = f": {machine.smi}" if machine.driver or seen else ""
        return Finding(
            "gpu",
            "warning",
            f"no NVIDIA GPU answers on this host{said}",
            "images for CUDA import here and run nothing on a GPU; install the NVIDIA driver where there is a GPU",
        )
    if seen:
        return Finding(
            "gpu",
            "warning",
            f"the container has a GPU's devices, and nvidia-smi shows no GPU: {machine.smi}",
            "start it with the NVIDIA Container Toolkit (`docker run --gpus all`), not with --device alone",
        )
    if machine.driver:
        return Finding(
            "gpu",
            "warning",
            f"the host has an NVIDIA driver ({machine.driver}), and this container got no GPU",
            "`docker run --gpus all` (Kubernetes: ask for nvidia.com/gpu in resources.limits)",
        )
    return Finding(
        "gpu",
        "warning",
        "no NVIDIA GPU and no driver here: what needs CUDA will fail",
        "`docker run --gpus all` on a host with an NVIDIA driver and the NVIDIA Container Toolkit",
    )
