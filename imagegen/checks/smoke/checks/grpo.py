"""GRPO on a tiny language model learns, and each of its parts equals its published definition (see smoke.grpo)."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from smoke import grpo, tinylm
from smoke.program import Details, Findings, Spec, step
from torch import Tensor

SEEDS = (0, 1, 2)
WINDOW = 5  # batches that the mean rewards at the start and at the end are taken over
# The reward starts near 0.1 (a digit of 11 tokens, some completions end early) and can reach 1. Over 24 seeds and both
# models the rise was 0.72 at least (docs/internals/measurements.md); always answering with one digit, whatever the
# prompt, is worth no more than 1/8.
RISE = 0.5
AGREE = 1e-6  # sums of eight float32 numbers near 1


@dataclass(frozen=True)
class Precision:
    """One kind of arithmetic, with what it may do to numbers that are equal on paper."""

    name: str
    device: str
    autocast: torch.dtype | None
    first_ratio: float  # |ratio - 1| of a policy to itself: the same batch, once without and once with gradients
    sampler: float  # |log p| of the sampler's shorter batches against the update's: other blocking, other rounding


# One thread and one batch shape run the same instructions in the same order: exact. A GPU may choose other kernels.
CPU = Precision("float32", "cpu", None, first_ratio=0.0, sampler=1e-4)
# bfloat16 has 8 significant bits: logits near 8 are rounded to 2**-5, and a log-probability holds two of them.
CUDA = (
    Precision("float32", "cuda", None, first_ratio=1e-5, sampler=1e-3),
    Precision("bfloat16", "cuda", torch.bfloat16, first_ratio=0.07, sampler=0.15),
)


def check(spec: Spec) -> Details:
    torch.set_num_threads(1)  # the model is too small to share, and the order of sums must not depend on the machine
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    findings = Findings()
    step("formulas")
    check_k3(findings)
    check_gradients(findings)
    details: Details = {"model": "transformers" if "transformers" in spec.versions else "torch", "seeds": list(SEEDS)}
    for precision in CUDA if spec.device == "cuda" else (CPU,):
        details[precision.name] = [_one_run(precision, seed, findings) for seed in SEEDS]
    if spec.device == "cpu":
        step("the same seed twice")
        check_repeats(findings)
    return findings.done(details)


def _one_run(precision: Precision, seed: int, findings: Findings) -> Details:
    step(f"{precision.name}, seed {seed}")
    run = grpo.train(tinylm.make, grpo.Setup(seed, device=precision.device, autocast=precision.autocast))
    where = f"({precision.name}, seed {seed})"
    for batch in run.batches:
        check_batch(batch, precision, where, findings)
    check_updates(run.updates, precision, where, findings)
    check_parameters(run, where, findings)
    start, end = mean_rewards(run)
    findings.expect(
        "learns", end - start >= RISE, f"mean reward went from {start:.3f} to {end:.3f}, not up {RISE} {where}"
    )
    first = [update for update in run.updates if update.first]
    return {
        "reward": [round(start, 3), round(end, 3)],
        "first_ratio_error": max(update.ratio_error for update in first),
        "sampler_error": max(sampler_error(batch) for batch in run.batches),
        "kl": round(run.updates[-1].kl, 3),
        "clipped": round(max(update.clipped for update in run.updates), 3),
    }


def mean_rewards(run: grpo.Run) -> tuple[float, float]:
    """Mean reward of the first and of the last batches."""
    rewards = [batch.rollout.rewards.mean().item() for batch in run.batches]
    return fmean(rewards[:WINDOW]), fmean(rewards[-WINDOW:])


def check_k3(findings: Findings) -> None:
    """The expectation of k3 over a whole distribution is the KL exactly, since the reference's r sums to one."""
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 64, 11, generator=generator, dtype=torch.float64).log_softmax(-1)
    estimate = (policy.exp() * grpo.k3(policy, reference)).sum(-1)
    exact = (policy.exp() * (policy - reference)).sum(-1)
    error = (estimate - exact).abs().max().item()
    findings.expect("k3-unbiased", error < 1e-12, f"the mean of k3 misses the exact KL by {error:.2e}")
    least = grpo.k3(policy, reference).min().item()
    findings.expect("k3-positive", least >= 0, f"k3 is negative: {least:.3g}")


def check_gradients(findings: Findings) -> None:
    """Compare the loss's gradient with respect to the log-probabilities with the analytic derivative."""
    generator = torch.Generator().manual_seed(1)
    old, reference = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)
    weight = mask.double() / mask.sum(1, keepdim=True) / len(mask)
    # At ratio 1: minus the advantage, plus beta times k3's derivative 1 - r.
    signal = torch.tensor([1.5, -0.5, -2.0, 1.0], dtype=torch.float64)
    expected = weight * (-signal[:, None] + 0.1 * (1 - torch.exp(reference - old)))
    actual = _gradient(old, old, reference, signal, mask, beta=0.1)
    findings.expect("gradient", _close(actual, expected), "at ratio 1 the loss's gradient is not GRPO's")
    # Off 1, without KL: the clip stops the gradient where the step went far enough already, and only there.
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5], dtype=torch.float64)
    signal = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    kept = torch.tensor([0.0, 1.5, -0.5, 0.0], dtype=torch.float64)
    actual = _gradient(old + ratio.log()[:, None], old, reference, signal, mask, beta=0.0)
    findings.expect("clip", _close(actual, weight * kept[:, None]), "past the clip the loss's gradient is not PPO's")


def _gradient(log_probs: Tensor, old: Tensor, reference: Tensor, signal: Tensor, mask: Tensor, beta: float) -> Tensor:
    leaf = log_probs.clone().requires_grad_()
    loss = grpo.policy_loss(leaf, old, reference, signal, mask, clip=0.2, beta=beta)
    return torch.autograd.grad(loss, leaf)[0] if loss.requires_grad else torch.zeros_like(leaf)


def _close(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-9, atol=1e-12)


def check_batch(batch: grpo.Batch, precision: Precision, where: str, findings: Findings) -> None:
    rewards, advantages = batch.rollout.rewards.double(), batch.advantages.double()
    total = advantages.sum(1).abs().max().item()
    findings.expect("sum", total < 8 * AGREE, f"a group's advantages sum to {total:.2e}, not 0 {where}")
    spread = rewards.std(1) > 0
    scale = (advantages.std(1)[spread] - 1).abs().max().item() if spread.any() else 0.0
    # The smallest spread, one reward of 8 that differs by 1/5, is 0.07: EPSILON changes the scale by 1.4e-5 there.
    findings.expect("scale", scale < 1e-4, f"a group's advantages spread by 1 {scale:+.3f}, not 1 {where}")
    agree = ((rewards - rewards.mean(1, keepdim=True)) * advantages).min().item()
    findings.expect("sign", agree > -1e-12, f"a reward above its group's mean has a negative advantage {where}")
    error = sampler_error(batch)
    findings.expect(
        "sampler", error <= precision.sampler, f"log-probabilities miss the sampler's by {error:.2e} {where}"
    )


def sampler_error(batch: grpo.Batch) -> float:
    return (batch.rollout.sampled - batch.old)[batch.rollout.mask].abs().max().item()


def check_updates(updates: list[grpo.Update], precision: Precision, where: str, findings: Findings) -> None:
    numbers = [number for u in updates for number in (u.loss, u.gradient, u.ratio_error, u.kl)]
    findings.expect("finite", all(map(math.isfinite, numbers)), f"a loss, gradient, ratio or KL is not finite {where}")
    error = max(update.ratio_error for update in updates if update.first)
    findings.expect("first-ratio", error <= precision.first_ratio, f"the first ratio misses 1 by {error:.2e} {where}")
    moved = max((update.ratio_error for update in updates if not update.first), default=0.0)
    findings.expect("ratio-moves", moved > 0.01, f"the ratio stays at 1 after an update {where}")
    least = min(update.kl_least for update in updates)
    findings.expect("kl-positive", least >= -AGREE, f"a token's KL is negative: {least:.3g} {where}")
    findings.expect("kl-grows", updates[-1].kl > 0.01, f"the policy's KL to the reference stays 0 {where}")
    gradient = updates[0].gradient
    findings.expect("first-gradient", gradient > 1e-4, f"the first update has no gradient: {gradient:.2e} {where}")


def check_parameters(run: grpo.Run, where: str, findings: Findings) -> None:
    moved = [name for name, value in run.policy.named_parameters() if not torch.equal(value, run.start[name])]
    still = sorted(set(run.start) - set(moved))
    findings.expect("policy-moved", not still, f"parameters that did not move: {still} {where}")
    drifted = [name for name, value in run.reference.named_parameters() if not torch.equal(value, run.start[name])]
    findings.expect("reference-still", not drifted, f"the reference moved: {drifted} {where}")


def check_repeats(findings: Findings) -> None:
    setup = replace(grpo.Setup(SEEDS[0]), steps=3)
    one, two = (grpo.train(tinylm.make, setup).updates for _ in range(2))
    findings.expect("repeats", one == two, "the same seed gave other numbers the second time")
