"""The GPUs that are here against those that the image is for, and against what is compiled at run time.

Source: CUDA C++ Programming Guide, "Application Compatibility": machine code runs on its own major version and an equal
or later minor one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Gpu, Image, Machine, numbers


def applies(image: Image, machine: Machine) -> bool:
    chosen = image.gpus or machine.environ.get("TORCH_CUDA_ARCH_LIST")
    return bool(chosen) and any(gpu.capability for gpu in machine.gpus)


def check(image: Image, machine: Machine) -> Iterator[Finding]:
    known = {gpu.capability: gpu for gpu in machine.gpus if gpu.capability}
    for capability, gpu in sorted(known.items()):
        other = list(_image(image, gpu, capability))
        yield from other or _list(machine.environ.get("TORCH_CUDA_ARCH_LIST", ""), gpu, capability)


def _image(image: Image, gpu: Gpu, capability: str) -> Iterator[Finding]:
    if image.gpus and not any(_runs(numbers(capability), numbers(built)) for built in image.gpus):
        yield Finding(
            "architecture",
            "warning",
            f"{gpu.name} has compute capability {capability}, and this image is for {', '.join(image.gpus)}: "
            'kernels may be missing ("no kernel image is available")',
            "take the image for this GPU: `imagegen list` shows what each is for",
        )


def _list(wanted: str, gpu: Gpu, capability: str) -> Iterator[Finding]:
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
    """Whether an entry of the list, "9.0a" or "8.0+PTX", gives code for the GPU. The suffix a means this GPU alone."""
    code = _code(word)
    if word.partition("+")[0].endswith("a"):
        return code == gpu
    return _runs(gpu, code) or (word.endswith("+PTX") and code <= gpu)


def _runs(gpu: tuple[int, ...], code: tuple[int, ...]) -> bool:
    return code[:1] == gpu[:1] and code <= gpu
