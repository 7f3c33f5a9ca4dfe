"""Group Relative Policy Optimization, small and whole: sample, score, normalise, clip, stay near a reference.

Sources, named again where they are used:
  DeepSeekMath (Shao et al. 2024), arXiv 2402.03300, section 4.1: GRPO, equations 3 and 4.
  PPO (Schulman et al. 2017), arXiv 1707.06347, equation 7: the clipped surrogate.
  J. Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html: the estimator k3.

Every piece is a function of tensors, so that each can be checked alone. Shapes: P prompts, G completions of each,
B = P * G sequences, L prompt tokens, T completion tokens. Log-probabilities and masks are (B, T).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

DIGITS = 8  # tokens 0 to 7; a prompt is the start token and one digit
BOS, EOS, PAD = 8, 9, 10
VOCABULARY = 11
COMPLETION = 5  # T: tokens of a completion at most, the end token included
EPSILON = 1e-6  # a group of equal rewards gets zero advantages, not a division by zero


@dataclass(frozen=True)
class Setup:
    """One run. `autocast` is the dtype of the forward passes; parameters and optimizer stay in float32."""

    seed: int
    steps: int = 40
    group: int = 8
    updates: int = 2  # per batch, so that the ratio leaves 1 and the clip has work
    clip: float = 0.2
    beta: float = 0.02  # weight of the KL to the reference
    learning_rate: float = 3e-3
    device: str = "cpu"
    autocast: torch.dtype | None = None

    def precision(self) -> torch.autocast:
        """Around forward passes, and left before the weights change: until then it reuses their first casts."""
        return torch.autocast(self.device, dtype=self.autocast, enabled=self.autocast is not None)


@dataclass(frozen=True)
class Rollout:
    """Sampled completions: tokens (B, L + T); mask (B, T), True up to and including the end token; rewards (P, G)."""

    tokens: Tensor
    mask: Tensor
    sampled: Tensor  # log-probabilities as the sampler saw them
    rewards: Tensor


@dataclass(frozen=True)
class Batch:
    """A rollout with what stays fixed during its updates; `old` and `reference` are log-probabilities."""

    rollout: Rollout
    advantages: Tensor  # (P, G)
    old: Tensor
    reference: Tensor


@dataclass(frozen=True)
class Update:
    """Statistics of one optimizer step. The extremes are over the completions' own tokens."""

    first: bool  # of its batch: the policy is still the one that sampled
    loss: float
    gradient: float  # norm over all parameters
    ratio_error: float  # largest |ratio - 1|
    clipped: float  # share of tokens whose ratio left the clip's interval
    kl: float  # mean of k3
    kl_least: float  # smallest k3


@dataclass(frozen=True)
class Run:
    """The record of a training run; `start` holds the parameters that policy and reference began with."""

    policy: nn.Module
    reference: nn.Module
    start: dict[str, Tensor]
    batches: list[Batch] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)


def reward(prompts: Tensor, completions: Tensor, mask: Tensor) -> Tensor:
    """Verifiable: the share of the T places that repeat the prompt's digit. (B, L), (B, T), (B, T) -> (B,)

    In float64, where the mean of equal rewards is so near to them that dividing by EPSILON does not show it.
    """
    hits = (completions == prompts[:, -1:]) & mask
    return hits.double().mean(1)


def advantages(rewards: Tensor) -> Tensor:
    """Rewards less their group's mean, over their group's standard deviation (DeepSeekMath, 4.1.2). (P, G) -> (P, G)

    A group of one has neither: its reward stands, as trainers take it (verl's core_algos: mean 0, deviation 1).
    """
    if rewards.shape[1] == 1:
        return rewards / (1 + EPSILON)
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + EPSILON)


def k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's k3 = r - 1 - log r with r = reference / policy: KL(policy || reference), unbiased, never negative."""
    log_ratio = reference - log_probs
    return torch.expm1(log_ratio) - log_ratio


def policy_loss(
    log_probs: Tensor, old: Tensor, reference: Tensor, advantage: Tensor, mask: Tensor, *, clip: float, beta: float
) -> Tensor:
    """GRPO's objective (DeepSeekMath, equation 3), negated: PPO's clipped surrogate less beta times the KL.

    The mean over each completion's own tokens, then over completions. advantage is (B,), the result a scalar.
    """
    ratio = torch.exp(log_probs - old)
    signal = advantage[:, None]
    surrogate = torch.minimum(ratio * signal, ratio.clamp(1 - clip, 1 + clip) * signal)
    per_token = beta * k3(log_probs, reference) - surrogate
    return ((per_token * mask).sum(1) / mask.sum(1)).mean()


def frozen(policy: nn.Module) -> nn.Module:
    """The reference: a copy that never learns."""
    return copy.deepcopy(policy).requires_grad_(requires_grad=False)


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """(B, S) -> (B, S, vocabulary) in float32, from a transformers model or a plain one."""
    output = model(tokens)
    return (output if isinstance(output, Tensor) else output.logits).float()


def token_log_probs(model: nn.Module, tokens: Tensor) -> Tensor:
    """Log-probabilities of the T completion tokens, each given all before it. (B, L + T) -> (B, T)"""
    log_probs = logits_of(model, tokens)[:, -COMPLETION - 1 : -1].log_softmax(-1)
    return log_probs.gather(-1, tokens[:, -COMPLETION:, None]).squeeze(-1)


def sample(model: nn.Module, prompts: Tensor, group: int, generator: torch.Generator) -> Rollout:
    """G completions of each prompt, drawn token by token at temperature 1. prompts is (P, L)."""
    tokens = prompts.repeat_interleave(group, 0)
    alive = torch.ones(len(tokens), 1, dtype=torch.bool, device=tokens.device)
    masks, sampled = [], []
    for _ in range(COMPLETION):
        log_probs = logits_of(model, tokens)[:, -1].log_softmax(-1)
        token = torch.multinomial(log_probs.exp(), 1, generator=generator)
        masks.append(alive)
        sampled.append(log_probs.gather(1, token))
        tokens = torch.cat([tokens, torch.where(alive, token, PAD)], 1)
        alive = alive & (token != EOS)
    mask = torch.cat(masks, 1)
    rewards = reward(tokens[:, :-COMPLETION], tokens[:, -COMPLETION:], mask)
    return Rollout(tokens, mask, torch.cat(sampled, 1), rewards.view(-1, group))


# (policy, prompts, completions of each, source of randomness) -> what was sampled
Sampler = Callable[[nn.Module, Tensor, int, torch.Generator], Rollout]


def collect(run: Run, prompts: Tensor, setup: Setup, generator: torch.Generator, sampler: Sampler) -> Batch:
    """Sample and score; the old log-probabilities come from one forward of the same batch as the updates'."""
    with torch.no_grad(), setup.precision():
        rollout = sampler(run.policy, prompts, setup.group, generator)
        old = token_log_probs(run.policy, rollout.tokens)
        reference = token_log_probs(run.reference, rollout.tokens)
    return Batch(rollout, advantages(rollout.rewards).float(), old, reference)


def improve(policy: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, setup: Setup, *, first: bool) -> Update:
    """One optimizer step."""
    mask = batch.rollout.mask
    with setup.precision():
        log_probs = token_log_probs(policy, batch.rollout.tokens)
    loss = policy_loss(
        log_probs, batch.old, batch.reference, batch.advantages.flatten(), mask, clip=setup.clip, beta=setup.beta
    )
    optimizer.zero_grad()
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]).norm()
    optimizer.step()
    error = (torch.exp(log_probs.detach() - batch.old)[mask] - 1).abs()
    kl = k3(log_probs.detach(), batch.reference)[mask]
    return Update(
        first=first,
        loss=loss.item(),
        gradient=gradient.item(),
        ratio_error=error.max().item(),
        clipped=(error > setup.clip).float().mean().item(),
        kl=kl.mean().item(),
        kl_least=kl.min().item(),
    )


def train(make_model: Callable[[int], nn.Module], setup: Setup, sampler: Sampler | None = None) -> Run:
    """`steps` batches of all digits, sampled from the policy itself or by a rollout engine.

    Without an engine, on a CPU, one seed and one number of threads give the same numbers every time.
    """
    torch.manual_seed(setup.seed)
    generator = torch.Generator(setup.device).manual_seed(setup.seed)
    policy = make_model(VOCABULARY).to(setup.device).eval()  # eval: with dropout the first ratio would not be 1
    run = Run(policy, frozen(policy), {name: value.detach().clone() for name, value in policy.named_parameters()})
    optimizer = torch.optim.AdamW(policy.parameters(), lr=setup.learning_rate, weight_decay=0.0)
    prompts = torch.stack([torch.full((DIGITS,), BOS), torch.arange(DIGITS)], 1).to(setup.device)
    for _ in range(setup.steps):
        batch = collect(run, prompts, setup, generator, sampler or sample)
        run.batches.append(batch)
        for update in range(setup.updates):
            run.updates.append(improve(policy, optimizer, batch, setup, first=update == 0))
            if not math.isfinite(run.updates[-1].gradient):
                return run  # the weights are lost; what the run recorded says so
    return run
