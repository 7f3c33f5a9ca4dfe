"""A small Llama with fixed weights, for comparing trainer and rollout engine, and its definition in float64.

The reference is written out here: transformers computes norms and rotary angles in float32 whatever the model's dtype,
so its model in float64 is none. Sources: Llama (Touvron et al. 2023), arXiv 2302.13971, section 2.2; RoFormer (Su et
al. 2021), arXiv 2104.09864, for rotary positions, in the half-split layout of transformers' checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from smoke.inputs import DEVIATION, integers, values
from torch import Tensor, nn
from torch.nn.functional import silu

VOCABULARY, CONTEXT = 512, 64
WIDTH, HIDDEN, LAYERS = 256, 512, 4
HEADS, KV_HEADS, HEAD_WIDTH = 4, 2, 64
EPSILON, THETA = 1e-6, 10000.0
SHARPNESS = 2.0  # standard deviation of logits: near that of a trained model, where an untrained one is all but uniform
ROWS, LENGTH = 16, 48  # of the sequences that are scored


def sequences(seed: int = 0) -> Tensor:
    """Return tokens (ROWS, LENGTH)."""
    return integers("tokens", VOCABULARY, ROWS, LENGTH, seed=seed)


def weights() -> dict[str, Tensor]:
    """Return the weights in float32, by their names in a Hugging Face checkpoint."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (WIDTH,)
        shapes[f"{prefix}.self_attn.q_proj.weight"] = (HEADS * HEAD_WIDTH, WIDTH)
        shapes[f"{prefix}.self_attn.k_proj.weight"] = (KV_HEADS * HEAD_WIDTH, WIDTH)
        shapes[f"{prefix}.self_attn.v_proj.weight"] = (KV_HEADS * HEAD_WIDTH, WIDTH)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (WIDTH, HEADS * HEAD_WIDTH)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (WIDTH,)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (HIDDEN, WIDTH)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (HIDDEN, WIDTH)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (WIDTH, HIDDEN)
    shapes |= {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)}
    return {name: _weight(name, shape) for name, shape in shapes.items()}


def _weight(name: str, shape: tuple[int, ...]) -> Tensor:
    unit = values(name, *shape) / DEVIATION
    if len(shape) == 1:
        return 1 + unit / 8
    if name == "model.embed_tokens.weight":
        return unit
    return unit * ((SHARPNESS if name == "lm_head.weight" else 1.0) / math.sqrt(shape[1]))


def make(given: Mapping[str, Tensor]) -> nn.Module:
    """Return transformers' Llama with these weights, in their dtype. Raises ImportError without transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=HEAD_WIDTH,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=EPSILON,
            tie_word_embeddings=False,
            use_cache=False,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="sdpa",
        )
    )
    model.load_state_dict(given, strict=True)
    return model.to(given["lm_head.weight"].dtype).eval()


def token_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of each token but the first. (B, S, VOCABULARY), (B, S) -> (B, S - 1)."""
    return logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def score(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the model's log-probabilities in float32, as trainers compute them: (B, S) -> (B, S - 1)."""
    with torch.no_grad():
        return token_log_probs(model(tokens).logits.float(), tokens)


def reference(given: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Return the same in float64: (B, S) -> (B, S - 1)."""
    exact = {name: tensor.double().cpu() for name, tensor in given.items()}
    length = tokens.shape[1]
    frequencies = THETA ** (-torch.arange(0, HEAD_WIDTH, 2, dtype=torch.float64) / HEAD_WIDTH)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    hidden = exact["model.embed_tokens.weight"][tokens]
    for layer in range(LAYERS):
        own = {name.removeprefix(f"model.layers.{layer}."): tensor for name, tensor in exact.items()}
        normed = _norm(hidden, own["input_layernorm.weight"])
        query, key, value = (
            (normed @ own[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2)
            for name in "qkv"
        )
        key, value = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (key, value))
        scores = _rotate(query, angles) @ _rotate(key, angles).transpose(-1, -2) / math.sqrt(HEAD_WIDTH)
        mixed = scores.masked_fill(~visible, -math.inf).softmax(-1) @ value
        hidden = hidden + mixed.transpose(1, 2).flatten(2) @ own["self_attn.o_proj.weight"].T
        normed = _norm(hidden, own["post_attention_layernorm.weight"])
        gated = silu(normed @ own["mlp.gate_proj.weight"].T) * (normed @ own["mlp.up_proj.weight"].T)
        hidden = hidden + gated @ own["mlp.down_proj.weight"].T
    return token_log_probs(_norm(hidden, exact["model.norm.weight"]) @ exact["lm_head.weight"].T, tokens)


def _norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden * (hidden.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight


def _rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """Rotate the pairs (i, i + HEAD_WIDTH / 2) of each position by its angles. heads is (B, H, S, HEAD_WIDTH)."""
    first, second = heads.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)
