"""The facts that checks look at, and what they find. Frozen: a check is a function of these and of nothing else.

Named tuples, not data classes: those take a quarter of the time that a container has for its greeting (measured).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

SEVERITIES = ("error", "warning", "note")  # worst first; an error: what the image is for does not work like this


_NONE: Mapping[str, Any] = MappingProxyType({})


class Finding(NamedTuple):
    """One thing that is wrong or worth knowing. `text` and `fix` are sentences without a full stop."""

    check: str
    severity: str  # one of SEVERITIES
    text: str
    fix: str


class Image(NamedTuple):
    """What an image says of itself (image.json). All of it is empty where a machine is looked at without an image."""

    cell: str = ""
    cuda: str | None = None  # version of CUDA that the stack is built for, "13.0"; None: it runs on the CPU
    gpus: tuple[str, ...] = ()  # compute capabilities it is for: "9.0", "12.0"
    driver: str | None = None  # the oldest NVIDIA driver it works with: "580.65.06"
    packages: Mapping[str, str] = _NONE  # distribution -> version

    def has(self, *names: str) -> bool:
        """Whether one of these distributions is in it."""
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
    """What the CUDA driver library answered to a process of its own."""

    library: str | None  # the file that was loaded
    init: int | None  # cuInit's result; None: the process gave none
    devices: int = 0
    died: str = ""  # how the process ended where it gave no answer: "SIGABRT", "no libcuda.so.1"


class Machine(NamedTuple):
    """A container or a host, as far as it can be seen from inside and without root."""

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
    memlock: int | None = None  # bytes that may be locked in memory; None: any number
    probe: CudaProbe | None = None  # only where somebody asked for it: loading the driver takes a while, and may crash

    @property
    def wsl(self) -> bool:
        """Whether this is Windows' Linux: its kernel says so (WSL2: "5.15.153.1-microsoft-standard-WSL2")."""
        return "microsoft" in self.kernel.lower()


def numbers(version: str) -> tuple[int, ...]:
    """A version to be compared, (580, 65, 6) for 580.65.06; () for what is not numbers and dots."""
    parts = version.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def older(version: str, than: str) -> bool:
    """Whether one driver's version comes before another's; False where one of them cannot be read."""
    one, two = numbers(version), numbers(than)
    return bool(one and two) and one < two
