"""The operating system: images are for Linux, and WSL2 is Linux with a driver of Windows underneath."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Image, Machine


def check(image: Image, machine: Machine) -> Iterator[Finding]:
    if machine.system != "Linux":
        yield Finding(
            "system",
            "error",
            f"this is {machine.system}: NCCL and flash-attn have no builds for it, and Ray's daemon does not stay up",
            "run the image in a Linux virtual machine or on a Linux host; nothing of the stack is installed outside it",
        )
    if machine.wsl and (image.cuda or not image.cell):
        yield Finding(
            "system",
            "warning",
            f"this is WSL2 (kernel {machine.kernel}): the GPU is Windows' own, GPUs cannot share memory, and "
            "some CUDA builds abort in torch.cuda.is_available() without a Python error",
            "`/opt/imagegen/doctor` asks CUDA in a process of its own and names the signal; NCCL_P2P_DISABLE=1 helps "
            "several GPUs; a Linux host is what these stacks are tested on",
        )
