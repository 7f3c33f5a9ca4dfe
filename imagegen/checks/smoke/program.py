"""The parts of a check: its input, the ways it can end, and its progress output."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smoke.arch import targets

Details = dict[str, Any]
SECONDS = "IMAGEGEN_CHECK_SECONDS"  # variable of a check's process: after so many seconds the runner kills it


@dataclass(frozen=True)
class Spec:
    """The facts that the lock states about this image; `device` is "cpu" or "cuda"."""

    device: str
    python: str  # "3.11"
    prefix: str  # of the virtual environment
    env: dict[str, str]
    versions: dict[str, str]  # normalised distribution name -> version
    imports: dict[str, list[str]]  # component -> modules
    gpus: tuple[str, ...] = ()  # architectures that the image is for: "sm_100"
    omits: dict[str, str] = field(default_factory=dict)  # distribution that is left out on purpose -> why
    modules: dict[str, str] = field(default_factory=dict)  # distribution -> its module, where the names differ
    overrides: dict[str, str | None] = field(default_factory=dict)  # distribution -> specifier; None: it is left out
    undeclared: list[str] = field(default_factory=list)  # distributions whose modules their files name
    check: str = ""  # the name under which the table has this run


class Skipped(Exception):  # an answer, not an error
    """The check cannot say anything here; the text says why."""


class Failed(Exception):
    """The check failed. `details` are shown beside the reason."""

    def __init__(self, reason: str, details: Details) -> None:
        super().__init__(reason)
        self.details = details


class Findings:
    """Collects everything that is wrong, so that one run shows it all. Names are stable: tests rely on them."""

    _SHOWN = 5  # sentences in the reason; the details have all

    def __init__(self) -> None:
        self.wrong: dict[str, str] = {}

    def expect(self, name: str, holds: bool, otherwise: str) -> None:
        """Keep the sentence when the expectation does not hold; the first one for each name."""
        if not holds:
            self.wrong.setdefault(name, otherwise)

    def done(self, details: Details, log: str | None = None) -> Details:
        """The details; raises Failed when anything was wrong, with the log of what was judged, if there is one."""
        if self.wrong:
            sentences = list(self.wrong.values())
            more = [f"and {len(sentences) - self._SHOWN} more"] if len(sentences) > self._SHOWN else []
            logged: Details = {} if log is None else {"log": log}
            raise Failed("; ".join(sentences[: self._SHOWN] + more), {**details, "wrong": self.wrong, **logged})
        return details


def finite(values: list[float]) -> bool:
    """Return whether there are values, and all are finite."""
    return bool(values) and all(map(math.isfinite, values))


def step(text: str) -> None:
    """Report the next step. If the process then dies or hangs, the runner reports this line."""
    print(text, flush=True)


def answer(check: Callable[[Spec], Details], spec: Spec) -> tuple[str, str, Details]:
    """Return (status, reason, details) of one check. An unexpected exception is a failure."""
    try:
        if spec.device == "cuda":
            require_gpu()
        return "pass", "", check(spec)
    except Skipped as skipped:
        return "skip", str(skipped), {}
    except Failed as failed:
        return "fail", str(failed), failed.details
    except Exception as error:  # noqa: BLE001  # whatever the image's libraries raise is the answer
        traceback.print_exc()
        return "fail", f"{type(error).__name__}: {error}", {}


def compile_targets(spec: Spec) -> list[str]:
    """The architectures that the image is for. Raises Skipped where the lock names none."""
    found = targets(spec.gpus, spec.env)
    if not found:
        raise Skipped("the lock does not say which GPUs the image is for")
    return found


def require_gpu() -> None:
    """Raise Skipped unless a GPU is here and torch is built for one.

    Asks the device files and torch's build, not torch.cuda.is_available(): a GPU that is here and does not work must
    fail. (/dev/dxg is the GPU of WSL 2.)
    """
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        raise Skipped("no NVIDIA GPU in this container")
    import torch

    if torch.version.cuda is None:
        raise Skipped(f"torch {torch.__version__} is not built for CUDA")
