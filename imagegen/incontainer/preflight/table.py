"""Every check, as data, in the order in which findings are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .checks import (
    allocator,
    architecture,
    cuda,
    driver,
    empty,
    home,
    limits,
    loader,
    memory,
    shm,
    system,
    visible,
    wandb,
)
from .model import SEVERITIES, Finding, Image, Machine

Look = Callable[[Image, Machine], Iterable[Finding]]
Applies = Callable[[Image, Machine], bool]


def always(_: Image, __: Machine) -> bool:
    return True


class Check(NamedTuple):
    """One row. `places` are where it can be asked; `applies` says whether there is anything to look at."""

    name: str
    look: Look
    sees: str
    applies: Applies = always
    places: tuple[str, ...] = ("container", "host")


class Row(NamedTuple):
    """How a check went: "ok", the worst of its findings' severities, or "-" where there was nothing to look at."""

    name: str
    status: str
    sees: str


_INSIDE = ("container",)

CHECKS = (
    Check("system", system.check, "Linux, or Windows' Linux"),
    Check("gpu", visible.check, "a GPU is visible, with what programs need of its driver", visible.applies),
    Check("driver", driver.check, "the driver is new enough for the image", driver.applies),
    Check("architecture", architecture.check, "the GPU is one that there is code for", architecture.applies),
    Check("loader", loader.check, "no cuda-compat and no stub comes before the driver's libcuda", loader.applies),
    Check("cuda", cuda.check, "CUDA starts, in a process of its own", cuda.applies),
    Check("memory", memory.check, "the GPUs' memory is free", memory.applies),
    Check("shm", shm.check, "/dev/shm is large enough", shm.applies, _INSIDE),
    Check("allocator", allocator.check, "no expandable segments beside a memory pool", allocator.applies, _INSIDE),
    Check("empty", empty.check, "no variable that is read as a number is empty", always, _INSIDE),
    Check("home", home.check, "HOME and TMPDIR can be written, and the user has a name", always, _INSIDE),
    Check("limits", limits.check, "RDMA may lock memory", limits.applies, _INSIDE),
    Check("wandb", wandb.check, "W&B is offline or has a key", wandb.applies, _INSIDE),
)


def examine(image: Image, machine: Machine, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """The findings of all checks that can be asked here, worst first. A check that fails itself is a note."""
    found: list[Finding] = []
    for check in checks:
        if machine.place in check.places and check.applies(image, machine):
            try:
                found += check.look(image, machine)
            except Exception as error:  # noqa: BLE001 - a container must start, whatever is odd about its machine
                text = f"the check {check.name} failed: {type(error).__name__}: {error}"
                found.append(Finding(check.name, "note", text, "report it to imagegen"))
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def rows(image: Image, machine: Machine, findings: Iterable[Finding], checks: Iterable[Check] = CHECKS) -> list[Row]:
    """One for each check of this kind of place; `findings` are what `examine` gave, worst first."""
    worst: dict[str, str] = {}
    for finding in findings:
        worst.setdefault(finding.check, finding.severity)
    return [
        Row(check.name, worst.get(check.name, "ok") if check.applies(image, machine) else "-", check.sees)
        for check in checks
        if machine.place in check.places
    ]
