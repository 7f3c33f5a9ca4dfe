"""GRPO with a rollout engine as its sampler: what the engine says must be what the trainer's weights say.

An engine has a copy of the weights of its own. What goes wrong is silent: an update that does not arrive, or arrives in
part, or one step late, leaves a run that samples from another policy than it trains, and learns badly or not at all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from smoke import grpo, tinylm
from smoke.checks.grpo import (
    RISE,
    Precision,
    check_batch,
    check_parameters,
    check_updates,
    mean_rewards,
    sampler_error,
)
from smoke.program import Details, Findings, step
from torch import Tensor, nn

HEAD_WIDTH = 64  # every engine's attention kernels take it; the other sizes of the tiny model are its usual ones
SHARE = 0.15  # of the GPU's memory for the engine: the trainer is on the same GPU
SEED = 0
# An engine that rounds weights, residuals and logits to bfloat16 against a trainer that keeps the residual in float32:
# 0.03 to 0.06 over nine seeds with vLLM; 0.44 and more with weights that came late or in part
# (docs/internals/measurements.md).
BFLOAT16 = Precision("bfloat16", "cuda", torch.bfloat16, first_ratio=0.07, sampler=0.15)
# What a stale copy misses: untrained, a token's log-probability is near -log 11 = -2.4; trained, near 0.
STALE = 1.0


@dataclass(frozen=True)
class Completion:
    """Tokens up to and including the end token where it came, and the log-probability that each was sampled with."""

    tokens: list[int]
    log_probs: list[float]


class Engine(Protocol):
    """The calls of vLLM and SGLang that the checks use; see smoke.engines."""

    def generate(
        self, prompts: list[list[int]], count: int, temperature: float, tokens: int = grpo.COMPLETION
    ) -> list[list[Completion]]:
        """`count` completions of at most `tokens` tokens, for each prompt."""

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take these weights, named as in a Hugging Face checkpoint, without a restart."""


class Scorer(Engine, Protocol):
    """An engine that also computes the log-probabilities of tokens that it is given."""

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        """Return the log-probability of each token but the first, given those before it, for each sequence."""


def make_model(vocabulary: int) -> nn.Module:
    return tinylm.llama(vocabulary, HEAD_WIDTH)


def check_engine(start: Callable[[Path], Engine], precision: Precision) -> Details:
    """`start` makes an engine of a folder with a checkpoint and a tokenizer. Raises Failed, or whatever it raises."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(SEED)
        save(make_model(grpo.VOCABULARY), Path(folder), words(grpo.VOCABULARY))
        step("the engine starts")
        return prove(start(Path(folder)), precision)


def prove(engine: Engine, precision: Precision) -> Details:
    """With an engine that has the weights of SEED's model."""
    findings = Findings()
    first = greedy(engine)
    step("GRPO with the engine")
    setup = grpo.Setup(SEED, device=precision.device, autocast=precision.autocast)
    run = grpo.train(make_model, setup, lambda *given: sampled(engine, *given))
    step("what the engine generated")
    for batch in run.batches:
        check_batch(batch, precision, "(engine)", findings)
    check_updates(run.updates, precision, "(engine)", findings)
    check_parameters(run, "(engine)", findings)
    rose = mean_rewards(run)
    findings.expect("learns", rose[1] - rose[0] >= RISE, f"mean reward went from {rose[0]:.3f} to {rose[1]:.3f}")
    stale = stale_error(run)
    findings.expect("tells", stale > STALE, f"stale weights would miss by {stale:.2f} only: nothing was proven")
    step("weights there and back")
    engine.load(dict(run.policy.named_parameters()))
    last = greedy(engine)
    findings.expect("changed", last != first, "new weights do not change what the engine generates")
    engine.load(run.start)
    findings.expect("back", greedy(engine) == first, "with its first weights again the engine generates something else")
    return findings.done(
        {
            "reward": [round(value, 3) for value in rose],
            "sampler_error": max(sampler_error(batch) for batch in run.batches),
            "stale_error": round(stale, 2),
            "first": first,
            "last": last,
        }
    )


def words(count: int) -> list[str]:
    """Return a word for each of `count` tokens: those of smoke.grpo first."""
    own = [*map(str, range(grpo.DIGITS)), "<s>", "</s>", "<pad>"]
    return own + [f"word{number}" for number in range(len(own), count)]


def save(model: nn.Module, folder: Path, tokens: list[str]) -> None:
    """A checkpoint as the image's transformers writes it, with a tokenizer of one word for each token."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))  # noqa: S106  # a word, no secret
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
        pad_token="<pad>",  # noqa: S106
    ).save_pretrained(folder)


def sampled(engine: Engine, policy: nn.Module, prompts: Tensor, group: int, _: torch.Generator) -> grpo.Rollout:
    """A batch from the engine after the policy's weights went to it."""
    engine.load(dict(policy.named_parameters()))
    answers = engine.generate(prompts.tolist(), group, 1.0)
    rows = [completion for completions in answers for completion in completions]
    if len(rows) != len(prompts) * group or not all(0 < len(row.tokens) <= grpo.COMPLETION for row in rows):
        lengths = [len(row.tokens) for row in rows]
        raise ValueError(f"{len(prompts)} x {group} completions of 1 to {grpo.COMPLETION} tokens, not {lengths}")
    tokens = torch.tensor([_padded(row.tokens, grpo.PAD) for row in rows], device=prompts.device)
    log_probs = torch.tensor([_padded(row.log_probs, 0.0) for row in rows], device=prompts.device)
    lengths = torch.tensor([len(row.tokens) for row in rows], device=prompts.device)
    mask = torch.arange(grpo.COMPLETION, device=prompts.device) < lengths[:, None]
    whole = torch.cat([prompts.repeat_interleave(group, 0), tokens], 1)
    rewards = grpo.reward(whole[:, : -grpo.COMPLETION], tokens, mask).view(-1, group)
    return grpo.Rollout(whole, mask, log_probs, rewards)


def _padded(values: list, filler: float) -> list:
    return [*values, *[filler] * (grpo.COMPLETION - len(values))]


def greedy(engine: Engine) -> list[list[int]]:
    """The likeliest completion of each prompt."""
    prompts = [[grpo.BOS, digit] for digit in range(grpo.DIGITS)]
    return [answers[0].tokens for answers in engine.generate(prompts, 1, 0.0)]


def stale_error(run: grpo.Run) -> float:
    """Return how far the first weights' log-probabilities are from the last batch's."""
    batch = run.batches[-1]
    return float((batch.rollout.sampled - batch.reference)[batch.rollout.mask].abs().max())
