"""Checks of GPUs, drivers and CUDA libraries: check_*(image, machine) yields findings, *_applies says where it can."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .model import DRIVER_ROOT, MOUNTS, CudaLibrary, CudaProbe, Finding, Gpu, Image, Machine, numbers, older

# visible
#
# Whether a GPU is visible, and whether the container has the driver's libraries that programs need.
#
# Sources: NVIDIA Container Toolkit, "Specialized configurations with Docker" (NVIDIA_VISIBLE_DEVICES,
# NVIDIA_DRIVER_CAPABILITIES).

_CAPABILITIES = {"compute": "libcuda", "utility": "nvidia-smi and NVML"}


def visible_applies(image: Image, machine: Machine) -> bool:
    return image.cuda is not None or not image.cell


def check_visible(image: Image, machine: Machine) -> Iterator[Finding]:
    if not machine.gpus and not machine.unreached:
        yield _no_gpu(machine)
    chosen = machine.environ.get("NVIDIA_DRIVER_CAPABILITIES")
    if machine.place == "container" and chosen:
        given = {word.strip() for word in chosen.split(",")}
        missing = [name for name in sorted(_CAPABILITIES) if name not in given and "all" not in given]
        if missing:
            lost = " and ".join(_CAPABILITIES[name] for name in missing)
            yield Finding(
                "gpu",
                "warning",
                f"NVIDIA_DRIVER_CAPABILITIES={chosen} leaves {', '.join(missing)} out, and with it {lost}",
                "leave the variable as the image has it, or set it to compute,utility",
            )


def _no_gpu(machine: Machine) -> Finding:
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


# driver
#
# The host's driver against the image's minimum, and against the driver that its CUDA release shipped with.
#
# Sources: CUDA Compatibility, "Minor Version Compatibility" (what a major version runs on; PTX is not covered);
# CUDA Toolkit Release Notes, "CUDA Toolkit and Corresponding Driver Versions" (Linux x86_64). Read 2026-11.

# CUDA -> the driver that it came with, which knows the PTX that it writes.
FIRST_DRIVER = {
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.2": "535.54.03",
    "12.3": "545.23.06",
    "12.4": "550.54.14",
    "12.5": "555.42.02",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
}


def driver_applies(image: Image, machine: Machine) -> bool:
    return image.cuda is not None and machine.driver is not None


def check_driver(image: Image, machine: Machine) -> Iterator[Finding]:
    driver, own = machine.driver or "", FIRST_DRIVER.get(image.cuda or "", "")
    if image.driver and older(driver, image.driver):
        yield Finding(
            "driver",
            "error",
            f"driver {driver} is older than {image.driver}, the oldest that this image (CUDA {image.cuda}) works with",
            f"install a driver of at least {image.driver} on the host, or use an image for an older CUDA",
        )
    elif older(driver, own):
        yield Finding(
            "driver",
            "warning",
            f"driver {driver} is older than {own}, which CUDA {image.cuda} came with: compiled kernels (SASS) "
            "run, since minor versions are compatible, but PTX cannot be compiled for the GPU",
            f"update the driver on the host to {own} or later if you see CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        )


# architecture
#
# The machine's GPUs against the image's GPUs, and against the architectures that are compiled at run time.
#
# Source: CUDA C++ Programming Guide, "Application Compatibility": machine code runs on its own major version and an
# equal or later minor one.


def architecture_applies(image: Image, machine: Machine) -> bool:
    chosen = image.gpus or machine.environ.get("TORCH_CUDA_ARCH_LIST")
    return bool(chosen) and any(gpu.capability for gpu in machine.gpus)


def check_architecture(image: Image, machine: Machine) -> Iterator[Finding]:
    known = {gpu.capability: gpu for gpu in machine.gpus if gpu.capability}
    for capability, gpu in sorted(known.items()):
        other = list(_outside_image(image, gpu, capability))
        yield from other or _outside_arch_list(machine.environ.get("TORCH_CUDA_ARCH_LIST", ""), gpu, capability)


def _outside_image(image: Image, gpu: Gpu, capability: str) -> Iterator[Finding]:
    if image.gpus and not any(_runs(numbers(capability), numbers(built)) for built in image.gpus):
        yield Finding(
            "architecture",
            "warning",
            f"{gpu.name} has compute capability {capability}, and this image is for {', '.join(image.gpus)}: "
            'kernels may be missing ("no kernel image is available")',
            "take the image for this GPU: `imagegen list` shows what each is for",
        )


def _outside_arch_list(wanted: str, gpu: Gpu, capability: str) -> Iterator[Finding]:
    words = wanted.replace(";", " ").split()
    if not words or not all(_code(word) for word in words):  # none, or names such as "Hopper"
        return
    if not any(_covers(word, numbers(capability)) for word in words):
        yield Finding(
            "architecture",
            "warning",
            f"TORCH_CUDA_ARCH_LIST={wanted} has no code for {gpu.name} ({capability}): what is compiled at run time "
            "will not run on it",
            f'set TORCH_CUDA_ARCH_LIST="{capability}", or leave it as the image has it',
        )


def _code(word: str) -> tuple[int, ...]:
    return numbers(word.partition("+")[0].rstrip("af"))


def _covers(word: str, gpu: tuple[int, ...]) -> bool:
    """Return whether an entry of the list, "9.0a" or "8.0+PTX", has code for the GPU; suffix a: for it alone."""
    code = _code(word)
    if word.partition("+")[0].endswith("a"):
        return code == gpu
    return _runs(gpu, code) or (word.endswith("+PTX") and code <= gpu)


def _runs(gpu: tuple[int, ...], code: tuple[int, ...]) -> bool:
    return code[:1] == gpu[:1] and code <= gpu


# loader
#
# A driver that is mounted and that the loader does not find; a libcuda on the loader's path that is not the driver's.
#
# Sources: CUDA Compatibility, "Forward Compatibility" (data-center GPUs only; cuda-compat must be newer than the
# driver); measured on an H200 with driver 580.159.04, 2026-11-21: cuInit gives 803 with cuda-compat 580.95.05 on
# LD_LIBRARY_PATH, and 34 with the toolkit's stub.


def loader_applies(image: Image, machine: Machine) -> bool:
    return image.cuda is not None or not image.cell


def check_loader(image: Image, machine: Machine) -> Iterator[Finding]:
    if machine.unreached:
        yield _unreached(machine.unreached, machine)
    for library in machine.libraries:
        where = f"{library.named_by} leads to {library.path}"
        fix = f"take that directory out of {library.named_by}"
        if library.stub:
            text = f"{where}, a stub for linking: every CUDA call fails with error 34"
            yield Finding("loader", "error", text, fix)
        elif library.version and machine.driver and older(library.version, machine.driver):
            text = (
                f"{where} of driver {library.version}, and the host has {machine.driver}: CUDA fails with error 803 "
                '("unsupported display driver / cuda driver combination")'
            )
            yield Finding("loader", "error", text, f"{fix}: cuda-compat is for drivers that are older than it")
        elif library.version != machine.driver and _is_compat(library):
            text = (
                f"{where}{f' of driver {library.version}' if library.version else ''}: forward compatibility works on "
                "data-center GPUs alone, and only where the host's driver is older (else error 803)"
            )
            yield Finding("loader", "warning", text, f"{fix} unless you know that this host needs it")


def _is_compat(library: CudaLibrary) -> bool:
    if os.path.dirname(library.path) in MOUNTS:
        return False
    return library.version is not None or "compat" in library.path


def _unreached(path: str, machine: Machine) -> Finding:
    searched = machine.environ.get("LD_LIBRARY_PATH", "")
    value = ":".join(filter(None, (os.path.dirname(path), searched)))
    fix = f"set LD_LIBRARY_PATH={value}, and LIBRARY_PATH likewise for kernels that are linked at run time"
    if path.startswith(DRIVER_ROOT):
        fix = (
            "let NVIDIA's container toolkit mount the driver (Kubernetes: runtimeClassName: nvidia, and nvidia.com/gpu "
            "in resources.limits); LD_LIBRARY_PATH does not help, since another system's C library is in that directory"
        )
    return Finding(
        "loader",
        "error" if machine.place == "container" else "warning",
        f"the loader does not find the driver, which is mounted: {path} is in no directory of LD_LIBRARY_PATH "
        f"({searched or 'unset'}) and not in the loader's cache, so every CUDA call fails",
        fix,
    )


# cuda
#
# The CUDA driver library's own result codes. Source: CUDA Driver API, CUresult.

_CUDA_FIXES = {
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


def cuda_applies(image: Image, machine: Machine) -> bool:
    return machine.probe is not None and (image.cuda is not None or not image.cell)


def check_cuda(image: Image, machine: Machine) -> Iterator[Finding]:
    probe = machine.probe
    if probe is None or (probe.init == 0 and probe.devices):
        return
    severity = "error" if machine.gpus else "warning"  # without any GPU, another check has said so
    if probe.init is None:
        yield _no_answer(probe, machine, severity)
        return
    what, fix = _CUDA_FIXES.get(probe.init, ("", "look the number up under CUresult in the CUDA Driver API"))
    if probe.init == 0:
        what, fix = "it starts, and shows no GPU", _CUDA_FIXES[100][1]
    yield Finding("cuda", severity, f"cuInit of {probe.library} gives {probe.init}{what and f': {what}'}", fix)


def _no_answer(probe: CudaProbe, machine: Machine, severity: str) -> Finding:
    if probe.died.startswith("SIG"):
        fix = "update the driver; on WSL2 that is Windows' driver, and `wsl --update` its kernel"
        return Finding("cuda", "error", f"a process that asked CUDA for its GPUs was killed by {probe.died}", fix)
    if machine.place == "container":
        fix = "`docker run --gpus all`, with compute in NVIDIA_DRIVER_CAPABILITIES"
    else:
        fix = "install the NVIDIA driver with its CUDA libraries"
    return Finding("cuda", severity, f"CUDA cannot be asked: {probe.died}", fix)


# memory
#
# GPU memory in use by other processes: a rollout engine takes its share of the total, not of the free memory.
#
# Source: vLLM, "Engine arguments" (gpu_memory_utilization, 0.9 by default until 0.2x, 0.92 since): it refuses to start
# with "Free memory on device ... is less than desired GPU memory utilization".

_ENGINE_SHARE = 0.9  # of a GPU's memory that an engine takes by default


def memory_applies(image: Image, machine: Machine) -> bool:
    wanted = image.has("vllm", "sglang") or not image.packages
    return wanted and any(gpu.total and gpu.free is not None for gpu in machine.gpus)


def check_memory(image: Image, machine: Machine) -> Iterator[Finding]:
    for index, gpu in enumerate(machine.gpus):
        if gpu.total and gpu.free is not None and gpu.free < _ENGINE_SHARE * gpu.total:
            used = f"{(gpu.total - gpu.free) / 1024:.1f} of {gpu.total / 1024:.1f} GiB of GPU {index}"
            share = int(100 * gpu.free / gpu.total) / 100
            yield Finding(
                "memory",
                "note",
                f"{used} ({gpu.name}) are in use: an engine that wants {_ENGINE_SHARE} of it will not start",
                f"end what uses it (`nvidia-smi`), or give the engine less: gpu_memory_utilization (SGLang: "
                f"mem_fraction_static) below {share}; a trainer on the same GPU needs its part as well",
            )


# allocator
#
# torch's expandable segments, which are incompatible with memory pools.
#
# Source: vLLM, vllm/device_allocator/cumem.py: "Expandable segments are not compatible with memory pool" (pytorch issue
# 147851); sleep mode, which trainers use to free the GPU, needs that pool.

_ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def allocator_applies(image: Image, machine: Machine) -> bool:
    return image.has("vllm", "sglang")


def check_allocator(image: Image, machine: Machine) -> Iterator[Finding]:
    for name in _ALLOCATOR_VARIABLES:
        value = machine.environ.get(name, "")
        if "expandable_segments:true" in value.replace(" ", "").lower():
            yield Finding(
                "allocator",
                "warning",
                f"{name}={value} does not go with the engine's memory pool: sleeping and waking up fail "
                'with "Expandable segments are not compatible with memory pool"',
                f"unset {name} in processes that hold the engine (trainers of their own may keep it)",
            )
