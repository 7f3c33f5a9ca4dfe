"""verl's own advantage function and GRPO reference of these checks agree."""

from __future__ import annotations

import torch
from smoke import grpo
from smoke.program import Details, Findings, Spec, step
from torch import Tensor

TOKENS = 4
# Both reckon in float64, but verl adds epsilon to a float32 1 for a group of one: 2**-24 off, times rewards up to 2.
AGREE = 2**-23
GROUPS = {
    "random": torch.rand(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    "equal rewards": torch.full((3, 8), 0.1, dtype=torch.float64),
    "one reward differs": torch.tensor([[0.0] * 7 + [0.2], [1.0] * 7 + [0.8]], dtype=torch.float64),
    "groups of two": torch.tensor([[0.0, 1.0], [0.5, 0.5], [-3.0, 7.0]], dtype=torch.float64),
    "groups of one": torch.tensor([[0.0], [0.7], [-2.0]], dtype=torch.float64),
}


def check(_: Spec) -> Details:
    step("import verl")
    findings = Findings()
    details: Details = {}
    for name, rewards in GROUPS.items():
        step(name)
        theirs, mask = from_verl(rewards)
        expected = grpo.advantages(rewards).flatten()[:, None] * mask
        error = (theirs - expected).abs().max().item()
        findings.expect(name, error <= AGREE, f"verl's advantages ({name}) differ from the reference by {error:.2e}")
        details[name] = error
    return findings.done(details)


def from_verl(rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Verl's advantages and the mask, (B, TOKENS): outcome rewards stand at a completion's last token.

    The groups' rows are shuffled, as they are in a batch that was balanced over GPUs, and back.
    """
    import numpy as np
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    prompts, group = rewards.shape
    count = prompts * group
    lengths = torch.arange(count) % TOKENS + 1
    mask = (torch.arange(TOKENS) < lengths[:, None]).double()
    scores = torch.zeros(count, TOKENS, dtype=torch.float64)
    scores[torch.arange(count), lengths - 1] = rewards.flatten()
    index = np.repeat(np.array([f"prompt-{number}" for number in range(prompts)], dtype=object), group)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    advantages, _ = compute_grpo_outcome_advantage(scores[order], mask[order], index[order.numpy()])
    back = torch.empty_like(advantages)
    back[order] = advantages
    return back, mask
