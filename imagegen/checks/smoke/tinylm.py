"""A causal language model small enough to train in seconds: of the image's own transformers, else plain torch."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn

WIDTH, HEADS, LAYERS = 64, 4, 2
CONTEXT = 16
DROPOUT = 0.1  # there to be off: log-probabilities of the sampling policy must not move by themselves


def make(vocabulary: int) -> nn.Module:
    """A fresh model from torch's global random state."""
    return llama(vocabulary) if importlib.util.find_spec("transformers") else PlainModel(vocabulary)


def llama(vocabulary: int, head_width: int = WIDTH // HEADS) -> nn.Module:
    """A Llama with random weights, made from its config: nothing is downloaded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            head_dim=head_width,
            max_position_embeddings=CONTEXT,
            attention_dropout=DROPOUT,
            use_cache=False,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="sdpa",
        )
    )


class PlainModel(nn.Module):
    """The same kind of model in plain torch: embeddings, pre-norm blocks, a linear head."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(_Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) -> (B, S, vocabulary)"""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(DROPOUT)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(hidden)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=DROPOUT if self.training else 0.0
        )
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.feed(self.feed_norm(hidden))
