"""Compare the audit's predictions about GPU code with a driver's behaviour, for a spread of small kernels.

    python bench/gpu_truth.py compile FOLDER [TOOLKITS]          # nvcc 13.0 and a C++ compiler; two minutes on 2 cores
    python3 bench/gpu_truth.py observe FOLDER > observed.json    # a machine with a GPU: the standard library alone
    python bench/gpu_truth.py compare observed.json

`compile` writes the files that FOLDER lacks and compares what the audit reads in them with what was compiled. TOOLKITS
holds a directory for each other release of CUDA, named by it ("12.4", "13.3"), with NVIDIA's wheels unpacked in it
(nvidia-cuda-nvcc, from 13.1 on nvidia-nvvm, -cuda-crt and -cuda-runtime too). FOLDER/libcuda may hold other drivers'
libcuda, as VERSION.xz. `observe` has the driver load each file and run its kernel, in three settings of its
compiler (MODES), and starts each other libcuda that it finds before the driver's own. `compare` prints Markdown.
`compile` and `compare` end with 1 where the audit is wrong.
"""

from __future__ import annotations

import ctypes
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))
if TYPE_CHECKING:  # `observe` runs where imagegen's requirements are not installed
    from imagegen.audit.model import CodeGroup, CodeTarget

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
VERSIONS = {  # of PTX, by architecture: from the first that has the architecture to two that CUDA 13.5 does not have
    "75": "6.3 6.4 6.5 7.0 7.1 7.2 7.3 7.4 7.5 7.6 7.7 7.8 8.0 8.4 8.8 9.1 9.2",
    "80": "7.0 7.1 7.2 7.3 7.4 7.5 7.6 7.7 7.8 8.0 8.1 8.2 8.3 8.4 8.5 8.6 8.7 8.8 9.1 9.2 9.3 9.4 9.5 9.6 10.0",
    "90": "7.8 8.0 8.1 8.2 8.3 8.4 8.5 8.6 8.7 8.8 9.1 9.2 9.3 9.4 9.5",
    "90a": "8.0 8.4 8.7 8.8 9.1 9.2",
    "100": "8.6 8.8 9.1",
}
# Containers with several pieces: "90" is machine code, "ptx80" is PTX, "ptx80@9.2" is PTX of another version.
MIXED = [
    *("80 90", "80 ptx80", "80 ptx90", "80 100", "90a 100a", "90a", "100 ptx90", "100 120", "100f ptx100"),
    *("80 ptx80 90a", "120 ptx120", "86 89 ptx86", "75 80 86 90 100 120", "ptx80", "ptx90a", "ptx100f", "100f 120f"),
    *("ptx80@9.2", "80 ptx80@9.2", "90 ptx90@9.2", "80 ptx80@8.0", "ptx80@9.2 ptx90", "ptx80 ptx90a", "89 120"),
    *("90", "90 ptx90", "90 ptx80", "90a ptx90a", "90 ptx100", "90 ptx80@9.2", "90a ptx90", "120a ptx120a", "120a"),
]
PACKED = ("80 90", "80 ptx80", "ptx90", "90a")
COMPRESSION = ("default", "size", "speed", "balance", "none")
# Libraries with a container for each kernel: one may run where another does not.
LIBRARIES = [("90", "100"), ("80 ptx80", "90a"), ("100f", "120"), ("ptx80", "90"), ("80", "80 ptx80", "75 ptx75"),
             ("90 ptx90", "90")]  # fmt: skip
ASSEMBLERS = ("12.0", "12.4", "12.8", "12.9")  # NVIDIA's wheels of CUDA 12 hold ptxas and no complete nvcc
COMPILERS = {"13.1": "9.1", "13.2": "9.2", "13.3": "9.3", "13.4": "9.4", "13.5": "9.5"}  # release -> PTX ISA
# Settings of the driver's compiler. CUDA C++ Programming Guide, "CUDA Environment Variables".
MODES = {"default": {}, "no JIT": {"CUDA_DISABLE_PTX_JIT": "1"}, "forced JIT": {"CUDA_FORCE_PTX_JIT": "1"}}
CRASH = -2  # in place of an error code: the process died


@dataclass(frozen=True)
class Sample:
    """A file to make, and the pieces in each of its containers: ("80 ptx80@9.2", "90")."""

    name: str
    containers: tuple[str, ...]
    mode: str | None = None  # of compression
    toolkit: str | None = None  # another release of CUDA that makes it


def samples() -> list[Sample]:
    found = [Sample(f"{arch}.cubin", (arch,)) for arch in CUBINS]
    found += [Sample(f"{arch}.ptx", (f"ptx{arch}",)) for arch in PTX]
    for arch, versions in VERSIONS.items():
        found += [Sample(f"{arch}-{version}.ptx", (f"ptx{arch}@{version}",)) for version in versions.split()]
    found += [Sample(f"{mix.replace(' ', '+')}.fatbin", (mix,)) for mix in MIXED]
    found += [Sample(f"{mix.replace(' ', '+')}.{mode}.fatbin", (mix,), mode) for mix in PACKED for mode in COMPRESSION]
    found += [Sample(f"lib{'_'.join(mixes).replace(' ', '+')}.so", mixes) for mixes in LIBRARIES]
    return found + list(foreign_samples())


def foreign_samples() -> Iterator[Sample]:
    """Yield the files that other releases of CUDA make."""
    for release in (*ASSEMBLERS, *COMPILERS):
        for arch in ("80", "90", "90a") if release in ASSEMBLERS else ("80", "90", "90a", "100f", "120a"):
            yield Sample(f"cuda{release}-{arch}.cubin", (arch,), toolkit=release)
    for release, isa in COMPILERS.items():
        yield Sample(f"cuda{release}-90.ptx", (f"ptx90@{isa}",), toolkit=release)
        for arch in ("80", "90"):
            yield Sample(f"cuda{release}-{arch}+ptx{arch}.fatbin", (f"{arch} ptx{arch}@{isa}",), toolkit=release)


# compile -------------------------------------------------------------------------------------------------------------


class Workshop:
    """Compiles samples into a folder; files that exist stay."""

    def __init__(self, folder: Path, toolkits: Path | None) -> None:
        self.folder, self.toolkits = folder, toolkits
        self.pieces = folder / "pieces"
        self.pieces.mkdir(parents=True, exist_ok=True)
        self.source = self.pieces / "kernel.cu"
        self.source.write_text(KERNEL)

    def make(self, sample: Sample) -> None:
        path = self.folder / sample.name
        if path.exists():
            return
        if sample.toolkit:
            if self.toolkits:
                self._foreign(sample, path)
        elif path.suffix == ".so":
            self._library(sample, path)
        elif path.suffix == ".fatbin":
            self._fatbin(sample, path)
        else:
            path.write_bytes(self.piece(sample.containers[0]).read_bytes())

    def piece(self, spec: str) -> Path:
        """Return the file of one piece: "90", "ptx80", "ptx80@9.2"."""
        path = self.pieces / spec
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

    def _foreign(self, sample: Sample, path: Path) -> None:
        """Compile with another release's nvcc, or assemble old PTX with its ptxas."""
        assert self.toolkits
        mix = sample.containers[0]
        if sample.toolkit in ASSEMBLERS:
            ptxas = self.toolkits / sample.toolkit / "nvidia/cuda_nvcc/bin/ptxas"
            call(ptxas, f"-arch=sm_{mix}", "-o", path, self.piece(f"ptx{mix}@{'8.0' if mix == '90a' else '7.8'}"))
            return
        nvcc = self.toolkits / str(sample.toolkit) / "nvidia/cu13/bin/nvcc"
        match path.suffix:
            case ".cubin":
                call(nvcc, "-cubin", f"-arch=sm_{mix}", "-o", path, self.source)
            case ".ptx":
                call(
                    nvcc, "-ptx", f"-arch=compute_{mix.removeprefix('ptx').partition('@')[0]}", "-o", path, self.source
                )
            case _:
                call(nvcc, "-fatbin", *generations(mix), "-o", path, self.source)

    def _fatbin(self, sample: Sample, path: Path) -> None:
        if sample.mode is None:
            rows = []
            for spec in sample.containers[0].split():
                kind, arch = ("ptx", spec[3:].partition("@")[0]) if spec.startswith("ptx") else ("elf", spec)
                rows.append(f"--image3=kind={kind},sm={arch},file={self.piece(spec)}")
            call("fatbinary", f"--create={path}", "-64", *rows)
        else:
            modes = [f"--compress-mode={sample.mode}"] if sample.mode != "default" else []
            call("nvcc", "-fatbin", *modes, *generations(sample.containers[0]), "-o", path, self.source)

    def _library(self, sample: Sample, path: Path) -> None:
        objects = []
        for number, mix in enumerate(sample.containers):
            source = self.pieces / f"{path.name}.{number}.cu"
            source.write_text(KERNEL.replace('extern "C"', "static") + HOST.replace("NUMBER", str(number)))
            objects.append(Path(f"{source}.o"))
            call("nvcc", "-c", "-Xcompiler", "-fPIC", *generations(mix), "-o", objects[-1], source)
        call("nvcc", "-shared", "-nodlink", "-o", path, *objects)  # a link would add an empty container of its own


def generations(mix: str) -> Iterator[str]:
    for spec in mix.split():
        arch, kind = spec.removeprefix("ptx").partition("@")[0], "compute" if spec.startswith("ptx") else "sm"
        yield from ("-gencode", f"arch=compute_{arch},code={kind}_{arch}")


def call(*words: str | Path) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")


def compile_samples(folder: Path, toolkits: Path | None) -> bool:
    """Write what `folder` lacks and read all of it; return whether the audit reads what was compiled."""
    from imagegen.audit.examine import examine

    workshop, rows = Workshop(folder, toolkits), samples()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(workshop.make, rows))
    rows = [sample for sample in rows if (folder / sample.name).exists()]
    misread = 0
    for sample in rows:
        data = (folder / sample.name).read_bytes()
        file = examine(data, size=len(data))
        expected = sorted(({str(target) for target in targets(mix)} for mix in sample.containers), key=sorted)
        if (seen := read(file.code)) != expected:
            misread += 1
            print(f"{sample.name}: read as {seen}, not {expected}; {file.unreadable or ''}")
    print(f"{len(rows) - misread} of {len(rows)} files read as compiled")
    return not misread


def read(code: Iterable[CodeGroup]) -> list[set[str]]:
    return sorted(({str(target) for target in group.targets} for group in code for _ in range(group.count)), key=sorted)


def targets(mix: str) -> tuple[CodeTarget, ...]:
    """Return a container's targets as the audit writes them: "90a" is sm_90a, "ptx80@9.2" is compute_80 of PTX 9.2."""
    from imagegen.audit.model import CodeTarget

    found = []
    for spec in mix.split():
        arch, _, version = spec.removeprefix("ptx").partition("@")
        number, variant = int(arch.rstrip("af")), arch.lstrip("0123456789")
        isa = tuple(map(int, (version or "9.0").split("."))) if spec.startswith("ptx") else None
        found.append(CodeTarget("ptx" if isa else "sass", number, variant, isa))  # type: ignore[arg-type]
    return tuple(found)


# observe -------------------------------------------------------------------------------------------------------------


class Driver:
    """The driver of the first GPU, through libcuda.so.1."""

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
        """Return 0 where the kernel ran and wrote its numbers, else the driver's error code, or -1."""
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


def work(folder: Path, names: list[str]) -> None:
    """Print a JSON line for each file: its name and the codes of its containers."""
    driver = Driver()
    print(json.dumps(["capability", driver.capability]), flush=True)
    for sample in samples():
        if sample.name not in names:
            continue
        path = folder / sample.name
        if path.suffix == ".so":
            library = ctypes.CDLL(str(path.resolve()))
            codes = [getattr(library, f"run_{number}")() for number in range(len(sample.containers))]
        else:
            codes = [driver.run(path.read_bytes())]
        print(json.dumps([sample.name, codes]), flush=True)


def observe_mode(folder: Path, names: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Return the codes of each file, run in processes of their own; a file that ends its process has CRASH."""
    found: dict[str, Any] = {}
    while left := [name for name in names if name not in found]:
        command = [sys.executable, __file__, "--work", str(folder), *left]
        env = {**os.environ, "CUDA_CACHE_DISABLE": "1", **env}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        found |= dict(map(json.loads, done.stdout.splitlines()))
        if done.returncode:
            print(f"process ended with {done.returncode}: {done.stderr}", file=sys.stderr)
            if "capability" not in found:
                sys.exit("the driver does not start")
            found[next(name for name in names if name not in found)] = [CRASH]
    return found


def observe_libcuda(folder: Path) -> Iterator[dict[str, Any]]:
    """Start each other libcuda in place of the driver's own: those of compatibility packages, and of FOLDER/libcuda."""
    code = (
        "import ctypes; lib = ctypes.CDLL('libcuda.so.1'); version = ctypes.c_int(); code = lib.cuInit(0); "
        "lib.cuDriverGetVersion(ctypes.byref(version)); print(code, version.value)"
    )
    with tempfile.TemporaryDirectory() as temporary:
        places = {str(path.resolve()): path.parent for path in Path("/usr/local").glob("cuda*/compat/libcuda.so.1")}
        for packed in sorted(folder.glob("libcuda/*.xz")):
            place = Path(temporary) / packed.stem
            place.mkdir()
            (place / "libcuda.so.1").write_bytes(lzma.decompress(packed.read_bytes()))
            places[f"libcuda.so.{packed.stem}"] = place
        for name, directory in {"the driver's own": None, **places}.items():
            path = f"{directory}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
            env = {**os.environ, "LD_LIBRARY_PATH": path} if directory else None
            done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
            words = done.stdout.split()
            numbers = [int(word) for word in words] if len(words) == 2 else [None, None]
            yield {"library": Path(name).name, "cuInit": numbers[0], "version": numbers[1], "exit": done.returncode}


def observe(folder: Path) -> dict[str, Any]:
    """Return the behaviour of this machine's driver: codes by file for each mode, and of other libcuda."""
    names = [sample.name for sample in samples() if (folder / sample.name).exists()]
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    gpu, driver = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    result: dict[str, Any] = {"gpu": gpu, "driver": driver, "codes": {}, "seconds": {}}
    for mode, env in MODES.items():
        start = time.monotonic()
        found = observe_mode(folder, names, env)
        result["capability"] = found.pop("capability")
        result["codes"][mode] = found
        result["seconds"][mode] = round(time.monotonic() - start, 1)
    result["libcuda"] = list(observe_libcuda(folder))
    return result


# compare -------------------------------------------------------------------------------------------------------------


def predict(mix: str, mode: str, capability: str, isa: tuple[int, int] | None, *, bare: bool = False) -> str:
    """Return "sass", "ptx" or "no": the audit's rule, of the code that the mode leaves to the driver.

    CUDA_FORCE_PTX_JIT ignores the machine code in fat binaries; a `bare` cubin runs all the same (driver 580.159.04).
    """
    from imagegen.audit.capability import runs

    left = {"no JIT": ("sass",), "forced JIT": ("sass",) if bare else ("ptx",)}.get(mode, ("sass", "ptx"))
    return runs([target for target in targets(mix) if target.kind in left], capability, isa)


def compare(observed: dict[str, Any]) -> bool:
    """Print the predictions beside the codes; return whether they agree in every mode."""
    from imagegen.audit.capability import compiled_by

    capability, isa = observed["capability"], compiled_by(observed["driver"])
    print(f"{observed['gpu']}, driver {observed['driver']}, compute capability {capability}, newest PTX {isa}\n")
    print(f"| file | {' | '.join(f'{mode}: predicted | codes' for mode in MODES)} |")
    print("|---" * (1 + 2 * len(MODES)) + "|")
    wrong: Counter[str] = Counter()
    meanings: dict[str, Counter[int]] = {mode: Counter() for mode in MODES}
    by_name = {sample.name: sample for sample in samples()}
    rows = [by_name[name] for name in observed["codes"]["default"]]
    for sample in rows:
        cells = []
        for mode in MODES:
            bare = sample.name.endswith(".cubin")
            predicted = [predict(mix, mode, capability, isa, bare=bare) for mix in sample.containers]
            codes = observed["codes"][mode][sample.name]
            agree = len(codes) == len(predicted) and all(
                (code == 0) == (verdict != "no") for code, verdict in zip(codes, predicted, strict=True)
            )
            wrong[mode] += not agree
            meanings[mode].update(codes)
            cells += [", ".join(predicted), " ".join(map(str, codes)) + ("" if agree else " WRONG")]
        print(f"| {sample.name} | {' | '.join(cells)} |")
    print()
    for mode in MODES:
        counts = ", ".join(f"{code}: {count}" for code, count in sorted(meanings[mode].items()))
        print(f"{mode}: {len(rows) - wrong[mode]} of {len(rows)} as predicted; codes {counts}")
    for row in observed["libcuda"]:
        code = predict_libcuda(row["library"], observed["driver"])
        agree = row["cuInit"] == code
        wrong["libcuda"] += not agree
        print(f"{row['library']}: cuInit gives {row['cuInit']}, predicted {code}{'' if agree else ' WRONG'}")
    return not any(wrong.values())


def predict_libcuda(library: str, driver: str) -> int:
    """Return the code of cuInit with another libcuda ("libcuda.so.550.163.01") before the driver's own, on an H200.

    803 where it is older than the driver, as the preflight check `loader` reports.
    """
    version = library.removeprefix("libcuda.so.")
    if not version[:1].isdigit():
        return 0  # the driver's own
    older = tuple(map(int, version.split("."))) < tuple(map(int, driver.split(".")))
    return 803 if older else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["compile", folder]:
            sys.exit(not compile_samples(Path(folder), None))
        case ["compile", folder, toolkits]:
            sys.exit(not compile_samples(Path(folder), Path(toolkits).resolve()))
        case ["observe", folder]:
            print(json.dumps(observe(Path(folder)), indent=1))
        case ["compare", observed]:
            sys.exit(not compare(json.loads(Path(observed).read_text())))
        case ["--work", folder, *names]:
            work(Path(folder), names)
        case _:
            sys.exit(__doc__)
