"""The facts that checks read, and findings. Frozen: a check is a pure function of the facts.

Named tuples, not data classes, whose import takes a quarter of the time that the startup banner has (measured).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

SEVERITIES = ("error", "warning", "note")  # worst first; an error: what the image is for does not work like this


_NONE: Mapping[str, Any] = MappingProxyType({})


class Finding(NamedTuple):
    """A problem or remark. `text` and `fix` are sentences without a full stop."""

    check: str
    severity: str  # one of SEVERITIES
    text: str
    fix: str


class Image(NamedTuple):
    """The image's description (image.json). All fields are empty on a machine without an image."""

    cell: str = ""
    cuda: str | None = None  # version of CUDA that the stack is built for, "13.0"; None: it runs on the CPU
    gpus: tuple[str, ...] = ()  # compute capabilities it is for: "9.0", "12.0"
    driver: str | None = None  # the oldest NVIDIA driver it works with: "580.65.06"
    packages: Mapping[str, str] = _NONE  # distribution -> version

    def has(self, *names: str) -> bool:
        """Return whether the image contains one of these distributions."""
        return any(name in self.packages for name in names)


class Gpu(NamedTuple):
    """One GPU as nvidia-smi shows it. Memory is in MiB; None where the driver does not say."""

    name: str
    capability: str | None  # "9.0"
    total: int | None = None
    free: int | None = None


class CudaLibrary(NamedTuple):
    """A libcuda.so.1 that the loader finds before the driver's own, or may find."""

    path: str
    version: str | None  # of the driver it was released with, by its file's name: "580.95.05"
    named_by: str  # what makes the loader look there: "LD_LIBRARY_PATH", or a file of /etc/ld.so.conf.d
    stub: bool = False


class CudaProbe(NamedTuple):
    """The result of calling the CUDA driver library in a separate process."""

    library: str | None  # the file that was loaded
    init: int | None  # cuInit's result; None: the process gave none
    devices: int = 0
    died: str = ""  # how the process ended where it gave no answer: "SIGABRT", "no libcuda.so.1"


class Machine(NamedTuple):
    """A container or a host, as far as it is visible from inside and without root."""

    environ: Mapping[str, str]
    place: str = "container"  # or "host"
    system: str = "Linux"
    kernel: str = ""  # release
    uid: int = 0
    user: str | None = "root"  # the user's name in the password database; None: it has no entry there
    driver: str | None = None  # version of the NVIDIA driver
    devices: tuple[str, ...] = ()  # names in /dev: nvidia0, nvidiactl, dxg, infiniband/uverbs0
    gpus: tuple[Gpu, ...] = ()
    smi: str = ""  # why nvidia-smi shows none; "" where it does
    shm: int | None = None  # bytes of /dev/shm; None: there is none
    writable: Mapping[str, bool] = _NONE  # "HOME", "TMPDIR" -> whether it is there and ours
    libraries: tuple[CudaLibrary, ...] = ()
    unreached: str | None = None  # the driver's libcuda.so.1, if it is mounted and the loader finds none
    memlock: int | None = None  # bytes that may be locked in memory; None: any number
    probe: CudaProbe | None = None  # on request only: loading the driver takes a while, and may crash

    @property
    def wsl(self) -> bool:
        """Whether the kernel is WSL's ("5.15.153.1-microsoft-standard-WSL2")."""
        return "microsoft" in self.kernel.lower()


# Where a driver is mounted. Sources: GoogleCloudPlatform's container-engine-accelerators, cmd/nvidia_gpu
# (-container-path); NVIDIA's "CUDA on WSL User Guide"; NVIDIA's GPU operator (driverInstallDir). Read 2026-11-28.
MOUNTS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")
DRIVER_ROOT = "/run/nvidia/driver"  # of the GPU operator's driver container, a whole system, as on OpenShift

IMAGE_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "image.json")


def read_image(path: str = IMAGE_FILE) -> Image:
    with open(path, encoding="utf-8") as file:
        return image_from_json(json.load(file))


def image_from_json(fields: Any) -> Image:
    """Inverse of `image_to_json`; ignores unknown fields."""
    return Image(
        cell=fields["cell"],
        cuda=fields["cuda"],
        gpus=tuple(fields["gpus"]),
        driver=fields["driver"],
        packages=fields["packages"],
    )


def image_to_json(image: Image) -> dict[str, Any]:
    return {
        "cell": image.cell,
        "cuda": image.cuda,
        "gpus": list(image.gpus),
        "driver": image.driver,
        "packages": dict(sorted(image.packages.items())),
    }


def numbers(version: str) -> tuple[int, ...]:
    """Return a comparable version, (580, 65, 6) for 580.65.06; () if a part is not a number."""
    parts = version.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def older(version: str, than: str) -> bool:
    """Return whether driver `version` precedes `than`; False if either cannot be parsed."""
    one, two = numbers(version), numbers(than)
    return bool(one and two) and one < two
