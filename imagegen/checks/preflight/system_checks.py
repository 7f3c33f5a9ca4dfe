"""Checks of the operating system, limits, user and variables: check_*(image, machine) yields findings."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .model import Finding, Image, Machine

# system
#
# The operating system: images need Linux; WSL2 is Linux on a Windows driver.


def check_system(image: Image, machine: Machine) -> Iterator[Finding]:
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


# shm
#
# Shared memory: torch's data loaders, NCCL between processes and Ray's object store live in /dev/shm.
#
# Sources: `docker run --shm-size` (64 MiB by default); PyTorch README, "Using pre-built images" (--ipc=host or
# --shm-size); NCCL documentation, "Troubleshooting: Sharing Data".

_SHM_BYTES = 1 << 30  # what NVIDIA's containers recommend for NCCL alone


def shm_applies(image: Image, machine: Machine) -> bool:
    return image.has("torch", "ray") and machine.shm is not None


def check_shm(image: Image, machine: Machine) -> Iterator[Finding]:
    size = machine.shm or 0
    if size >= _SHM_BYTES:
        return
    yield Finding(
        "shm",
        "warning",
        f"/dev/shm has {size >> 20} MiB: data loader workers die with SIGBUS, NCCL and Ray fail",
        "`docker run --ipc=host` or --shm-size=16g (Kubernetes: an emptyDir with medium Memory at /dev/shm)",
    )


# limits
#
# Limits on locked memory: RDMA NICs register the memory that they read, which must be locked.
#
# Source: NCCL documentation, "Troubleshooting: InfiniBand" (ulimit -l unlimited).

_LOCKED_BYTES = 1 << 36  # bytes; NCCL itself asks for "unlimited"


def limits_applies(image: Image, machine: Machine) -> bool:
    return image.cuda is not None and bool(_verbs(machine))


def check_limits(image: Image, machine: Machine) -> Iterator[Finding]:
    verbs = _verbs(machine)
    if machine.memlock is not None and machine.memlock < _LOCKED_BYTES:
        yield Finding(
            "limits",
            "warning",
            f"there is RDMA ({len(verbs)} device{'s' if len(verbs) > 1 else ''}), and only {machine.memlock >> 10} KiB "
            'may be locked in memory: NCCL\'s InfiniBand transport fails with "ibv_reg_mr" errors',
            "`docker run --ulimit memlock=-1 --cap-add=IPC_LOCK`",
        )


def _verbs(machine: Machine) -> list[str]:
    return [name for name in machine.devices if name.startswith("infiniband/uverbs")]


# home
#
# The user, and the directories in which all caches of the stack are.

_USER_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # where Python's getpass.getuser() looks first


def check_home(_: Image, machine: Machine) -> Iterator[Finding]:
    for name, held in (("HOME", "caches of Hugging Face, Triton, vLLM and flashinfer"), ("TMPDIR", "temporary files")):
        if not machine.writable.get(name, True):
            value = machine.environ.get(name, "")
            yield Finding(
                "home",
                "warning",
                f"{name} ({value or 'unset'}) cannot be written by user {machine.uid}: there is no place for {held}",
                f"set {name} to a directory that is this user's (-e {name}=...), or mount one there",
            )
    if machine.user is None and not any(machine.environ.get(name) for name in _USER_NAMES):
        yield Finding(
            "home",
            "warning",
            f"user {machine.uid} has no name: getpass.getuser() fails, and torch.compile with it",
            "set LOGNAME to any word (-e LOGNAME=me)",
        )


# empty
#
# Empty variables that programs parse as numbers: int("") ends the run, a config does not validate.

# Name -> who reads it as a number. One `*` stands for anything.
NUMBERS = {
    "ARNOLD_*_NUM": "launch scripts on ByteDance's Arnold, such as verl's examples",
    "ARNOLD_*_GPU": "launch scripts on ByteDance's Arnold, such as verl's examples",
    "ARNOLD_*_PORT": "launch scripts on ByteDance's Arnold, such as verl's examples",
    "ARNOLD_ID": "launch scripts on ByteDance's Arnold, such as verl's examples",
    "RANK": "torch.distributed, env:// initialization",
    "WORLD_SIZE": "torch.distributed, env:// initialization",
    "MASTER_PORT": "torch.distributed, env:// initialization",
    "LOCAL_RANK": "torchrun, environment variables",
    "LOCAL_WORLD_SIZE": "torchrun, environment variables",
    "GROUP_RANK": "torchrun, environment variables",
    "NODE_RANK": "launchers such as accelerate and Lightning",
    "NNODES": "launch scripts that pass it to torchrun --nnodes",
    "NPROC_PER_NODE": "launch scripts that pass it to torchrun --nproc-per-node",
    "*_NUM_THREADS": "OpenMP 6.0, section 4.1.3 (OMP_NUM_THREADS), and libraries with thread pools",
    "MAX_JOBS": "torch.utils.cpp_extension and the builds of vLLM and flash-attn",
    "VLLM_PORT": "vLLM, vllm/envs.py",
    "VLLM_DP_SIZE": "vLLM, vllm/envs.py",
    "VLLM_DP_RANK": "vLLM, vllm/envs.py",
    "NCCL_*_THRESHOLD": "NCCL, environment variables",
}


def check_empty(_: Image, machine: Machine) -> Iterator[Finding]:
    for name, value in sorted(machine.environ.items()):
        reader = next((who for form, who in NUMBERS.items() if _matches(name, form)), None)
        if reader and not value.strip():
            yield Finding(
                "empty",
                "warning",
                f"{name} is set and empty, and is read as a number ({reader})",
                f"unset {name}, or give it a number",
            )


def _matches(name: str, form: str) -> bool:
    head, star, tail = form.partition("*")
    return name.startswith(head) and name.endswith(tail) and len(name) > len(form) - 1 if star else name == form


# wandb
#
# Weights & Biases: without a key and not offline, a run that logs to it asks for the key or ends.
#
# Source: W&B documentation, "Environment variables" (WANDB_API_KEY, WANDB_MODE) and `wandb login` (~/.netrc).

_WANDB_OFFLINE = ("offline", "disabled", "dryrun")


def wandb_applies(image: Image, machine: Machine) -> bool:
    return image.has("wandb")


def check_wandb(image: Image, machine: Machine) -> Iterator[Finding]:
    environ = machine.environ
    if environ.get("WANDB_MODE") in _WANDB_OFFLINE or environ.get("WANDB_API_KEY"):
        return
    if environ.get("WANDB_DISABLED", "").lower() == "true" or os.path.exists(os.path.expanduser("~/.netrc")):
        return
    yield Finding(
        "wandb",
        "note",
        "W&B is to be online (WANDB_MODE), and there is no key: a run that logs to it ends or asks",
        "set WANDB_API_KEY, or WANDB_MODE=offline",
    )
