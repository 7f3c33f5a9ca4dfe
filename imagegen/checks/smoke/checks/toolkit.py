"""The CUDA toolkit compiles: for the image's GPUs, and a Python extension with host and device code, which then loads.

FlashInfer, DeepGEMM, TransformerEngine and torch's extensions all compile at run time, on the user's machine, with what
they find under CUDA_HOME. NVIDIA's wheels hold the toolkit's parts, but neither lib64 nor libcudart.so.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from smoke import elf
from smoke.program import Details, Failed, Findings, Spec, compile_targets, step
from torch.utils import cpp_extension

# Below CUDA_HOME: who looks for it there.
PARTS = {
    "bin/nvcc": "the compiler",
    "bin/ptxas": "the assembler",
    "nvvm/bin/cicc": "nvcc's optimiser",
    "nvvm/libdevice/libdevice.10.bc": "nvcc's device library",
    "include/cuda_runtime.h": "the runtime's headers",
    "include/crt/host_config.h": "nvcc's host headers",
    "lib64/libcudart.so": "what torch's extensions and FlashInfer link with (-L$CUDA_HOME/lib64 -lcudart)",
    "lib64/libcudadevrt.a": "what nvcc links with",
}
# Wheels of one toolkit: they count as one compiler, and a newer part makes code that the others do not take.
WHEELS = ("nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-nvvm")
CUDA_MACHINE = 190  # EM_CUDA
SOURCE = r"""
#include <Python.h>
#include <cuda_runtime.h>

__global__ void add(const float *a, float *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] += a[i];
}

static PyObject *version(PyObject *, PyObject *) {
    int number = 0;
    cudaRuntimeGetVersion(&number);
    return PyLong_FromLong(number);
}

// The sum of 0 + 0, 1 + 1, ... through the GPU, or minus the number of the error.
static PyObject *sum(PyObject *, PyObject *) {
    const int n = 1000;
    float host[n], *a = nullptr, *b = nullptr, total = 0;
    for (int i = 0; i < n; i++) host[i] = i;
    cudaMalloc(&a, sizeof host);
    cudaMalloc(&b, sizeof host);
    cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemcpy(b, host, sizeof host, cudaMemcpyHostToDevice);
    add<<<(n + 255) / 256, 256>>>(a, b, n);
    cudaMemcpy(host, b, sizeof host, cudaMemcpyDeviceToHost);
    cudaError_t error = cudaGetLastError();
    for (int i = 0; i < n; i++) total += host[i];
    return PyFloat_FromDouble(error ? -(double)error : total);
}

static PyMethodDef methods[] = {
    {"version", version, METH_NOARGS, nullptr}, {"sum", sum, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef probe = {PyModuleDef_HEAD_INIT, "probe", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_probe() { return PyModule_Create(&probe); }
"""
SUM = 999.0 * 1000  # twice 0 + 1 + ... + 999


def check(spec: Spec) -> Details:
    findings = Findings()
    home = Path(cpp_extension.CUDA_HOME or "")
    if not cpp_extension.CUDA_HOME:
        raise Failed("no CUDA toolkit is found: CUDA_HOME is not set and nvcc is not on PATH", {})
    present(home, findings)
    step("versions")
    versions = agree(spec, home, findings)
    details: Details = {"home": str(home), "versions": versions}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cu")
        source.write_text(SOURCE, encoding="utf-8")
        details["gpus"] = architectures(spec)
        for gpu in details["gpus"]:
            step(f"a cubin for {gpu}")
            compile_for(gpu, source, home, findings)
        step("an extension")
        module = extension(details["gpus"], source, home, findings)
        if module:
            judge(module, spec.device, findings)
    return findings.done(details)


def present(home: Path, findings: Findings) -> None:
    for part, purpose in PARTS.items():
        findings.expect(part, (home / part).exists(), f"{home / part} is missing: {purpose}")
    header = Path(sysconfig.get_path("include"), "Python.h")
    findings.expect("Python.h", header.exists(), f"{header} is missing: Triton's launchers and extensions include it")


def agree(spec: Spec, home: Path, findings: Findings) -> dict[str, str]:
    """The minor version of everything that makes or runs device code, which must be torch's."""
    found = {"torch": torch.version.cuda or "none"}
    for name in ("nvcc", "ptxas"):
        done = _run([str(home / "bin" / name), "--version"])
        match = re.search(r"release (\d+\.\d+)", done.stdout)
        found[name] = match[1] if match else f"unknown: {(done.stdout + done.stderr).strip()[:200]}"
    header = home / "include/cuda_runtime_api.h"
    text = header.read_text(encoding="utf-8", errors="replace") if header.exists() else ""
    match = re.search(r"^#define CUDART_VERSION\s+(\d+)", text, re.MULTILINE)
    found["headers"] = f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else "unknown"
    found |= {name: ".".join(spec.versions[name].split(".")[:2]) for name in WHEELS if name in spec.versions}
    wrong = {name: version for name, version in found.items() if version != found["torch"]}
    versions = ", ".join(f"{name} {version}" for name, version in wrong.items())
    findings.expect("versions", not wrong, f"torch is built with CUDA {found['torch']}, and there is {versions}")
    return found


def architectures(spec: Spec) -> list[str]:
    """The image's GPUs; with one here, its own."""
    if spec.device == "cuda":
        return ["sm_{}{}".format(*torch.cuda.get_device_capability())]
    return compile_targets(spec)


def compile_for(gpu: str, source: Path, home: Path, findings: Findings) -> None:
    target = source.with_suffix(f".{gpu}.cubin")
    include = f"-I{sysconfig.get_path('include')}"
    done = _nvcc(home, f"-arch={gpu}", "-cubin", include, str(source), "-o", str(target))
    findings.expect(gpu, done.returncode == 0, f"nvcc does not compile for {gpu}: {_said(done)}")
    if done.returncode == 0:
        machine, flags = elf.machine(target.read_bytes())
        number = int(re.sub(r"\D", "", gpu))
        # Since ABI 8 (CUDA 13) the architecture stands in bits 8 to 15, before it in bits 0 to 7.
        right = machine == CUDA_MACHINE and number in (flags >> 8 & 0xFF, flags & 0xFF)
        findings.expect(gpu, right, f"nvcc's code for {gpu} is for another machine: {machine}, flags {flags:#x}")


def extension(gpus: list[str], source: Path, home: Path, findings: Findings) -> ModuleType | None:
    """Compiled, linked with the shared runtime as torch's extensions are, and imported."""
    target = source.with_name("probe.so")
    wanted = [f"-gencode=arch={gpu.replace('sm', 'compute')},code={gpu}" for gpu in gpus]
    include = f"-I{sysconfig.get_path('include')}"
    library = [f"-L{home}/lib64", "-cudart", "shared"]
    done = _nvcc(home, "-shared", "-Xcompiler", "-fPIC", include, *wanted, *library, str(source), "-o", str(target))
    findings.expect("extension", done.returncode == 0, f"nvcc does not build an extension: {_said(done)}")
    if done.returncode != 0:
        return None
    loader = importlib.machinery.ExtensionFileLoader("probe", str(target))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("probe", loader, origin=str(target)))
    loader.exec_module(module)
    return module


def judge(module: ModuleType, device: str, findings: Findings) -> None:
    major, minor = (int(number) for number in (torch.version.cuda or "0.0").split(".")[:2])
    version = module.version()
    expected = major * 1000 + minor * 10
    findings.expect("runtime", version == expected, f"the runtime it loads is {version}, torch's is {expected}")
    if device == "cuda":
        total = module.sum()
        findings.expect("kernel", total == SUM, f"a kernel's sum is {total}, not {SUM}")


def _nvcc(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _run([str(home / "bin" / "nvcc"), *arguments])


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])[:400]
