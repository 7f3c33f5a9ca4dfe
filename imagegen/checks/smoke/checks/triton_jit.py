"""Triton compiles a kernel for the image's GPUs; with a GPU, it runs and is right."""

from __future__ import annotations

import inspect

import torch
import triton
import triton.language as tl
from smoke import elf
from smoke.checks.toolkit import CUDA_MACHINE
from smoke.program import Details, Findings, Spec, compile_targets, step

COUNT, BLOCK = 1000, 128


@triton.jit
def add(left, right, total, count, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201, N803  # Triton's own annotations
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    tl.store(total + places, tl.load(left + places, mask=inside) + tl.load(right + places, mask=inside), mask=inside)


def check(spec: Spec) -> Details:
    findings = Findings()
    if spec.device == "cuda":
        step("run a kernel")  # compiles the kernel and, with the host's compiler, its launcher
        left, right = torch.arange(COUNT, device="cuda"), torch.arange(COUNT, device="cuda") * 3
        total = torch.full_like(left, -1)
        add[(triton.cdiv(COUNT, BLOCK),)](left, right, total, COUNT, BLOCK)
        right_sum = torch.equal(total.cpu(), torch.arange(COUNT) * 4)
        findings.expect("kernel", right_sum, "a kernel's sums are wrong")
        return findings.done({"triton": triton.__version__})
    sizes = {gpu: _compiled(gpu, findings) for gpu in compile_targets(spec)}
    return findings.done({"triton": triton.__version__, "cubins": sizes})


def _compiled(gpu: str, findings: Findings) -> int:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    step(f"a kernel for {gpu}")
    types = dict.fromkeys(("left", "right", "total"), "*i64")
    if "constexprs" in inspect.signature(ASTSource.__init__).parameters:
        source = ASTSource(add, signature={**types, "count": "i32", "BLOCK": "constexpr"}, constexprs={(4,): BLOCK})
    else:  # Triton before 3.3
        source = ASTSource(add, signature={**types, "count": "i32"}, constants={"BLOCK": BLOCK})
    target = GPUTarget("cuda", int(gpu.removeprefix("sm_")), 32)
    cubin = triton.compile(source, target=target).asm["cubin"]
    findings.expect(gpu, elf.machine(cubin)[0] == CUDA_MACHINE, f"Triton's code for {gpu} is no CUDA code")
    return len(cubin)
