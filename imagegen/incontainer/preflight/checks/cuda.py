"""What the CUDA driver library itself says. Source: CUDA Driver API, CUresult."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import CudaProbe, Finding, Image, Machine

_FIX = {
    3: ("CUDA is not initialised", "see `dmesg` on the host"),
    34: ("what was loaded is a stub for linking", "take the directory of that library out of LD_LIBRARY_PATH"),
    100: ("no GPU is visible", "`docker run --gpus all`; see that CUDA_VISIBLE_DEVICES is not empty"),
    802: ("the system is not ready", "start nvidia-fabricmanager on the host: NVSwitch machines need it"),
    803: (
        "driver and libcuda do not go together",
        "take cuda-compat out of LD_LIBRARY_PATH and of /etc/ld.so.conf.d; after a driver's update, reboot the host",
    ),
    804: ("forward compatibility does not work on this GPU", "take cuda-compat out of LD_LIBRARY_PATH"),
    999: (
        "the driver is in a bad state",
        "reload nvidia-uvm on the host (`modprobe -r nvidia_uvm && modprobe nvidia_uvm`)",
    ),
}


def applies(image: Image, machine: Machine) -> bool:
    return machine.probe is not None and (image.cuda is not None or not image.cell)


def check(image: Image, machine: Machine) -> Iterator[Finding]:
    probe = machine.probe
    if probe is None or (probe.init == 0 and probe.devices):
        return
    severity = "error" if machine.gpus else "warning"  # without any GPU, another check has said so
    if probe.init is None:
        yield _dead(probe, machine, severity)
        return
    what, fix = _FIX.get(probe.init, ("", "look the number up under CUresult in the CUDA Driver API"))
    if probe.init == 0:
        what, fix = "it starts, and shows no GPU", _FIX[100][1]
    yield Finding("cuda", severity, f"cuInit of {probe.library} gives {probe.init}{what and f': {what}'}", fix)


def _dead(probe: CudaProbe, machine: Machine, severity: str) -> Finding:
    if probe.died.startswith("SIG"):
        fix = "update the driver; on WSL2 that is Windows' driver, and `wsl --update` its kernel"
        return Finding("cuda", "error", f"a process that asked CUDA for its GPUs was killed by {probe.died}", fix)
    if machine.place == "container":
        fix = "`docker run --gpus all`, with compute in NVIDIA_DRIVER_CAPABILITIES"
    else:
        fix = "install the NVIDIA driver with its CUDA libraries"
    return Finding("cuda", severity, f"CUDA cannot be asked: {probe.died}", fix)
