"""FlashInfer compiles one of its kernels with the image's toolkit; with a GPU, the kernel is right."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from smoke import stub
from smoke.arch import dotted
from smoke.program import Details, Failed, Findings, Spec, compile_targets, step

ROWS, WIDTH = 99, 1024
TOLERANCE = 2 * 2**-8  # bfloat16 input and output, each rounded to 8 significant bits; the sum is in float32


def check(spec: Spec) -> Details:
    with tempfile.TemporaryDirectory() as folder:
        # Read while flashinfer is imported: a fresh place, or an earlier run's kernel would be taken.
        os.environ["FLASHINFER_WORKSPACE_BASE"] = folder
        return on_gpu() if spec.device == "cuda" else without_gpu(spec, Path(folder))


def without_gpu(spec: Spec, folder: Path) -> Details:
    """Compile for the newest of the image's GPUs and link with a stand-in for the driver's library."""
    gpu = compile_targets(spec)[-1]
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = dotted(gpu)
    if not stub.driver_here():
        stub.write(folder, ())
        os.environ["FLASHINFER_EXTRA_LDFLAGS"] = f"-L{folder}"
    built = build(folder)
    note = f"linked with a stub {stub.LIBRARY}; not run" if not stub.driver_here() else "not run"
    return {"built": built.name, "bytes": built.stat().st_size, "gpu": gpu, "note": note}


def build(folder: Path) -> Path:
    from flashinfer.jit.norm import gen_norm_module

    step("compile FlashInfer's norm kernels")
    try:
        gen_norm_module().build(verbose=False)
    except RuntimeError as error:  # with all that ninja and the compilers said
        lines = str(error).splitlines()
        messages = [line for line in lines if "error" in line or "cannot find" in line] or lines[-1:]
        raise Failed(
            f"FlashInfer's kernels do not build: {' / '.join(messages[:3])[:400]}", {"output": lines[-40:]}
        ) from error
    built = sorted(folder.rglob("norm.so"))
    if len(built) != 1:
        raise Failed(f"FlashInfer compiled without an error, and left {len(built)} libraries", {})
    return built[0]


def on_gpu() -> Details:
    """The same kernel through FlashInfer's own door, which compiles it for this GPU, against the formula in float64."""
    import torch
    from flashinfer.norm import rmsnorm

    findings = Findings()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, WIDTH, generator=generator).bfloat16()
    weight = torch.rand(WIDTH, generator=generator).bfloat16()
    step("compile and run FlashInfer's RMS norm")
    actual = rmsnorm(rows.cuda(), weight.cuda(), eps=1e-6).double().cpu()
    exact = rows.double()
    expected = exact * (exact.square().mean(1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    error = float((actual - expected).abs().max() / expected.abs().max())
    findings.expect("norm", error <= TOLERANCE, f"FlashInfer's RMS norm misses the formula by {error:.2e}")
    return findings.done({"error": error})
