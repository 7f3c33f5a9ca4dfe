"""A libcuda on the loader's path that is not the driver's.

Sources: CUDA Compatibility, "Forward Compatibility" (data-center GPUs only; cuda-compat must be newer than the driver);
measured on an H200 with driver 580.159.04, 2026-11-21: cuInit gives 803 with cuda-compat 580.95.05 on LD_LIBRARY_PATH,
and 34 with the toolkit's stub.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import CudaLibrary, Finding, Image, Machine, older


def applies(image: Image, machine: Machine) -> bool:
    return image.cuda is not None or not image.cell


def check(image: Image, machine: Machine) -> Iterator[Finding]:
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
    return library.version is not None or "compat" in library.path
