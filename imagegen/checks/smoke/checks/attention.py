"""Scaled dot-product attention: which backend torch really takes, and whether it is right, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from smoke.program import Details, Findings, Spec, step
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 77, 64  # 77: no multiple of any kernel's tile
PREFIX = "aten::_scaled_dot_product_"
BACKENDS = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)

# Largest error allowed, over the largest value of the reference in float64 on the same rounded inputs.
# float32: the sums have at most 77 terms (77 * 2**-24 = 5e-6), in two products and a softmax: twice that.
# bfloat16 (8 significant bits): weights and output are rounded to 2**-8 each; a gradient meets three such roundings.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3 * 2**-8}


@dataclass(frozen=True)
class Case:
    """One call of attention; `masked` passes a boolean mask that hides a third of the keys."""

    dtype: torch.dtype
    causal: bool = False
    masked: bool = False

    @property
    def name(self) -> str:
        kind = "causal" if self.causal else "masked" if self.masked else "full"
        return f"{kind}, {str(self.dtype).removeprefix('torch.')}"


CASES = tuple(
    Case(dtype, **kind)
    for dtype in (torch.float32, torch.bfloat16)
    for kind in ({"causal": True}, {"masked": True}, {})
)


def check(spec: Spec) -> Details:
    findings = Findings()
    details: Details = {}
    for case in CASES:
        step(case.name)
        inputs = make_inputs(case)
        expected = run(reference, inputs, case, "cpu")
        chosen, actual = observed(inputs, case, spec.device)
        details[case.name] = {"chosen": chosen, "error": judge(case, chosen, actual, expected, findings)}
        if spec.device == "cuda":
            details[case.name]["others"] = _each_backend(inputs, case, expected, findings)
    if spec.device == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
        causal = details[Case(torch.bfloat16, causal=True).name]["chosen"]
        findings.expect("fused", "math" not in causal, "causal bfloat16 falls back to the slow math backend")
    return findings.done(details)


def _each_backend(inputs: list[Tensor], case: Case, expected: list[Tensor], findings: Findings) -> Details:
    """Backend -> error, or why it does not take this case. The ones that torch does not choose by itself count too."""
    answers: Details = {}
    for backend in BACKENDS:
        step(f"{case.name}, {backend.name}")
        try:
            with sdpa_kernel(backend):
                actual = run(scaled_dot_product_attention, inputs, case, "cuda")
        except RuntimeError as error:
            answers[backend.name] = str(error).splitlines()[0]
        else:
            answers[backend.name] = judge(case, backend.name, actual, expected, findings)
    return answers


def make_inputs(case: Case) -> list[Tensor]:
    """Query, key, value and the output's gradient, on the CPU, already rounded to the case's dtype."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH, generator=generator).to(case.dtype) for _ in range(4)]


def reference(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, *, is_causal: bool) -> Tensor:
    """softmax(Q K' / sqrt(d)) V, as it is written, in float64."""
    scores = query.double() @ key.double().transpose(-1, -2) / math.sqrt(query.shape[-1])
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() if is_causal else attn_mask
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ value.double()


def run(function: Callable[..., Tensor], inputs: list[Tensor], case: Case, device: str) -> list[Tensor]:
    """Output and the gradients of query, key and value, in float64 on the CPU."""
    *leaves, gradient = (tensor.to(device, copy=True).requires_grad_() for tensor in inputs)
    mask = None
    if case.masked:
        mask = torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 2 / 3
        mask = (mask | torch.eye(LENGTH, dtype=torch.bool)).to(device)  # no row may hide everything
    output = function(*leaves, mask, is_causal=case.causal)
    output.backward(gradient.detach().to(output.dtype))
    return [tensor.detach().double().cpu() for tensor in (output, *(leaf.grad for leaf in leaves))]


def observed(inputs: list[Tensor], case: Case, device: str) -> tuple[str, list[Tensor]]:
    """The backend that torch took by itself, read off the operators that really ran, and its results."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        results = run(scaled_dot_product_attention, inputs, case, device)
    ran = {event.key for event in record.key_averages()}
    names = {name.removeprefix(PREFIX) for name in ran if name.startswith(PREFIX)}
    forward = sorted(name for name in names if "backward" not in name and not name.startswith("fused"))
    return ", ".join(forward) or "unknown", results


def judge(case: Case, backend: str, actual: list[Tensor], expected: list[Tensor], findings: Findings) -> float:
    """The largest relative error of output and gradients; a finding when it is more than rounding explains."""
    errors = [float((a - e).abs().max() / e.abs().max()) for a, e in zip(actual, expected)]  # noqa: B905  # Python 3.9
    worst = max(errors) if all(map(math.isfinite, errors)) else math.inf
    holds = worst <= TOLERANCE[case.dtype]
    findings.expect(f"{case.name}, {backend}", holds, f"{backend} ({case.name}) misses the reference by {worst:.2e}")
    return worst
