"""A run that is saved and loaded takes the very same next step as one that never stopped."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch
from smoke import tinylm
from smoke.grpo import logits_of
from smoke.program import Details, Findings, Spec, step
from torch import Tensor, nn

VOCABULARY, BATCH, LENGTH = 11, 8, 10
STEPS = 3  # before the checkpoint, so that the optimizer's moments matter


def check(_: Spec) -> Details:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(0)
    model = tinylm.make(VOCABULARY)
    optimizer = make_optimizer(model)
    for _ in range(STEPS):
        train_step(model, optimizer)
    findings = Findings()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step("save")
        save(model, optimizer, folder)
        saved = copy.deepcopy(model.state_dict())
        loss = train_step(model, optimizer)
        step("load")
        loaded, resumed = load(folder)
        findings.expect("weights", same(loaded.state_dict(), saved), "the loaded weights are not the saved ones")
        step("resume")
        again = train_step(loaded, resumed)
        files = {path.name: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    findings.expect("loss", again == loss, f"the resumed step's loss is {again!r}, without the stop it is {loss!r}")
    findings.expect("step", same(loaded.state_dict(), model.state_dict()), "the resumed step gave other weights")
    return findings.done({"files": files, "loss": loss})


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """One step of next-token prediction on random tokens, with dropout, all from torch's global random state."""
    model.train()
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    logits = logits_of(model, tokens)[:, :-1]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """The weights as the image's stack saves them; optimizer and random state by torch.save."""
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
    else:
        torch.save(model.state_dict(), folder / "model.pt")
    torch.save({"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, folder / "trainer.pt")


def load(folder: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Model, optimizer and torch's random state from a folder. Pickles are read with weights_only."""
    model = _load_model(folder)
    optimizer = make_optimizer(model)
    state = torch.load(folder / "trainer.pt", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    return model, optimizer


def _load_model(folder: Path) -> nn.Module:
    if (folder / "config.json").exists():
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder)
    model = tinylm.make(VOCABULARY)
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    return model


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())
