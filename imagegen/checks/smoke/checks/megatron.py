"""megatron-core builds a tiny GPT, and its forward, backward and optimizer steps make the loss fall."""

from __future__ import annotations

import math
import os
import tempfile
from typing import Any

import torch
from smoke.program import Details, Findings, Spec, step
from torch import Tensor, distributed, nn

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH, BATCH = 64, 4, 2, 32, 16, 8
STEPS = 20
FALL = 0.5  # of log(VOCABULARY), where an untrained model starts; on one batch the loss goes towards 0
# What megatron-core 0.16 cannot do without a GPU: it puts these on torch.cuda.current_device().
WITHOUT_GPU = (
    "rotary positions: learned ones instead",
    "megatron's attention core and norms: torch's instead",
    "CUDA random state",
)


def check(spec: Spec) -> Details:
    torch.set_num_threads(1)
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"})
    findings = Findings()
    with tempfile.TemporaryDirectory() as folder:
        step("one process's groups")
        backend = "nccl" if spec.device == "cuda" else "gloo"
        distributed.init_process_group(backend, f"file://{folder}/store", world_size=1, rank=0)
        try:
            losses, gradients = train(spec.device)
        finally:
            distributed.destroy_process_group()
    judge(losses, gradients, findings)
    details: Details = {"losses": [round(losses[0], 3), round(losses[-1], 3)], "backend": backend}
    if spec.device == "cpu":
        details["skipped"] = list(WITHOUT_GPU)
        details["note"] = f"without a GPU not tried: {'; '.join(WITHOUT_GPU)}"
    return findings.done(details)


def judge(losses: list[float], gradients: dict[str, float], findings: Findings) -> None:
    start = math.log(VOCABULARY)
    findings.expect("finite", all(map(math.isfinite, losses)), f"a loss is not finite: {losses}")
    near = abs(losses[0] - start) < 1
    findings.expect("untrained", near, f"the first loss is {losses[0]:.2f}; chance is {start:.2f}")
    fell = losses[0] - losses[-1]
    findings.expect("falls", fell > FALL * start, f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f}")
    without = sorted(name for name, norm in gradients.items() if not norm > 0)
    findings.expect("gradients", not without, f"parameters without a gradient: {without}")


def train(device: str) -> tuple[list[float], dict[str, float]]:
    """The losses of all steps on one batch, and the norms of the first gradients."""
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(1, 1)
    if device == "cuda":
        torch.cuda.set_device(0)
        tensor_parallel.model_parallel_cuda_manual_seed(0)
    torch.manual_seed(0)
    step("a GPT")
    model = make(device)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    losses, gradients = [], {}
    for number in range(STEPS):
        step(f"step {number}")
        loss = loss_of(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        if number == 0:
            found = model.named_parameters()
            gradients = {name: 0.0 if p.grad is None else p.grad.norm().item() for name, p in found}
        optimizer.step()
        losses.append(loss.item())
    parallel_state.destroy_model_parallel()
    return losses, gradients


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Megatron's own loss over its vocabulary-parallel head; the next token is the label."""
    places = torch.arange(LENGTH, device=tokens.device).expand_as(tokens)
    hidden = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=tokens.device).triu(1)
    labels = tokens.roll(-1, 1)
    return model(tokens, places, hidden, labels=labels).float().mean()


def make(device: str) -> nn.Module:
    """Return a GPT of two layers from megatron's local spec, which needs no TransformerEngine.

    On a CPU torch's attention and norms replace those of megatron, apex and TransformerEngine, which are for GPUs.
    """
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=WIDTH,
        ffn_hidden_size=2 * WIDTH,
        num_attention_heads=HEADS,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=device == "cpu",
        gradient_accumulation_fusion=False,  # apex's or TransformerEngine's kernels
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
    )
    layers = layer = get_gpt_layer_local_spec()
    if device == "cpu":
        layer.submodules.self_attention.submodules.core_attention = TorchAttention
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = WrappedTorchNorm
        layers = TransformerBlockSubmodules([layer] * LAYERS, WrappedTorchNorm)
    positions = "learned_absolute" if device == "cpu" else "rope"
    model = GPTModel(config, layers, VOCABULARY, LENGTH, position_embedding_type=positions)
    return model.to(device)


class TorchAttention(nn.Module):
    """In the place of megatron's attention core: torch's, causal."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """(S, B, heads, width) each -> (S, B, heads * width)"""
        q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.permute(2, 0, 1, 3).flatten(2)
