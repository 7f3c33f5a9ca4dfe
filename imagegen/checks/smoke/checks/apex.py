"""apex's compiled extensions: norms, softmax, accumulated weight gradients and the optimizer are right on this GPU.

Megatron takes its fused softmax, `gradient_accumulation_fusion` and FusedAdam from them. A build of apex without its
extensions imports as well, so each is called.
"""

from __future__ import annotations

import torch
from smoke.checks.attention import TOLERANCE
from smoke.measure import Kernel, compare, judge
from smoke.program import Details, Findings, Spec, step
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

ROWS, WIDTH, OUTPUT = 77, 256, 96
BATCH, HEADS, LENGTH = 2, 4, 128
EPSILON, SCALE = 1e-5, 0.125
STEPS = 5  # of the optimizer
LIMIT = TOLERANCE[torch.bfloat16]


def check(spec: Spec) -> Details:  # noqa: ARG001 - every check is given one
    from apex.normalization.fused_layer_norm import fused_layer_norm_affine, fused_rms_norm_affine

    findings = Findings()
    vector = (WIDTH,)
    kernels = (
        Kernel(
            "layer norm",
            lambda rows, weight, bias: fused_layer_norm_affine(rows, weight, bias, vector, EPSILON),
            lambda rows, weight, bias: layer_norm(rows, vector, weight, bias, EPSILON),
            ((ROWS, WIDTH), vector, vector),
            LIMIT,
        ),
        Kernel(
            "RMS norm",
            lambda rows, weight: fused_rms_norm_affine(rows, weight, vector, EPSILON),
            lambda rows, weight: rms_norm(rows, vector, weight, EPSILON),
            ((ROWS, WIDTH), vector),
            LIMIT,
        ),
        Kernel("causal softmax", _CausalSoftmax.apply, exact_softmax, ((BATCH * HEADS, LENGTH, LENGTH),), LIMIT),
    )
    errors: Details = {**compare(kernels, findings)}
    step("accumulated weight gradient")
    actual, expected = accumulated()
    errors["accumulated weight gradient"] = judge(
        "accumulated weight gradient", [actual], [expected], TOLERANCE[torch.float32], findings
    )
    step("FusedAdam")
    errors["FusedAdam"] = judge("FusedAdam", [adam(fused=True)], [adam(fused=False)], 1e-5, findings)
    return findings.done(errors)


class _CausalSoftmax(torch.autograd.Function):
    """The extension that megatron-core's FusedScaleMaskSoftmax calls: (rows, LENGTH, LENGTH)."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, scores: Tensor) -> Tensor:  # type: ignore[override]
        import scaled_upper_triang_masked_softmax_cuda as extension

        output = extension.forward(scores, SCALE)
        context.save_for_backward(output)
        return output

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:  # type: ignore[override]
        import scaled_upper_triang_masked_softmax_cuda as extension

        (output,) = context.saved_tensors
        return extension.backward(gradient.contiguous(), output, SCALE)


def exact_softmax(scores: Tensor) -> Tensor:
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=scores.device).triu(1)
    return (scores * SCALE).masked_fill(hidden, float("-inf")).softmax(-1)


def accumulated() -> tuple[Tensor, Tensor]:
    """Return a float32 weight gradient (OUTPUT, WIDTH) after the kernel added a product to it, and the exact one."""
    import fused_weight_gradient_mlp_cuda as extension

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, WIDTH, generator=generator).to(torch.bfloat16).cuda()
    gradient = torch.randn(ROWS, OUTPUT, generator=generator).to(torch.bfloat16).cuda()
    sums = torch.randn(OUTPUT, WIDTH, generator=generator).cuda()
    expected = sums.double() + gradient.double().T @ rows.double()
    extension.wgrad_gemm_accum_fp32(rows, gradient, sums)
    return sums, expected


def adam(*, fused: bool) -> Tensor:
    """Return a weight (WIDTH, WIDTH) after STEPS steps: of apex in float32, or of torch's AdamW in float64."""
    from apex.optimizers import FusedAdam

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(WIDTH, WIDTH, generator=generator)
    weight = start.cuda().to(torch.float32 if fused else torch.float64).requires_grad_()
    optimizer = (FusedAdam if fused else torch.optim.AdamW)([weight], lr=1e-2, weight_decay=0.1)
    for _ in range(STEPS):
        weight.grad = torch.randn(WIDTH, WIDTH, generator=generator).to(weight)
        optimizer.step()
    return weight.detach()
