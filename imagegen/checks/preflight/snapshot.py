"""Collect the facts: the only module that reads files and starts programs. Facts that cannot be read are left out.

Sources: proc(5), the layout of /proc/driver/nvidia (NVIDIA driver README, "The /proc Interface"), and `nvidia-smi
--help-query-gpu`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping

from .model import DRIVER_ROOT, MOUNTS, CudaLibrary, Gpu, Machine
from .program import Program, answer, start

_FIELDS = "driver_version,compute_cap,memory.total,memory.free,name"  # the name last: it may hold anything
_PATIENCE = 3  # seconds for nvidia-smi, which waits where the driver does
_SMI = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")
_LIBCUDA = "libcuda.so.1"
_VARIABLE = "LD_LIBRARY_PATH"
_DEVICES = ("nvidia", "dxg")


def begin(environ: Mapping[str, str], root: str = "/") -> Program | None:
    """Start nvidia-smi if there is a driver; `gather` reads its output."""
    if not (_proc_driver(root) or any(_devices(root))):
        return None
    for name in _SMI:
        try:
            return start([name, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"], environ)
        except OSError:
            continue
    return None


def gather(environ: Mapping[str, str], begun: Program | None, *, place: str = "container", root: str = "/") -> Machine:
    """Return the machine's current state. `root` is the root of its file system, for tests; files may be missing."""
    driver = _proc_driver(root)
    gpus: tuple[Gpu, ...] = ()
    smi = "there is no nvidia-smi"
    if begun:
        said = answer(begun, _PATIENCE)
        shown, gpus, smi = parse_smi(*said) if said else (None, (), f"nvidia-smi gave no answer within {_PATIENCE} s")
        driver = shown or driver
    return Machine(
        environ=dict(environ),
        place=place,
        system=_system(),
        kernel=_read(root, "proc/sys/kernel/osrelease").strip(),
        uid=os.getuid() if hasattr(os, "getuid") else 0,
        user=_user(),
        driver=driver,
        devices=tuple(_devices(root)),
        gpus=gpus,
        smi=smi,
        shm=_shm(root),
        writable={name: _writable(_directory(name, environ)) for name in ("HOME", "TMPDIR")},
        libraries=tuple(libraries(environ, root)),
        unreached=unreached(environ, root),
        memlock=_memlock(),
    )


def parse_version(text: str) -> str | None:
    """Return the driver's version from /proc/driver/nvidia/version, in any of the formats of its modules."""
    for line in text.splitlines():
        if line.startswith("NVRM version:"):
            for word in line.split():
                if "." in word and word.replace(".", "").isdecimal() and word[0] != "." != word[-1]:
                    return word
    return None


def parse_smi(code: int, said: str) -> tuple[str | None, tuple[Gpu, ...], str]:
    """Return (driver, GPUs, reason if there are none) from nvidia-smi's output."""
    driver, gpus = None, []
    for line in said.splitlines() if code == 0 else ():
        cells = [cell.strip() for cell in line.split(",", 4)]
        if len(cells) == 5 and cells[0].replace(".", "").isdecimal():
            driver = cells[0]
            capability = cells[1] if cells[1].replace(".", "", 1).isdecimal() else None
            gpus.append(Gpu(cells[4], capability, _number(cells[2]), _number(cells[3])))
    if gpus:
        return driver, tuple(gpus), ""
    return None, (), " ".join((said.strip() or "it shows no GPU").splitlines()[0].split())


def libraries(environ: Mapping[str, str], root: str = "/") -> Iterator[CudaLibrary]:
    """Yield every libcuda.so.1 in a directory that a variable or configuration file gives to the loader (ld.so(8))."""
    for directory in filter(None, environ.get(_VARIABLE, "").replace(";", ":").split(":")):
        yield from _library(directory, _VARIABLE, root)
    folder = os.path.join(root, "etc/ld.so.conf.d")
    for name in sorted(_listed(folder)):
        if name.endswith(".conf"):
            for line in _read(root, f"etc/ld.so.conf.d/{name}").splitlines():
                if line.strip().startswith("/"):
                    yield from _library(line.strip(), f"/etc/ld.so.conf.d/{name}", root)


def unreached(environ: Mapping[str, str], root: str = "/") -> str | None:
    """Return the libcuda.so.1 of a mounted driver if the loader finds no libcuda.so.1 (ld.so(8)), else None."""
    directories = [*MOUNTS, *(f"{DRIVER_ROOT}{directory}" for directory in _built_in())]
    mounted = next(_existing(directories, root), None)
    if mounted is None or any(library.named_by == _VARIABLE for library in libraries(environ, root)):
        return None
    return None if any(_existing([*_cached(root), *_built_in()], root)) else mounted


def _existing(directories: Iterable[str], root: str) -> Iterator[str]:
    for directory in directories:
        path = f"{directory}/{_LIBCUDA}"
        if os.path.exists(os.path.join(root, path[1:])):
            yield path


def _built_in() -> list[str]:
    """Return the directories that the loader searches after its cache, of Debian and of others."""
    machine = f"/{os.uname().machine}-linux-gnu"
    return [f"{below}{name}" for below in ("/lib", "/usr/lib") for name in (machine, "", "64")]


def _cached(root: str) -> list[str]:
    """Return the directories of libcuda.so.1 in the loader's cache, whose strings end with a zero byte."""
    try:
        with open(os.path.join(root, "etc/ld.so.cache"), "rb") as file:
            strings = file.read(1 << 24).split(b"\0")
    except OSError:
        return []
    return [os.path.dirname(os.fsdecode(path)) for path in strings if path.endswith(f"/{_LIBCUDA}".encode())]


def _library(directory: str, named_by: str, root: str) -> Iterator[CudaLibrary]:
    path = os.path.join(directory, _LIBCUDA)
    inside = os.path.join(root, path.lstrip("/"))
    if os.path.exists(inside):
        real = os.path.realpath(inside)
        version = os.path.basename(real).partition("libcuda.so.")[2]
        known = version if "." in version and version.replace(".", "").isdecimal() else None
        yield CudaLibrary(path, known, named_by, stub="/stubs/" in real or "/stubs/" in path)


def _proc_driver(root: str) -> str | None:
    return parse_version(_read(root, "proc/driver/nvidia/version"))


def _devices(root: str) -> Iterator[str]:
    for name in sorted(_listed(os.path.join(root, "dev"))):
        if name.startswith(_DEVICES):
            yield name
    for name in sorted(_listed(os.path.join(root, "dev/infiniband"))):
        yield f"infiniband/{name}"


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _read(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _system() -> str:
    """Return platform.system()'s value, without its cost."""
    return {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)


def _user() -> str | None:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return None


def _directory(name: str, environ: Mapping[str, str]) -> str:
    return environ.get(name) or {"HOME": os.path.expanduser("~"), "TMPDIR": "/tmp"}[name]  # as tempfile has it


def _writable(directory: str) -> bool:
    return os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)


def _shm(root: str) -> int | None:
    try:
        found = os.statvfs(os.path.join(root, "dev/shm"))
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _memlock() -> int | None:
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    except (ImportError, OSError):
        return None
    return None if limit == resource.RLIM_INFINITY else limit
