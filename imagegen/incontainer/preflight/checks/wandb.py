"""Weights & Biases: without a key and not offline, a run that logs to it asks for the key, or ends.

Source: W&B documentation, "Environment variables" (WANDB_API_KEY, WANDB_MODE) and `wandb login` (~/.netrc).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..model import Finding, Image, Machine

_SILENT = ("offline", "disabled", "dryrun")


def applies(image: Image, machine: Machine) -> bool:
    return image.has("wandb")


def check(image: Image, machine: Machine) -> Iterator[Finding]:
    environ = machine.environ
    if environ.get("WANDB_MODE") in _SILENT or environ.get("WANDB_API_KEY"):
        return
    if environ.get("WANDB_DISABLED", "").lower() == "true" or os.path.exists(os.path.expanduser("~/.netrc")):
        return
    yield Finding(
        "wandb",
        "note",
        "W&B is to be online (WANDB_MODE), and there is no key: a run that logs to it ends or asks",
        "set WANDB_API_KEY, or WANDB_MODE=offline",
    )
