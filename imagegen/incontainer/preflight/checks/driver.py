"""The host's driver against the image's floor, and against the driver that its CUDA came with.

Sources: CUDA Compatibility, "Minor Version Compatibility" (what a major version runs on, and that PTX is not covered);
CUDA Toolkit Release Notes, "CUDA Toolkit and Corresponding Driver Versions" (Linux x86_64). Read 2026-11.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Image, Machine, older

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


def applies(image: Image, machine: Machine) -> bool:
    return image.cuda is not None and machine.driver is not None


def check(image: Image, machine: Machine) -> Iterator[Finding]:
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
