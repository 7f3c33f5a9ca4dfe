"""What the audit says of GPU code beside what the driver does with it, for a spread of small kernels.

    python bench/gpu_truth.py FOLDER

Compiles what is missing in FOLDER (nvcc 13.0 and a C++ compiler; a minute on 16 cores), reads each file as the audit
does, and has the driver load it and run its kernel: once as it is, and once forbidden to compile PTX, which tells
machine code from PTX. Prints a Markdown table of every file, and ends with 1 where the reader does not see what was
compiled, or the driver does not do what was predicted. Without a GPU only the reader is judged. Needs PyYAML besides.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
if importlib.util.find_spec("pydantic") is None:  # a machine with a GPU need not have what matrices are checked with
    for name in ("imagegen.matrix", "imagegen.matrix.model"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["imagegen.matrix.model"].Gpu = object  # type: ignore[attr-defined]

from imagegen.audit.capability import compiled_by, runs
from imagegen.audit.examine import examine
from imagegen.audit.model import CodeGroup

KERNEL = """
extern "C" __global__ void it(int *out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (!out) asm volatile("wgmma.fence.sync.aligned;");  // what only sm_90a has, and only four whole warps may do
#endif
    out[threadIdx.x] = 7 + threadIdx.x;
}
"""
HOST = """
extern "C" int run_NUMBER() {
    int *there = 0, here[32] = {0};
    int code = cudaMalloc(&there, sizeof here);
    if (code) return code;
    it<<<1, 32>>>(there);
    code = cudaGetLastError();
    if (!code) code = cudaMemcpy(here, there, sizeof here, cudaMemcpyDeviceToHost);
    cudaFree(there);
    return code ? code : here[31] == 38 ? 0 : -1;
}
"""
CUBINS = ("75", "80", "86", "87", "89", "90", "90a", "100", "100a", "100f", "103", "103a", "110", "120", "120a", "120f",
          "121", "121a")  # fmt: skip
PTX = ("75", "80", "86", "89", "90", "90a", "100", "100a", "100f", "103", "103f", "110", "120", "120a", "120f", "121")
VERSIONS = {  # of PTX, by what it is for
    "80": ("7.0", "7.4", "7.8", "8.0", "8.4", "8.7", "8.8", "9.1", "9.2", "9.3"),
    "90": ("7.8", "8.0", "8.7", "9.1", "9.2"),
    "90a": ("8.0", "8.7", "9.1"),
}
# Containers with several pieces: "90" is machine code, "ptx80" is PTX, "ptx80@9.2" is PTX of another version.
MIXED = [
    *("80 90", "80 ptx80", "80 ptx90", "80 100", "90a 100a", "90a", "100 ptx90", "100 120", "100f ptx100"),
    *("80 ptx80 90a", "120 ptx120", "86 89 ptx86", "75 80 86 90 100 120", "ptx80", "ptx90a", "ptx100f", "100f 120f"),
    *("ptx80@9.2", "80 ptx80@9.2", "90 ptx90@9.2", "80 ptx80@8.0", "ptx80@9.2 ptx90", "ptx80 ptx90a", "89 120"),
]
PACKED = ("80 90", "80 ptx80", "ptx90", "90a")
MODES = ("default", "size", "speed", "balance", "none")
# Libraries with a container for each kernel: one may run where another does not.
LIBRARIES = [("90", "100"), ("80 ptx80", "90a"), ("100f", "120"), ("ptx80", "90"), ("80", "80 ptx80", "75 ptx75")]


@dataclass(frozen=True)
class Image:
    """A file to make, and what is in each of its containers: ("80 ptx80@9.2", "90")."""

    name: str
    containers: tuple[str, ...]
    mode: str | None = None


def images() -> list[Image]:
    found = [Image(f"{arch}.cubin", (arch,)) for arch in CUBINS]
    found += [Image(f"{arch}.ptx", (f"ptx{arch}",)) for arch in PTX]
    found += [Image(f"{arch}-{each}.ptx", (f"ptx{arch}@{each}",)) for arch, all_ in VERSIONS.items() for each in all_]
    found += [Image(f"{mix.replace(' ', '+')}.fatbin", (mix,)) for mix in MIXED]
    found += [Image(f"{mix.replace(' ', '+')}.{mode}.fatbin", (mix,), mode) for mix in PACKED for mode in MODES]
    for mixes in LIBRARIES:
        found.append(Image(f"lib{'_'.join(mixes).replace(' ', '+')}.so", mixes))
    return found


class Workshop:
    """Compiles into a folder; what is there already stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.source = folder / "kernel.cu"
        self.source.write_text(KERNEL)

    def make(self, image: Image) -> None:
        path = self.folder / image.name
        if path.exists():
            return
        if path.suffix == ".so":
            self._library(image, path)
        elif path.suffix == ".fatbin":
            self._fatbin(image, path)
        else:
            path.write_bytes(self.piece(image.containers[0]).read_bytes())

    def piece(self, spec: str) -> Path:
        """The file of one piece: "90", "ptx80", "ptx80@9.2"."""
        path = self.folder / f"piece-{spec}"
        if not path.exists():
            arch, _, version = spec.removeprefix("ptx").partition("@")
            kind = ["-ptx", f"-arch=compute_{arch}"] if spec.startswith("ptx") else ["-cubin", f"-arch=sm_{arch}"]
            temporary = Path(f"{path}.{os.getpid()}.{id(path)}")
            call("nvcc", *kind, "-o", temporary, self.source)
            if version:
                text = re.sub(r"(?m)^\.version .*$", f".version {version}", temporary.read_text())
                temporary.write_text(text)
            temporary.replace(path)
        return path

    def _fatbin(self, image: Image, path: Path) -> None:
        if image.mode is None:
            rows = []
            for spec in image.containers[0].split():
                kind, arch = ("ptx", spec[3:].partition("@")[0]) if spec.startswith("ptx") else ("elf", spec)
                rows.append(f"--image3=kind={kind},sm={arch},file={self.piece(spec)}")
            call("fatbinary", f"--create={path}", "-64", *rows)
        else:
            modes = [f"--compress-mode={image.mode}"] if image.mode != "default" else []
            call("nvcc", "-fatbin", *modes, *generations(image.containers[0]), "-o", path, self.source)

    def _library(self, image: Image, path: Path) -> None:
        objects = []
        for number, mix in enumerate(image.containers):
            source = Path(f"{path}.{number}.cu")
            source.write_text(KERNEL.replace('extern "C"', "static") + HOST.replace("NUMBER", str(number)))
            objects.append(Path(f"{source}.o"))
            call("nvcc", "-c", "-Xcompiler", "-fPIC", *generations(mix), "-o", objects[-1], source)
        call("nvcc", "-shared", "-nodlink", "-o", path, *objects)  # a link would add an empty container of its own


def generations(mix: str) -> Iterable[str]:
    for spec in mix.split():
        arch, kind = spec.removeprefix("ptx"), "compute" if spec.startswith("ptx") else "sm"
        yield from ("-gencode", f"arch=compute_{arch},code={kind}_{arch}")


def call(*words: str | Path) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")


def expected(image: Image) -> list[set[str]]:
    """What each container was compiled for, as the audit writes targets."""
    found = []
    for mix in image.containers:
        names = set()
        for spec in mix.split():
            arch, _, version = spec.removeprefix("ptx").partition("@")
            names.add(f"compute_{arch} (PTX {version or '9.0'})" if spec.startswith("ptx") else f"sm_{arch}")
        found.append(names)
    return sorted(found, key=sorted)


def seen(code: Iterable[CodeGroup]) -> list[set[str]]:
    return sorted(({str(target) for target in group.targets} for group in code for _ in range(group.count)), key=sorted)


class Driver:
    """The first GPU's, through libcuda.so.1."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self._must("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self._must("cuDeviceGet", ctypes.byref(device), 0)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._must("cuDeviceGetAttribute", ctypes.byref(major), 75, device)  # compute capability, major
        self._must("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
        self.capability = f"{major.value}.{minor.value}"
        self._must("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self._must("cuCtxSetCurrent", self.context)

    def _must(self, function: str, *arguments: object) -> None:
        if code := getattr(self.lib, function)(*arguments):
            sys.exit(f"{function}: error {code}")

    def run(self, data: bytes) -> int:
        """0 where the kernel ran and wrote what it should, else the driver's error code, or -1."""
        module, function, there = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        if code := self.lib.cuModuleLoadData(ctypes.byref(module), data + b"\0"):
            return int(code)
        try:
            if code := self.lib.cuModuleGetFunction(ctypes.byref(function), module, b"it"):
                return int(code)
            self._must("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(128))
            arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(there), ctypes.c_void_p))
            shape = [ctypes.c_uint(each) for each in (1, 1, 1, 32, 1, 1, 0)]
            code = self.lib.cuLaunchKernel(function, *shape, None, arguments, None)
            code = code or self.lib.cuCtxSynchronize()
            here = (ctypes.c_int * 32)()
            code = code or self.lib.cuMemcpyDtoH_v2(here, there, ctypes.c_size_t(128))
            self.lib.cuMemFree_v2(there)
            return int(code) or (0 if list(here) == list(range(7, 39)) else -1)
        finally:
            self.lib.cuModuleUnload(module)


def work(folder: Path) -> None:
    """In a process of its own: for each file, a line with the codes of its containers."""
    driver = Driver()
    print(json.dumps({"capability": driver.capability}), flush=True)
    for image in images():
        path = folder / image.name
        if path.suffix == ".so":
            library = ctypes.CDLL(str(path.resolve()))
            codes = [getattr(library, f"run_{number}")() for number in range(len(image.containers))]
        else:
            codes = [driver.run(path.read_bytes())]
        print(json.dumps({image.name: codes}), flush=True)


def driven(folder: Path, **env: str) -> dict[str, list[int]]:
    """What the driver does; nothing where a file made it die."""
    command = [sys.executable, __file__, "--work", str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "CUDA_CACHE_DISABLE": "1", **env}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"the driver's process ended with {done.returncode}: {done.stderr}", file=sys.stderr)
    found: dict[str, list[int]] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    return found


def driver_version() -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.split()[0]


def main(folder: Path) -> None:
    workshop, wanted = Workshop(folder), images()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(workshop.make, wanted))
    version = driver_version()
    freely = driven(folder) if version else {}
    strictly = driven(folder, CUDA_DISABLE_PTX_JIT="1") if version else {}
    capability = str(freely.get("capability", "9.0"))
    isa = compiled_by(version) if version else None
    print(f"driver {version}, compute capability {capability}, newest PTX {isa}\n")
    print("| file | read | predicted | driver | codes |\n|---|---|---|---|---|")
    right = misread = 0
    for image in wanted:
        data = (folder / image.name).read_bytes()
        file = examine(data, size=len(data))
        read = seen(file.code) == expected(image)
        misread += not read
        predicted = sorted(runs(group.targets, capability, isa) for group in file.code for _ in range(group.count))
        free, strict = freely.get(image.name, []), strictly.get(image.name, [])
        real = sorted(
            "no" if first else "ptx" if second else "sass" for first, second in zip(free, strict, strict=False)
        )
        right += predicted == real
        codes = "" if not any(free) else " ".join(map(str, free))
        marks = ("yes" if read else f"{seen(file.code)} {file.unreadable or ''}", ", ".join(predicted), ", ".join(real))
        wrong = "" if predicted == real or not version else " WRONG"
        print(f"| {image.name} | {' | '.join(marks)}{wrong} | {codes} |")
    print(f"\n{len(wanted) - misread} of {len(wanted)} files read as compiled")
    if version:
        print(f"{right} of {len(wanted)} predicted as the driver did")
    sys.exit(bool(misread or (version and right < len(wanted))))


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
